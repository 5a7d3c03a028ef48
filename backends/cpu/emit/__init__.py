"""A lowered graph to lists of calls: which kernel does what, over which memory, in which order."""
