"""How many files this process may have open: its limit is raised where many are to be."""

from __future__ import annotations

import logging
import resource

from pyc.runtime.host.signal_handlers import unless_signalled

logger = logging.getLogger(__name__)


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files, as far as the system lets it, where `count` are more than half of it.

    The other half is for what else a process opens.
    """
    if count > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
        raise_open_files_limit()


def raise_open_files_limit() -> bool:
    """Raise this process's limit of open files as far as the system lets it; whether that was more than before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except unless_signalled(OSError, ValueError):  # a hard limit above what the kernel lets any process have
        return False
    logger.info("this process may open %d files now, before %d", hard, soft)
    return True


def open_files_remedy() -> str:
    """Return what to do about files that cannot be opened, since too many are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    how = "ulimit -n" if soft < hard else "ulimit -n as root, or LimitNOFILE= of a service"
    return f"raise the limit, {soft} ({how})"
