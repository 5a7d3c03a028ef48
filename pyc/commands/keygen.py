"""`pyc keygen`: make a signing key."""

import click


@click.command("keygen")
@click.option("--name", default="default", show_default=True, help="What the recipe's artifact.key calls it.")
def command(name: str) -> None:
    """Make an ed25519 key for signing artifacts, and trust it on this machine.

    A build makes the key "default" by itself when there is none. An existing key is never replaced: that is
    an error, exit code 8. The public key is printed, for others to pass to `pyc trust add`.
    """
    from pyc.runtime.errors import ArtifactError
    from pyc.runtime.trust import create_key, key_path, signing_key

    path = key_path(name)
    if not create_key(name):
        raise ArtifactError(f"{path}: the key exists already; choose another --name, or move the file away")
    click.echo(f"wrote {path}", err=True)
    click.echo(signing_key(name, create=False).public.text())
