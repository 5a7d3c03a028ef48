"""The passes, one a file. Read pipeline.py first."""
