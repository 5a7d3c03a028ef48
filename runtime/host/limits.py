"""What to do where a limit of this process or of the system stops it."""

from __future__ import annotations

import errno

_REMEDIES = {
    errno.EFBIG: "the size of files is limited (ulimit -f) to less than its size: raise the limit",
    errno.EMFILE: "raise the limit (ulimit -n)",
    errno.ENFILE: "the system lets no more files be open: raise fs.file-max",
}


def limit_remedy(error: OSError) -> str:
    """Return what to do, as the end of a sentence: "; raise ..."; "" for an error that no limit is behind."""
    remedy = _REMEDIES.get(error.errno or 0)
    return f"; {remedy}" if remedy else ""
