"""An in-toto statement with SLSA provenance: the recipe, the passes, and the digests of all that went in.

Signed, it is an envelope of DSSE, whose signature is ed25519 over the pre-authentication encoding of payload and type.
"""

from __future__ import annotations

from pyc import __version__
from pyc.passes.attest.facts import HOMEPAGE, Facts, encoded
from pyc.runtime.artifact.trust.keys import SigningKey
from pyc.runtime.text.json_text import json_text

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def provenance(facts: Facts) -> dict[str, object]:
    """Return the statement, as JSON takes it."""
    origin = facts.header.provenance
    return {
        "_type": STATEMENT,
        "subject": [
            {
                "name": facts.name,
                "digest": {"sha256": facts.file_sha256},
                "annotations": {"pyc:digest": facts.digest},
            }
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{HOMEPAGE}build/v1",
                "externalParameters": {"recipe": facts.recipe()},
                "internalParameters": {
                    "passes": [
                        {"name": each.name, "version": each.version, "options": each.options} for each in origin.passes
                    ]
                },
                "resolvedDependencies": [
                    *({"name": each.name, "digest": {"blake3": each.blake3}} for each in origin.sources),
                    *({"uri": f"pkg:pypi/{each.name}@{each.version}"} for each in origin.tools),
                ],
            },
            "runDetails": {
                "builder": {"id": HOMEPAGE, "version": {"pyc-compiler": __version__}},
                "byproducts": [{"name": "header", "digest": {"sha256": facts.header_sha256}}],
            },
        },
    }


def signed(statement: dict[str, object], key: SigningKey) -> dict[str, object]:
    """Return the envelope of a statement. Raises ArtifactError where the key cannot sign."""
    payload = json_text(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    signature = key.sign_message(authenticated(payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": encoded(payload),
        "signatures": [{"keyid": key.public.fingerprint, "sig": encoded(signature)}],
    }


def authenticated(payload: bytes) -> bytes:
    """What a signature of DSSE is over."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
