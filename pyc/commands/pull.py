"""`pyc pull`: an artifact from another machine into a file, verified, and from where it was when it is cut off."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import ArtifactPlace
from pyc.commands.sizes import human_bytes

if TYPE_CHECKING:
    from pyc.runtime.artifact.reader import Artifact
    from pyc.runtime.artifact.trust.policy import Policy
    from pyc.runtime.sources.places import Place

_NAME = "model.pyca"


@click.command("pull")
@click.argument("artifact", metavar="URL", type=ArtifactPlace(reads_stdin=True))
@click.option("-o", "--output", metavar="FILE", help="The file to write.  [default: the URL's last part, here]")
@click.option(
    "--trust",
    "--key",
    "trust",
    metavar="KEY|FILE",
    help="Ask for this public key, a line or a file, or by this policy, whatever is trusted here.",
)
@click.option("--allow-unsigned", is_flag=True, help="Check integrity only: no signature or trusted key needed.")
@click.option("--force", is_flag=True, help="Replace a file that is no artifact.")
def command(artifact: "Place", output: str | None, trust: str | None, allow_unsigned: bool, force: bool) -> None:
    """Fetch the artifact at URL (https, http, s3, gs, az; - is standard input) into a file.

    Its signature is checked before anything else is fetched, as `pyc verify` does, and each chunk before it counts.
    The file appears whole or not at all. What was fetched before an interruption stays in .FILE.part, and the next
    `pyc pull` goes on from there.
    """
    from pyc.runtime.artifact.format import MAGIC
    from pyc.runtime.artifact.partial_file import pull_into
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.policy import trust_of
    from pyc.runtime.host.output_file import OutputFile, output_path
    from pyc.runtime.sources.places import Remote

    if trust is not None and allow_unsigned:
        raise click.UsageError("give --trust or --allow-unsigned, not both")
    if not isinstance(artifact, Remote):
        raise click.UsageError(f"{artifact}: a file, expected a URL such as https://host/{_NAME}")
    target = OutputFile(output_path(output or _name_of(artifact)), (), MAGIC, force=force)
    target.check()
    policy = trust_of(trust) if trust is not None else None
    with open_artifact(artifact) as opened:
        signer = _signers(opened, policy, allow_unsigned)
        with _Progress(opened.size_bytes) as progress:
            reused = pull_into(opened, target, progress.advance)
    already = f", {human_bytes(reused)} of them there already" if reused else ""
    click.echo(f"{target.path}: {human_bytes(opened.size_bytes)}{already}, {signer}")


def _signers(opened: "Artifact", policy: "Policy | None", allow_unsigned: bool) -> str:
    """Who signed it, in words. Raises UnsignedArtifactError and UntrustedArtifactError."""
    from pyc.runtime.artifact.trust.decision import require_trusted
    from pyc.runtime.artifact.trust.keys import PublicKey

    if not allow_unsigned:
        good = [signer.key for signer in require_trusted(opened, policy)]
        names = ", ".join(f"{key.fingerprint} {key.comment}".rstrip() for key in good)
        return f"signed by trusted key{'s' if len(good) > 1 else ''} {names}"
    record = opened.signature
    return "not signed" if record is None else f"signed by key {PublicKey(record.public_key).fingerprint}"


def _name_of(place: "Place") -> Path:
    name = str(place).rpartition("/")[2]
    return Path(name if name and str(place) != "standard input" else _NAME)


class _Progress:
    """Says on standard error how much is there: in one line of a terminal, else now and then."""

    LINE_EVERY_S, STATUS_EVERY_S = 10.0, 0.2

    def __init__(self, total_bytes: int) -> None:
        from threading import Lock
        from time import monotonic

        self._total, self._done = total_bytes, 0
        self._clock, self._lock = monotonic, Lock()
        self._began_s = self._shown_s = monotonic()

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        from pyc.commands.status_line import show_status

        show_status("")

    def advance(self, size_bytes: int) -> None:
        """Note bytes that are verified and written; for several threads."""
        from pyc.commands.screen import tell
        from pyc.commands.sizes import human_duration
        from pyc.commands.status_line import show_status

        with self._lock:
            self._done += size_bytes
            now_s, is_terminal = self._clock(), sys.stderr is not None and sys.stderr.isatty()
            if now_s - self._shown_s < (self.STATUS_EVERY_S if is_terminal else self.LINE_EVERY_S):
                return
            self._shown_s = now_s
            rate = self._done / (now_s - self._began_s)
            left = human_duration(max(self._total - self._done, 0) / rate)
            share, size = self._done / self._total, human_bytes(self._total)
            text = f"{share:.0%} of {size}, {human_bytes(int(rate))}/s, {left} left"
        if is_terminal:
            show_status(text)
        else:
            tell(f"pyc: {text}")
