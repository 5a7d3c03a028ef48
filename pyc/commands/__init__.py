"""The commands of the pyc command line, one a file."""
