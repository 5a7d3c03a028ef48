"""Require that sources are those that an artifact was made from, for what compares its matrices with them.

The checkpoint, its adapters and how these were merged have to be what the artifact's provenance says, as
`check_artifact` compares them. How matrices were rounded may be another matter: files of a calibration are required
where they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import takewhile

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import SourcePath
from pyc.compiler.manager import record_of
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.changes import told
from pyc.passes.compare_artifacts import provenance_changes
from pyc.passes.compute_prefix import PREFIX, prefix_records
from pyc.passes.pipeline import fuse_passes
from pyc.passes.scheme_problem import Ingested
from pyc.runtime.artifact.format import PassRecord, Provenance, SourceFile
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError

MOST_TOLD = 3
"""Differences that an error names."""


def require_model(artifact: Artifact, ingested: Ingested, calibration: Collection[str], files: SourceFiles) -> None:
    """Raise ArtifactError unless the artifact was made from a model and adapters that are merged in the same way.

    `calibration` are the names of the files of its calibration, which are none of the model's.
    """
    made_of = artifact.header.provenance
    adapters = [source for adapter, _ in ingested.adapters for source in adapter.sources]
    read = tuple(dict.fromkeys((*ingested.module.sources, *adapters)))
    passes = tuple(record_of(step) for step in fuse_passes(ingested.recipe, ingested.adapters))
    before = Provenance(
        recipe="",
        sources=tuple(source for source in made_of.sources if source.name not in calibration),
        tools=(),
        passes=_merging(made_of.passes),
    )
    after = Provenance(
        recipe="",
        sources=tuple(_recorded(source, files) for source in read),
        tools=(),
        passes=(*passes, *prefix_records(ingested.adapters)),
    )
    groups = provenance_changes(before, after)
    _refuse(artifact, [told(group, change) for group in ("passes", "sources") for change in groups[group]])


def require_files(artifact: Artifact, sources: Iterable[SourcePath], files: SourceFiles) -> None:
    """Raise ArtifactError unless the artifact was made from these files, which may be some of many."""
    recorded = artifact.header.provenance.sources
    for source in sources:
        of_name = tuple(each for each in recorded if each.name == source.name)
        given = _recorded(source, files)
        if given not in of_name:
            before, after = (Provenance("", which, (), ()) for which in (of_name[:1], (given,)))
            _refuse(artifact, [told("sources", change) for change in provenance_changes(before, after)["sources"]])


def _merging(passes: Iterable[PassRecord]) -> tuple[PassRecord, ...]:
    """The records of what adapters have done: of passes before weights get their schemes, and of virtual tokens."""
    every = tuple(passes)
    fused = takewhile(lambda each: each.name != AssignSchemes.name, every)
    return (*fused, *(each for each in every if each.name == PREFIX))


def _recorded(source: SourcePath, files: SourceFiles) -> SourceFile:
    return SourceFile(name=source.name, size_bytes=files.size_bytes(source.path), blake3=files.digest(source.path))


def _refuse(artifact: Artifact, differences: list[str]) -> None:
    if not differences:
        return
    more = len(differences) - MOST_TOLD
    told_of = "; ".join([*differences[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])
    raise ArtifactError(
        f"{artifact.path}: it was made from something else: {told_of}; give the recipe or the checkpoint that it was "
        "built from, with its adapters as they were, or build it again"
    )
