"""Documents about an artifact for other tools: bills of materials, and where it comes from, made of its header."""
