"""Backends: each turns a lowered module into programs for one kind of device."""
