"""Makes a bundle: gathers the files, and writes them as a folder, a tar or an OCI image layout, whole or not at all."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from pyc.compiler.files.staging import StagedFile
from pyc.compiler.files.work_folder import sweep, work_folder
from pyc.models.licence_files import is_licence
from pyc.passes.attest.cyclonedx import cyclonedx
from pyc.passes.attest.facts import Facts, facts_of
from pyc.passes.bundle.files import FOLDER_MODE, BundleFile, checksums
from pyc.passes.bundle.oci import write_layout
from pyc.passes.bundle.wheels import Target, fetch_wheels, licences, pins, requirements, wheel_files
from pyc.passes.driver.conventions import other_conventions
from pyc.passes.export.folder import new_folder, require_room
from pyc.runtime.artifact.format import Program, is_plain_name
from pyc.runtime.artifact.program_only import require_weights
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.trust.decision import Signer, require_trusted
from pyc.runtime.artifact.trust.policy import parse_policy
from pyc.runtime.artifact.trust.signature_file import read_signatures, signature_file, signatures_text
from pyc.runtime.artifact.trust.subjects import artifact_digest
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.output_file import OutputFile
from pyc.runtime.text.json_text import json_text
from pyc.templates.rendering import render, source_text

Form = Literal["dir", "tar", "oci"]
ARTIFACT = "model.pyca"
_PROGRAMS = ("install.sh", "run.sh", "health.sh")
INSTALLER = "install.py"
_INSTALL = (INSTALLER, "check_modules.py", "note_way.py")
_TEXTS = ("pyc.service", "Containerfile", "README.md")
_OF_ALL = frozenset(["asimd"])
"""Features that every CPU of an architecture has, of those that programs ask for."""


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """`form` is what is written. `wheels` is a folder of wheels to take, None: they are fetched. `with_wheels` False
    leaves the runtime out, for machines that have it. `tag` names an OCI layout's manifest."""

    form: Form
    target: Target
    wheels: Path | None = None
    with_wheels: bool = True
    tag: str = "latest"
    force: bool = False


def make_bundle(artifact: Path, output: Path, options: BundleOptions) -> Path:
    """Write a bundle of the artifact, which has to be whole and trusted here; return where it is.

    Raises ArtifactError, and leaves nothing then.
    """
    sweep()
    wheels = [] if options.wheels is None else sorted(options.wheels.glob("*.whl"))
    read = ((str(artifact), "the artifact"), *((str(wheel), "a wheel") for wheel in wheels))
    target = OutputFile(output, sources=read, force=options.force)
    if options.form == "tar":
        target.check()
    else:
        require_room(output)  # before wheels are fetched
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(open_artifact(artifact, mode="pread"))
        signers = require_trusted(opened)
        require_weights(opened.header, opened.path)
        facts = facts_of(opened, artifact)  # verifies all of it, before wheels are fetched
        programs = _programs_for(options.target, opened)
        runtime: list[BundleFile] = []
        if options.with_wheels:
            runtime = _runtime(options, programs, opened, stack)
        files = _files(opened, facts, artifact, signers, options, runtime)
        try:
            if options.form == "tar":
                _write_tar(target, files)
            else:
                with new_folder(output, mode=FOLDER_MODE if options.form == "dir" else None) as folder:
                    if options.form == "dir":
                        _write_folder(folder, files)
                    else:
                        write_layout(folder, files, opened.header, options.tag)
        except OSError as error:
            raise ArtifactError(f"{output}: cannot be written: {error.strerror or error}") from error
    return output


def _runtime(
    options: BundleOptions, programs: tuple[Program, ...], opened: Artifact, stack: contextlib.ExitStack
) -> list[BundleFile]:
    """The wheels, what installs them, their licences, and the requirements that name them."""
    _require_this_runtime(programs, opened)
    versions = pins(options.target, extras_for(programs))
    folder = options.wheels
    if folder is None:
        folder = stack.enter_context(work_folder("wheels"))
        fetch_wheels(folder, options.target, versions)
    wheels = wheel_files(folder, options.target, versions)
    install = [BundleFile(name, source_text(f"bundle/{name}").encode()) for name in _INSTALL]
    return [*install, *wheels, requirements(wheels, versions), *licences(wheels)]


