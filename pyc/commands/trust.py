"""`pyc trust`: whose artifacts may run on this machine."""

import json
from pathlib import Path

import click


@click.group("trust")
def command() -> None:
    """List, add or remove the keys whose artifacts may run here."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_keys(as_json: bool) -> None:
    """Print every trusted key: its fingerprint, then the key itself.

    Files that do not count, since they are damaged or others may write to them, are named on standard error, and the
    exit code is then 8.
    """
    from pyc.runtime.artifact.trust import check_store
    from pyc.runtime.errors import ArtifactError

    keys, problems = check_store()
    if as_json:
        rows = [
            {"fingerprint": key.fingerprint, "public_key": key.text(), "comment": key.comment} for key in keys
        ]
        click.echo(json.dumps(rows))
    else:
        for key in keys:
            click.echo(f"{key.fingerprint}  {key.text()}")
    if problems:
        raise ArtifactError("; ".join(problems))


@command.command("add")
@click.argument("key")
def add_key(key: str) -> None:
    """Trust KEY: the line `pyc-ed25519 <base64> <comment>`, or a file that holds it.

    Artifacts signed by it may then run code on this machine.
    """
    from pyc.runtime.artifact.trust import KEY_TYPE, add_trusted, parse_public_key, read_public_key

    public = parse_public_key(key) if key.startswith(f"{KEY_TYPE} ") else read_public_key(Path(key))
    add_trusted(public)
    click.echo(f"trusted {public.fingerprint} {public.comment}".rstrip())


@command.command("remove")
@click.argument("fingerprint")
def remove_key(fingerprint: str) -> None:
    """Trust the key with this FINGERPRINT (16 hex digits) no longer."""
    from pyc.runtime.artifact.trust import remove_trusted

    removed = remove_trusted(fingerprint)
    click.echo(f"removed {removed.fingerprint} {removed.comment}".rstrip())
