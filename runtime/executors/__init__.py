"""Executors: what runs the programs of an artifact."""
