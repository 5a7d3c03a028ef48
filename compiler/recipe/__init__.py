"""The recipe: what to build, read strictly, with a place for every error."""
