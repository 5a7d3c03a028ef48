"""Programs of torch.export, and TensorRT engines of them; the one room of pyc that imports torch."""
