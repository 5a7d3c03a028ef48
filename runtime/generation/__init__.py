"""Sequences of tokens: slots and cache blocks, sampling, generation, embeddings."""
