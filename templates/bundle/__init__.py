"""What a bundle has beside the artifact: scripts, a unit, a Containerfile, a page."""
