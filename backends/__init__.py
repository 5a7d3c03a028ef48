"""Backends, a room each: a backend turns a module into programs for one kind of device."""
