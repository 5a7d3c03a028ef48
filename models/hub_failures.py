"""What huggingface_hub raises, as one line with what to do about it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from pyc.models.hub_cache import cache_root
from pyc.runtime.errors import PycError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Of the cache's folder, whatever file it was."""
_OF_PATHS = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG)
"""Of the cache's folder where a file is named; else of a file of certificates, or of a connection."""
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PARAMETERS = re.compile(r"""\?[^\s'")>]*=[^\s'")>]*""")


def explained(
    problem: BaseException, reference: str, hub_id: str, endpoint: str, error: type[PycError], *, is_known: bool
) -> Exception:
    """The error to raise for one of huggingface_hub: one line, with what to do. `is_known`: the hub has the model."""
    chain = list(_causes(problem))
    names = {kind.__name__ for cause in chain for kind in type(cause).__mro__}
    if variable := _stale_certificates(chain):
        return error(f"{reference}: {variable} is {os.environ[variable]}, which is not there; unset or correct it")
    refused = next((cause for cause in chain if _is_of_the_cache(cause)), None)
    if refused is not None:
        return OSError(refused.errno, refused.strerror, str(refused.filename or cache_root()))
    log_in = "run `hf auth login` or set HF_TOKEN"
    status = next((code for cause in chain if (code := _status(cause))), None)
    if "OfflineModeIsEnabled" in names:
        return error(f"{reference}: not downloaded, since HF_HUB_OFFLINE is set; unset it")
    if "GatedRepoError" in names:
        return error(f"{reference}: the model is gated; accept its terms at {endpoint}/{hub_id}, then {log_in}")
    if "RevisionNotFoundError" in names:
        return error(f"{reference}: {endpoint} has the model, but not this revision; see {endpoint}/{hub_id}/tree/main")
    if status in (401, 403) and is_known:
        return error(f"{reference}: a file of it was refused with status {status}; try again, or {log_in}")
    if "RepositoryNotFoundError" in names or status in (401, 403):
        return error(f"{reference}: {endpoint} has no model of this name, or not for you; check it, or {log_in}")
    if status is not None:
        return error(f"{reference}: {endpoint} answered with status {status}; try again later")
    if "UnicodeEncodeError" in names:
        return error(f"{reference}: HF_TOKEN, or the login's file, holds letters that no token has; set it anew")
    if "JSONDecodeError" in names:
        return error(f"{reference}: {endpoint} answered with what is no JSON, as a web page is; check HF_ENDPOINT")
    reason = one_line(str(chain[-1])) or type(chain[-1]).__name__
    return error(
        f"{reference}: not downloaded from {endpoint}: {reason}; check the network, HF_ENDPOINT and HTTPS_PROXY, and "
        "try again: files that are whole are not fetched twice"
    )


def _is_of_the_cache(cause: BaseException) -> TypeGuard[OSError]:
    if not isinstance(cause, OSError):
        return False
    return cause.errno in _FULL or (cause.errno in _OF_PATHS and bool(cause.filename))


def _stale_certificates(chain: Sequence[BaseException]) -> str | None:
    """The variable that names certificates which are not there, where that is why nothing was fetched.

    `ssl` names no file; requests says which file it could not find, in an error without a number.
    """
    for cause in chain:
        if isinstance(cause, OSError) and not cause.filename and cause.errno in (None, errno.ENOENT, errno.ENOTDIR):
            for name in _CERTIFICATES:
                place = os.environ.get(name)
                if place and not os.path.exists(place) and (cause.errno is not None or place in str(cause)):
                    return name
    return None


def _causes(problem: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = problem
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _status(problem: BaseException) -> int | None:
    code = getattr(getattr(problem, "response", None), "status_code", None)
    return code if isinstance(code, int) else None


def one_line(text: str) -> str:
    """The first line of a message, without the parameters of addresses, which may let anybody read a file."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = _PARAMETERS.sub("?...", line)
    return "".join(letter for letter in line if letter.isprintable())[:200]
