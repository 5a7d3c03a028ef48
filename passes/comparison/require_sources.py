"""Require that sources are those that an artifact was made from, for what compares its matrices with them.

The checkpoint, its adapters and how these were merged have to be what the artifact's provenance says, as
`check_artifact` compares them. The names of the adapters' folders do not count: an adapter that was renamed, copied or
downloaded again is the same where its files are. How matrices were rounded may be another matter: files of a
calibration are required where they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import takewhile

import msgspec

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import SourcePath
from pyc.compiler.manager import record_of
from pyc.compiler.schemes import KEEP_CODES, KEEP_TYPES
from pyc.passes.adapters.compute_prefix import PREFIX, prefix_records
from pyc.passes.adapters.fuse_merged import FuseMerged
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.comparison.changes import Change, told
from pyc.passes.comparison.compare_artifacts import provenance_changes
from pyc.passes.driver.conventions import other_conventions
from pyc.passes.mixed_precision.scheme_problem import Ingested
from pyc.passes.pipeline import fuse_passes
from pyc.runtime.artifact.format import PassRecord, Provenance, SourceFile
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError

MOST_BYTES = 1 << 30
"""No file of a calibration is larger."""
MOST_TOLD = 3
"""Differences that an error names."""


def require_model(artifact: Artifact, ingested: Ingested, calibration: Collection[str], files: SourceFiles) -> None:
    """Raise ArtifactError unless the artifact was made from a model and adapters that are merged in the same way.

    `calibration` are the names of the files of its calibration, which are none of the model's.
    """
    made_of = artifact.header.provenance
    before = Provenance(
        recipe="",
        sources=tuple(source for source in made_of.sources if source.name not in calibration),
        tools=(),
        passes=_merging(made_of.passes),
    )
    after = _provenance(ingested, files)
    groups = provenance_changes(before, after)
    renamed = _with_recorded_names(before, ingested, files) if groups["passes"] or groups["sources"] else None
    if renamed is not None:
        folders = {name for each in before.passes for name in _adapters_of(each)}
        of_model = tuple(each for each in before.sources if _folder(each.name) not in folders)
        before = Provenance("", of_model, (), before.passes)
        after = _provenance(renamed, files, has_adapters=False)
        groups = provenance_changes(before, after)
    is_merged = any(each.name == FuseMerged.name for each in (*before.passes, *after.passes))
    passes = [told("passes", change) if is_merged else _told_of_adapter(change) for change in groups["passes"]]
    if passes and _is_recorded_otherwise(made_of, groups["passes"]):
        if not groups["sources"]:
            said = "".join(f" ({other.recorded})" for other in other_conventions(artifact.header.programs)[:1])
            raise ArtifactError(
                f"{artifact.path}: another pyc built it{said}, whose passes are not those of this one: "
                f"{_listed(passes)}; report it with the pyc that built it, or build it again with this one"
            )
        passes = []  # what was recorded otherwise says nothing of what is given
    _refuse(artifact, [*passes, *(told("sources", change) for change in groups["sources"])])


def require_files(
    artifact: Artifact, sources: Iterable[SourcePath], files: SourceFiles, calibration: Collection[str]
) -> None:
    """Raise ArtifactError unless the artifact was made from these files, which may be some of many.

    `calibration` are the names of those that it was made from, for who gives one of another name.

    The artifact may have named them: one of another size than it records is not read, nor one of more than MOST_BYTES,
    and of what was not recorded nothing is told.
    """
    recorded = artifact.header.provenance.sources
    wanted = tuple(sources)
    others = set(calibration) - {source.name for source in wanted}
    for source in wanted:
        of_name = tuple(each for each in recorded if each.name == source.name)
        candidates = of_name or tuple(each for each in recorded if each.name in others)
        names = ", ".join(dict.fromkeys(each.name for each in candidates)) or source.name
        try:
            size_bytes = files.size_bytes(source.path)
        except FileNotFoundError as error:
            raise ArtifactError(
                f"{artifact.path}: it was made from {names}, and there is no file {source.path}; give the recipe "
                "that it was built from, which says where that file is"
            ) from error
        except OSError as error:
            raise ArtifactError(
                f"{artifact.path}: it was made from {names}, and {source.path} cannot be read: "
                f"{error.strerror or 'it is not a regular file'}; give the recipe that it was built from"
            ) from error
        is_of_size = size_bytes <= MOST_BYTES and size_bytes in {each.size_bytes for each in candidates}
        content = _content(_recorded(source, files)) if is_of_size else None
        same = next((each for each in candidates if _content(each) == content), None)
        if same is None:
            there = " or ".join(f"{_shown_as(each, source)}{_told_content(each)}" for each in candidates) or "nothing"
            _refuse(artifact, [f"sources {source.name}: {there} in the artifact, and another file at {source.path}"])
        elif not of_name:
            raise ArtifactError(
                f"{artifact.path}: it was made from {same.name}, and {source.path} has the same content by another "
                f"name; rename or copy it to {_base_name(same.name)}, and give a recipe that names that"
            )


def require_tokens(artifact: Artifact, given: Iterable[PassRecord]) -> None:
    """Raise ArtifactError unless its calibration read the tokens that these records of one say, where it has a record.

    The files may be the same and the tokens not: another tokenizer reads a text otherwise.
    """
    recorded = {each.name: _options(each) for each in artifact.header.provenance.passes}
    for record in given:
        before, after = recorded.get(record.name, {}), _options(record)
        for key in ("tokens", "window", "text"):
            if key in before and before[key] != after.get(key):
                raise ArtifactError(
                    f"{artifact.path}: it was calibrated by other tokens than are read now: {key} {before[key]} in the "
                    f"artifact, {after.get(key)} now; report it with the pyc that built it, or build it again"
                )


def _is_recorded_otherwise(made_of: Provenance, changes: Iterable[Change]) -> bool:
    """Whether another version of pyc made the records: a pass has another version, or no record says where the passes
    before the schemes end."""
    ends = {AssignSchemes.name, KEEP_CODES, KEEP_TYPES}
    return ends.isdisjoint(each.name for each in made_of.passes) or any(
        change.before and change.after and _version(change.before) != _version(change.after) for change in changes
    )


def _version(record: str) -> str:
    return record.partition(" {")[0]


def _merging(passes: Iterable[PassRecord]) -> tuple[PassRecord, ...]:
    """The records of what adapters have done: of passes before weights get their schemes, and of virtual tokens."""
    every = tuple(passes)
    fused = takewhile(lambda each: each.name not in (KEEP_CODES, KEEP_TYPES, AssignSchemes.name), every)
    return (*fused, *(each for each in every if each.name == PREFIX))


def _provenance(ingested: Ingested, files: SourceFiles, *, has_adapters: bool = True) -> Provenance:
    """Return what a build would record of a model and its adapters; of their files only where it `has_adapters`."""
    adapters = dict.fromkeys(source for adapter, _ in ingested.adapters for source in adapter.sources)
    read = dict.fromkeys((*ingested.module.sources, *adapters))
    passes = (record_of(step) for step in fuse_passes(ingested.recipe, ingested.adapters))
    return Provenance(
        recipe="",
        sources=tuple(_recorded(source, files) for source in read if has_adapters or source not in adapters),
        tools=(),
        passes=(*passes, *prefix_records(ingested.adapters)),
    )


def _with_recorded_names(before: Provenance, ingested: Ingested, files: SourceFiles) -> Ingested | None:
    """Return the model with its adapters called as the artifact's are, which have the same files one by one.

    None where they have not, or where the records do not say which files an adapter had.
    """
    names = [name for each in before.passes for name in _adapters_of(each)]
    # Virtual tokens are recorded behind the passes of the others.
    order = sorted(range(len(ingested.adapters)), key=lambda place: ingested.adapters[place][0].virtual is not None)
    if len(names) != len(order):
        return None
    adapters = list(ingested.adapters)
    for index, (name, place) in enumerate(zip(names, order, strict=True)):
        adapter, weight = adapters[place]
        recorded: dict[str, list[tuple[int, str]]] = {}
        for source in before.sources:
            if _folder(source.name) == name:
                recorded.setdefault(_base_name(source.name), []).append(_content(source))
        given = {_base_name(each.name): _content(_recorded(each, files)) for each in adapter.sources}
        if recorded.keys() != given.keys():
            return None
        for base, contents in recorded.items():
            # Folders of the same name have an entry each, a folder that is named twice may have one.
            if len(contents) not in (1, names.count(name)):
                return None
            if given[base] != contents[names[:index].count(name) if len(contents) > 1 else 0]:
                return None
        adapters[place] = (replace(adapter, name=name), weight)
    return replace(ingested, adapters=tuple(adapters))


def _adapters_of(record: PassRecord) -> list[str]:
    """Return the names of the adapters that a record is of."""
    adapter = _options(record).get("adapter")
    if not isinstance(adapter, str):
        return []
    return adapter.split(", ") if record.name == FuseMerged.name else [adapter]


def _options(record: PassRecord) -> dict[str, object]:
    """Return the options of a pass; none of a record that has another form."""
    try:
        return msgspec.json.decode(record.options, type=dict[str, object])
    except (ValueError, RecursionError):
        return {}


def _folder(name: str) -> str | None:
    """The folder in a file's name as provenance has it; None for a file of the model."""
    folder, slash, _ = name.rpartition("/")
    return folder if slash else None


