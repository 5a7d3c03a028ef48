"""Files in memory alone: they have no name, so that nobody else opens, cuts or writes to them."""

from __future__ import annotations

import errno
import os

from pyc.runtime.host.limits import limit_remedy
from pyc.runtime.host.signal_handlers import unless_signalled

_DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


def memory_file(name: str, flags: int = 0) -> int:
    """Return the descriptor of a new file, which programs that are started do not get. `name` is what the system's
    tools show.

    Raises OSError, whose text says what to do about it.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | flags)
    except unless_signalled(OSError) as error:
        remedy = limit_remedy(error)
        if error.errno in _DENIED:
            remedy = "; allow memfd_create, as in the seccomp profile of a container or SystemCallFilter of a service"
            remedy += ", or lower the sysctl vm.memfd_noexec" if error.errno == errno.EACCES else ""
        raise OSError(error.errno, f"no file in memory can be made: {error.strerror}{remedy}") from error
