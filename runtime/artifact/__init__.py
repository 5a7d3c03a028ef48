"""Artifacts: their format, who signed them, and a reader that hands out nothing unverified."""
