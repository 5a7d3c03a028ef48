"""A CycloneDX 1.6 bill of materials: the model with its card, what it was made from, what made it, what is in it.

Equal artifacts give equal documents: there is no time in them, and the serial number is of the content.
"""

from __future__ import annotations

from pyc.passes.attest.facts import Facts, encoded

SPECIFICATION = "1.6"


def cyclonedx(facts: Facts) -> dict[str, object]:
    """Return the document, as JSON takes it."""
    sources = [_source(index, facts) for index in range(len(facts.header.provenance.sources))]
    tools: list[dict[str, object]] = [
        {
            "type": "application",
            "bom-ref": f"tool-{tool.name}",
            "name": tool.name,
            "version": tool.version,
            "purl": f"pkg:pypi/{tool.name}@{tool.version}",
        }
        for tool in facts.header.provenance.tools
    ]
    references = [str(part["bom-ref"]) for part in (*sources, *tools)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{facts.id}",
        "version": 1,
        "metadata": {"component": _model(facts)},
        "components": [*sources, *tools],
        "dependencies": [{"ref": "model", "dependsOn": references}, *({"ref": ref} for ref in references)],
    }


def _model(facts: Facts) -> dict[str, object]:
    model = facts.header.model
    outputs = "text" if model.kind == "decoder" else "vector"
    found: dict[str, object] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": facts.name,
        "version": facts.header_sha256[:16],
        "hashes": [{"alg": "SHA-256", "content": facts.file_sha256}],
        "modelCard": {
            "modelParameters": {
                "task": facts.task,
                "architectureFamily": "transformer",
                "modelArchitecture": model.architecture,
                "inputs": [{"format": "text"}],
                "outputs": [{"format": outputs}],
            }
        },
        "properties": [
            {"name": "pyc:digest", "value": facts.digest},
            {"name": "pyc:header-sha256", "value": facts.header_sha256},
            {"name": "pyc:recipe", "value": facts.header.provenance.recipe},
            {"name": "pyc:context", "value": str(model.context)},
            *(
                {"name": "pyc:program", "value": f"{program.backend} {program.isa} {program.arch}"}
                for program in facts.header.programs
            ),
        ],
    }
    if facts.licences:
        found["licenses"] = [_licence(name, text) for name, text in facts.licences.items()]
    return found


def _licence(name: str, text: bytes | None) -> dict[str, object]:
    if text is None:
        return {"license": {"name": name, "properties": [{"name": "pyc:text", "value": "too large, not read"}]}}
    return {"license": {"name": name, "text": {"encoding": "base64", "content": encoded(text)}}}


def _source(index: int, facts: Facts) -> dict[str, object]:
    source = facts.header.provenance.sources[index]
    return {
        "type": "data" if source.name.endswith(".safetensors") else "file",
        "bom-ref": f"source-{index}",
        "name": source.name,
        "hashes": [{"alg": "BLAKE3", "content": source.blake3}],
        "properties": [{"name": "pyc:size-bytes", "value": str(source.size_bytes)}],
    }