def _base_name(name: str) -> str:
    return name.rpartition("/")[2]


def _shown_as(recorded: SourceFile, source: SourcePath) -> str:
    """Return the recorded name of a file where it is not that of the given one, which has been told."""
    return "" if recorded.name == source.name else f"{recorded.name} of "


def _told_content(source: SourceFile) -> str:
    return f"{source.size_bytes:,} bytes, {source.blake3[:12]}"


def _content(source: SourceFile) -> tuple[int, str]:
    return source.size_bytes, source.blake3


def _told_of_adapter(change: Change) -> str:
    """Return a change of the record of one adapter as a sentence."""
    record = change.before or change.after or ""
    names = _adapters_of(PassRecord(change.name, 0, record[record.find("{") :]))
    if len(names) != 1 or (change.before is not None and change.after is not None):
        return told("passes", change)
    if change.before is None:
        return f"the adapter {names[0]!r} ({change.name}) is not in the artifact"
    return f"the adapter {names[0]!r} ({change.name}) is in the artifact, and not in what was given"


def _recorded(source: SourcePath, files: SourceFiles) -> SourceFile:
    return SourceFile(name=source.name, size_bytes=files.size_bytes(source.path), blake3=files.digest(source.path))


def _refuse(artifact: Artifact, differences: list[str]) -> None:
    if not differences:
        return
    raise ArtifactError(
        f"{artifact.path}: it was made from something else: {_listed(differences)}; give the recipe or the checkpoint "
        "that it was built from, with its adapters as they were, or build it again"
    )


def _listed(differences: list[str]) -> str:
    more = len(differences) - MOST_TOLD
    return "; ".join([*differences[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])
