"""What a model is: configuration, checkpoint, one file per architecture."""
