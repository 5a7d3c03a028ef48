"""What drives a build: reads a recipe, runs the passes, asks the backends, and writes the artifact."""
