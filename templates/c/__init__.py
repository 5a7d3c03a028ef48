"""C kernel templates."""
