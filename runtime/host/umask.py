"""The process's umask, which no call of the system reads without setting it."""

import os


def current_umask() -> int:
    """Return the umask; for that moment it is 0o077, so what other threads make then is their user's alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
