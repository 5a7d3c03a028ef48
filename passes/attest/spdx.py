"""An SPDX 2.3 document: the model as a package, and what it was generated from.

BLAKE3 of sources is a comment: SPDX has the algorithm, but its own tools refuse digests of 32 bytes. SPDX wants the
time of the document's creation: that of $SOURCE_DATE_EPOCH where it is set, so that it can be repeated.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pyc import __version__
from pyc.passes.attest.facts import HOMEPAGE, Facts
from pyc.runtime.errors import ArtifactError

NOTHING = "NOASSERTION"


def spdx(facts: Facts) -> dict[str, object]:
    """Return the document, as JSON takes it. Raises ArtifactError for a $SOURCE_DATE_EPOCH that is no time."""
    model = _package("SPDXRef-Model", facts.name, facts.header_sha256[:16], "SHA256", facts.file_sha256)
    model["primaryPackagePurpose"] = "FILE"
    model["comment"] = f"Digest, by which it can be revoked: {facts.digest}"
    if facts.licences:
        model["licenseComments"] = f"The model carries {', '.join(facts.licences)}."
    sources = [
        _package(f"SPDXRef-Source-{index}", source.name, None) | {"comment": f"BLAKE3: {source.blake3}"}
        for index, source in enumerate(facts.header.provenance.sources)
    ]
    tools = [
        {
            **_package(f"SPDXRef-Tool-{index}", tool.name, tool.version),
            "externalRefs": [
                {
                    "referenceCategory": "PACKAGE-MANAGER",
                    "referenceType": "purl",
                    "referenceLocator": f"pkg:pypi/{tool.name}@{tool.version}",
                }
            ],
        }
        for index, tool in enumerate(facts.header.provenance.tools)
    ]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Model")]
    relations += [("SPDXRef-Model", "GENERATED_FROM", str(source["SPDXID"])) for source in sources]
    relations += [(str(tool["SPDXID"]), "BUILD_TOOL_OF", "SPDXRef-Model") for tool in tools]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": facts.name,
        "documentNamespace": f"{HOMEPAGE}spdx/{facts.id}",
        "creationInfo": {"created": _created(), "creators": [f"Tool: pyc-{__version__}"]},
        "packages": [model, *sources, *tools],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }


def _package(
    reference: str, name: str, version: str | None, algorithm: str = "", digest: str = ""
) -> dict[str, object]:
    found: dict[str, object] = {
        "SPDXID": reference,
        "name": name,
        "downloadLocation": NOTHING,
        "filesAnalyzed": False,
        "licenseConcluded": NOTHING,
        "licenseDeclared": NOTHING,
        "copyrightText": NOTHING,
    }
    if version is not None:
        found["versionInfo"] = version
    if digest:
        found["checksums"] = [{"algorithm": algorithm, "checksumValue": digest}]
    return found


def _created() -> str:
    text = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        when = datetime.now(UTC) if text is None else datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ArtifactError(
            f"$SOURCE_DATE_EPOCH: got {text[:40] if text else text!a}, expected seconds since 1970"
        ) from error
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
