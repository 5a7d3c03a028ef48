"""Templates of everything that is emitted as text; found as package data."""
