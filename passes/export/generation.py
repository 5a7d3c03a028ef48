"""generation_config.json of an export: the checkpoint's own, with the defaults that the artifact has in place of them.

The header has what the runtime samples by; lengths, and what transformers alone chooses tokens by, are in the file that
the artifact carries. Of a checkpoint's token ids those beyond its vocabulary are left out, as the header leaves them.
"""

from __future__ import annotations

import logging

from pyc.models.generation import FILE
from pyc.models.strict_json import decode
from pyc.passes.export.source import Exportable
from pyc.runtime.artifact.format import Header
from pyc.runtime.errors import ArtifactError

logger = logging.getLogger(__name__)

_TOKENS = ("bos_token_id", "pad_token_id", "eos_token_id")
_OF_HEADER = (*_TOKENS, "do_sample", "top_k", "temperature", "top_p", "min_p", "repetition_penalty")


def generation_config(source: Exportable) -> dict[str, object]:
    """Return what generation_config.json says beside what an export has written.

    Raises ArtifactError for a carried file that is no JSON object; warns where an artifact of an older version of pyc
    lacks the file of its checkpoint.
    """
    header = source.artifact.header
    carried: dict[str, object] = {}
    if FILE in source.files():
        carried = decode(source.artifact.blob(FILE), dict[str, object], f"{source.label}: {FILE}", ArtifactError)
    elif any(made_of.name == FILE for made_of in header.provenance.sources):
        logger.warning(
            "%s: an older pyc built it, without %s: what the export has of that are token ids and sampling, and no "
            "max_new_tokens or max_length; build it again",
            source.label, FILE,
        )  # fmt: skip
    others = {name: value for name, value in carried.items() if name not in _OF_HEADER}
    return _defaults(header) | others


def _defaults(header: Header) -> dict[str, object]:
    """Return the generation defaults of a header as transformers names them."""
    defaults = header.generation
    found: dict[str, object] = {
        "bos_token_id": defaults.bos_token_id,
        "pad_token_id": defaults.pad_token_id,
        "eos_token_id": list(defaults.eos_token_ids) or None,
        "do_sample": defaults.do_sample,
        "top_k": defaults.top_k,
    }
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        value = getattr(defaults, name)
        found[name] = None if value is None else float(value)
    return {name: value for name, value in found.items() if value is not None}