def extras_for(programs: tuple[Program, ...]) -> tuple[str, ...]:
    """The extras of pyc that the runtime needs for programs of its machine.

    It takes the first that runs. A program for CPUs always does that asks for what all have; one that asks for more may
    give way to ONNX Runtime behind it.
    """
    always = (index for index, each in enumerate(programs) if each.backend == "cpu" and set(each.features) <= _OF_ALL)
    tried = programs[: next(always, len(programs))]
    return ("onnx",) if any(each.backend == "onnx" for each in tried) else ()


def _programs_for(target: Target, opened: Artifact) -> tuple[Program, ...]:
    """The programs of the artifact that run on the machine. Raises ArtifactError where none does."""
    programs = opened.header.programs
    fitting = tuple(each for each in programs if each.system == "linux" and each.arch in (target.machine, "any"))
    if not fitting:
        there = ", ".join(sorted({each.arch for each in programs})) or "no machine"
        raise ArtifactError(
            f"{opened.path}: has programs for {there}, and none for {target.machine}, where the bundle is to run; name "
            "another with --machine, or build the artifact for this one (targets of the recipe)"
        )
    return fitting


def _require_this_runtime(programs: tuple[Program, ...], opened: Artifact) -> None:
    """Raise ArtifactError for a program of an older or newer pyc, which the runtime in the bundle would refuse."""
    if others := other_conventions(programs):
        raise ArtifactError(f"{opened.path}: {others[0].told()}; build the artifact again, or bundle it with that pyc")


def _files(
    opened: Artifact,
    facts: Facts,
    path: Path,
    signers: tuple[Signer, ...],
    options: BundleOptions,
    runtime: list[BundleFile],
) -> list[BundleFile]:
    model = opened.header.model
    values = {
        "artifact": ARTIFACT,
        "architecture": model.architecture,
        "command": "run" if model.kind == "decoder" else "embed",
        "probe": "-p x --max-tokens 1" if model.kind == "decoder" else "x",
        "digest": artifact_digest(opened.prelude.header_sha256),
        "size_mb": f"{opened.size_bytes / 1e6:,.1f}",
        "keys": [json_text(signer.key.text(), ensure_ascii=False) for signer in signers],
        "signers": [json_text(signer.key.fingerprint) for signer in signers],
        "threshold": len(signers),
        "python": options.target.python,
        "machine": options.target.machine,
        "has_wheels": bool(runtime),
        "installer_sha256": next((file.sha256() for file in runtime if file.name == INSTALLER), ""),
    }
    files = [BundleFile(ARTIFACT, opened)]
    if records := read_signatures(path):
        files.append(BundleFile(signature_file(Path(ARTIFACT)).name, signatures_text(records).encode()))
    policy = render("bundle/trust.toml.j2", values)
    parse_policy(policy, "trust.toml")
    files.append(BundleFile("trust.toml", policy.encode()))
    files += [BundleFile(name, render(f"bundle/{name}.j2", values).encode(), True) for name in _PROGRAMS]
    files += [BundleFile(name, render(f"bundle/{name}.j2", values).encode()) for name in _TEXTS]
    for blob in opened.header.blobs:
        if is_licence(blob.name):
            files.append(BundleFile(f"licences/model/{blob.name}", opened.blob(blob.name)))
    bill = json_text(cyclonedx(facts), indent=2) + "\n"
    files.append(BundleFile("sbom.cdx.json", bill.encode()))
    files += runtime
    return [*files, checksums(files)]


def _write_folder(folder: Path, files: list[BundleFile]) -> None:
    """Write the files for everybody to read, whatever the umask: who runs them is seldom who made them."""
    for file in files:
        place = folder / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "wb") as target:
            file.write(target)
        place.chmod(file.mode)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            inner.chmod(FOLDER_MODE)


def _write_tar(target: OutputFile, files: list[BundleFile]) -> None:
    """Write a tar whose bytes depend on the files alone: no times, no users."""
    root = target.path.name.removesuffix(".tar")
    root = root if is_plain_name(root) else "bundle"  # of -o .tar the members would be absolute
    with StagedFile(target.path, allowed=target.check, is_artifact=True) as staged:
        stream = cast(BinaryIO, _Writable(staged.write))
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for file in sorted(files, key=lambda file: file.name):
                entry = tarfile.TarInfo(f"{root}/{file.name}")
                entry.size, entry.mode = file.size_bytes, file.mode
                with file.open() as source:
                    archive.addfile(entry, source)
        staged.publish()


@dataclass(frozen=True, slots=True)
class _Writable:
    """What tarfile asks of a stream."""

    write: Callable[[bytes], None]
