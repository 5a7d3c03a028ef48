"""`pyc push`: an artifact, or a bundle as an OCI image layout, into a registry."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import ARTIFACT_FILE
from pyc.commands.screen import say
from pyc.commands.signers import allow_unsigned_option, require_one_answer, signers_of, whose_signature_option
from pyc.commands.transfer_progress import TransferProgress
from pyc.runtime.host.sizes import human_bytes

if TYPE_CHECKING:
    from pyc.passes.bundle.push import Load
    from pyc.runtime.artifact.trust.policy import Policy


@click.command("push")
@click.argument("artifact", type=ARTIFACT_FILE)
@click.argument("url", metavar="oci://HOST/REPOSITORY:TAG")
@whose_signature_option
@allow_unsigned_option
def command(artifact: Path, url: str, trust: str | None, allow_unsigned: bool) -> None:
    """Send ARTIFACT to an OCI registry, where `pyc pull` and `pyc run` take it from.

    ARTIFACT is a file, whose .sig goes with it, or a folder that `pyc bundle --format oci` wrote. Before anything is
    sent every byte is checked, and who signed the file, or each artifact in the folder, by its name in there. What the
    registry has already is not sent again, and what breaks off goes on where it did. The tag is set last: until then it
    means what it meant before.

    Prints the digest, by which the same bytes can be had whatever becomes of the tag.
    """
    from pyc.passes.bundle.push import push, pushable
    from pyc.runtime.sources.places import REGISTRY, scheme_of, shown_url

    require_one_answer(trust, allow_unsigned)
    if scheme_of(url) != REGISTRY:
        raise click.BadParameter(
            f"got {shown_url(url)!r}, expected oci://host/repository:tag", param_hint="oci://HOST/REPOSITORY:TAG"
        )
    reference = pushable(url)
    with ExitStack() as stack:
        load, said = _load(artifact, reference.version, trust, allow_unsigned, stack)
        with TransferProgress(load.size_bytes) as progress:
            pushed = push(load, url, progress.advance)
    host = reference.base.partition("://")[2]
    say(f"oci://{host}/{reference.repository}@{pushed.digest}")
    there = pushed.size_bytes - pushed.sent_bytes
    already = f", {human_bytes(there)} of them there already" if there else ""
    say(f"  tag {reference.version}, {human_bytes(pushed.size_bytes)}{already}{said}")
    if pushed.former and pushed.former != pushed.digest:
        say(f"  the tag was {pushed.former} before")


def _load(
    artifact: Path, tag: str, trust: str | None, allow_unsigned: bool, stack: ExitStack
) -> "tuple[Load, str]":
    """What is sent, and who signed it, in words. Raises ArtifactError for what is not whole or not trusted."""
    from pyc.commands.opening import keep_blas_small
    from pyc.passes.bundle.push import load_of_artifact, load_of_layout
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.policy import trust_of

    keep_blas_small()
    policy = trust_of(trust) if trust is not None else None
    if os.path.isfile(artifact / "index.json"):  # also where it is no name that a file can have
        load = load_of_layout(artifact, tag)
        return load, f", {_signers_in(artifact, load, policy, allow_unsigned)}"
    opened = stack.enter_context(open_artifact(artifact, mode="pread"))
    signer = signers_of(opened, policy, allow_unsigned)
    return load_of_artifact(artifact, opened), f", {signer}"


def _signers_in(layout: Path, load: "Load", policy: "Policy | None", allow_unsigned: bool) -> str:
    """Who signed each artifact in a layout, in words. Raises as `signers_of`, and ArtifactError where the user asks for
    a signature and there is nothing that has one."""
    from pyc.runtime.errors import ArtifactError

    if not load.artifacts and policy is not None:
        raise ArtifactError(
            f"{layout}: has no artifact of pyc among its layers, expected one that --trust can be asked of; push a "
            "folder that `pyc bundle --format oci` wrote, or leave --trust out"
        )
    signers = [signers_of(each, policy, allow_unsigned) for each in load.artifacts]  # names may be there more than once
    if len(signers) < 2:
        return next(iter(signers), "no artifact of pyc in it, so no signature was asked for")
    return "; ".join(f"{each.path.name} {signer}" for each, signer in zip(load.artifacts, signers, strict=True))
