"""Conversations: the model's chat template in its sandbox, and how much of what was said fits the context."""
