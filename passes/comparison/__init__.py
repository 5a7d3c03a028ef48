"""What differs between artifacts, or between an artifact and what its recipe makes now."""
