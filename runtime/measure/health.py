"""What of this machine matters to a run, checked: CPU, threads, memory, huge pages, keys, versions, space."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyc.runtime.artifact.trust.counting_keys import why_no_signature
from pyc.runtime.artifact.trust.key_store import list_trusted
from pyc.runtime.artifact.trust.keys import read_signing_key
from pyc.runtime.artifact.trust.policy import DEFAULT, machine_policy
from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.cpu.features import cpu_model
from pyc.runtime.executors.cpu.threads import default_threads, usable_cpus
from pyc.runtime.host.control_groups import memory_limit_bytes
from pyc.runtime.host.home import NO_HOME, find_home_directory, nearest_existing
from pyc.runtime.host.machine import describe_machine, memory_bytes, physical_memory_bytes
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.sizes import human_bytes

Verdict = Literal["ok", "warn", "fail"]
LEAST_FREE_BYTES = 1 << 30
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
RUNTIME_PACKAGES = ("pyc-compiler", "numpy", "tokenizers", "jinja2", "msgspec", "blake3", "pynacl")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report: what was looked at, how it is, what was found, and what to do unless it is `ok`."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def check_machine(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield what is found of the CPU, its threads, memory and huge pages; `root` is where /proc and /sys are."""
    machine = describe_machine()
    yield Finding("cpu", "ok", f"{cpu_model()}, {machine.arch}, {machine.kernel}")
    cpus, threads = usable_cpus(), default_threads(root)
    reason = "" if threads == cpus else "; one a core, and within the control group's quota"
    yield Finding("threads", "ok", f"{threads} of {cpus} CPUs{reason}")
    limited = "; what the control group allows" if memory_limit_bytes(root) < physical_memory_bytes() else ""
    yield Finding("memory", "ok", f"{human_bytes(memory_bytes(root))}{limited}")
    try:
        text = (root / HUGE_PAGES.relative_to("/")).read_text()
    except unless_signalled(OSError):
        yield Finding("huge pages", "ok", "this kernel has no setting")
        return
    chosen = text.partition("[")[2].partition("]")[0] or text.strip()
    if chosen == "never":
        remedy = f"weights are read faster with them: echo madvise | sudo tee {HUGE_PAGES}"
        yield Finding("huge pages", "warn", chosen, remedy)
    else:
        yield Finding("huge pages", "ok", chosen)


def check_keys() -> Iterator[Finding]:
    """Yield what is found of the trust policy, and of the key store: where it is, its private keys, and the keys that
    are trusted. No store is needed where the policy holds the keys."""
    policy = DEFAULT
    try:
        policy = machine_policy()
    except ArtifactError as error:
        yield Finding("trust policy", "fail", str(error), "no artifact runs until that is mended")
    else:
        if policy.origin:
            yield Finding("trust policy", "ok", policy.origin)
    home = find_home_directory()
    if home is not None:
        existing, problem = nearest_existing(home)
        if problem:
            yield Finding("key store", "fail", f"{existing} {problem}", "set PYC_HOME to a folder")
            return
        if os.access(existing, os.W_OK | os.X_OK):
            yield Finding("key store", "ok", str(home) + ("" if home.exists() else ", made at first use"))
        else:
            remedy = "keys cannot be made or trusted there; set PYC_HOME to a folder that can be written"
            yield Finding("key store", "warn", f"{home} cannot be written", remedy)
        yield from _private_keys(home)
    elif policy.keys is not None:
        yield Finding("key store", "ok", "none; the keys of the policy are trusted")
    else:
        yield Finding("key store", "fail", "none", NO_HOME)
        return
    try:
        trusted = list_trusted() if policy.keys is None else policy.keys
        refusals = {key.fingerprint: why_no_signature(key.raw, policy) for key in trusted}
    except unless_signalled(ArtifactError, OSError) as error:
        remedy = "mend what it names: until then some of the trusted keys, or all, count for nothing"
        yield Finding("trusted keys", "fail", str(error), remedy)
    else:
        texts = [f"{key}{f' ({refusal})' if refusal else ''}" for key, refusal in refusals.items()]
        yield Finding("trusted keys", "ok", ", ".join(texts) or "none")


def check_versions() -> Iterator[Finding]:
    """Yield the versions of Python and of the packages that a run needs."""
    yield Finding("python", "ok", platform.python_version())
    for name in RUNTIME_PACKAGES:
        version = version_of(name)
        if version is None:
            yield Finding(name, "fail", "not installed", "run: pip install --force-reinstall pyc-compiler")
        else:
            yield Finding(name, "ok", version)


def check_space(name: str, folder: Path, setting: str) -> Finding:
    """Return how much space is free where `folder` is or would be; `setting` is the variable that moves it."""
    existing = next((path for path in (folder, *folder.parents) if os.path.isdir(path)), Path("/"))
    try:
        usage = shutil.disk_usage(existing)
    except unless_signalled(OSError) as error:
        return Finding(name, "warn", f"{existing}: {error.strerror}", f"set {setting} to another folder")
    if not usage.total:  # as of /proc
        found = f"{existing}: a file system that keeps no files"
        return Finding(name, "warn", found, f"set {setting} to another folder")
    free = usage.free
    verdict: Verdict = "ok" if free >= LEAST_FREE_BYTES else "warn"
    return Finding(name, verdict, f"{human_bytes(free)} free in {existing}", f"free some space, or set {setting}")


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _private_keys(home: Path) -> Iterator[Finding]:
    try:
        paths = sorted((home / "keys").glob("*.pem"))
    except unless_signalled(OSError) as error:
        yield Finding("signing keys", "fail", str(error), f"give yourself access: chmod -R u+rwX '{home}'")
        return
    names = []
    for path in paths:
        try:
            read_signing_key(path)
        except unless_signalled(ArtifactError, OSError) as error:
            yield Finding(f"key {path.stem}", "fail", str(error), "a build cannot sign with it until that is mended")
        else:
            names.append(path.stem)
    yield Finding("signing keys", "ok", ", ".join(names) or "none; a build or `pyc keygen` makes one")
