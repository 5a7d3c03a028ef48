from tiny_checkpoints import tiny_adapter, tiny_checkpoint

__all__ = ["tiny_adapter", "tiny_checkpoint"]
