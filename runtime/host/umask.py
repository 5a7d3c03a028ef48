"""The process's umask, which no call of the system reads without setting it."""

import os
from itertools import islice


def current_umask() -> int:
    """Return the umask; for that moment it is 0o077, so what other threads make then is their user's alone."""
    masks = [0o077]
    # One call sets it and, by what it gave, sets it back: no signal handler can raise between.
    masks.extend(islice(map(os.umask, masks), 2))
    return masks[1]
