"""`pyc keygen`: make a signing key, or show the public half of one."""

from typing import TYPE_CHECKING

import click

from pyc.commands.days import DAY, require_to_come
from pyc.commands.opening import PATH_TEXT
from pyc.commands.screen import tell

if TYPE_CHECKING:
    from datetime import date


@click.command("keygen")
@click.option("--name", default="default", show_default=True, help="What the recipe's artifact.key calls it.")
@click.option(
    "-o", "--output", type=PATH_TEXT, metavar="FILE",
    help="Write the key to this new file instead of this machine's store.",
)
@click.option("--public", is_flag=True, help="Make nothing: print the public half of the key that a build would use.")
@click.option("--key", "file", metavar="FILE", help="With --public: the key in this file.")
@click.option("--expires", type=DAY, metavar="DATE", help="The last day on which the new key counts, as YYYY-MM-DD.")
def command(name: str, output: str | None, public: bool, file: str | None, expires: "date | None") -> None:
    """Make an ed25519 key for signing artifacts, and trust it on this machine.

    A build makes the key "default" by itself when there is none. An existing key is never replaced: that is
    an error, exit code 8. The public key is printed, for others to pass to `pyc trust add`.

    With -o the key goes to a file that only its owner may read, for `pyc build --key`, or for the variables
    PYC_SIGNING_KEY_FILE and PYC_SIGNING_KEY (its text) of a CI job; it is not trusted here.

    With --public and --name, no such variable may be set, nor PYC_SIGNER: both would say which key.
    """
    from pyc.commands.signing_key import require_one_key
    from pyc.runtime.artifact.trust.counting_keys import effect_of_new_key
    from pyc.runtime.artifact.trust.key_sources import choose_key, write_key_file
    from pyc.runtime.artifact.trust.key_store import create_key, key_path, signing_key
    from pyc.runtime.errors import ArtifactError
    from pyc.runtime.host.output_file import output_path

    if file is not None and not public:
        raise click.UsageError("--key goes with --public")
    if output is not None and public:
        raise click.UsageError("--public makes no key, so it does not go with -o; name the key with --key")
    if expires is not None and (public or output is not None):
        raise click.UsageError("--expires is for a new key of this machine's store; others: pyc trust add --expires")
    require_to_come(expires, "--expires")
    if public:
        require_one_key(file)
        key = choose_key(name, file, create=False).key
    elif output is not None:
        path = output_path(output)
        key = write_key_file(path)
        tell(f"wrote {path}, readable by its owner only; not trusted here")
    else:
        path = key_path(name)
        if not create_key(name, expires=expires):
            raise ArtifactError(
                f"{path}: the key exists already; --public prints its public half; "
                "for a new key choose another --name, or move the file away"
            )
        tell(f"wrote {path}")
        key = signing_key(name, create=False)
        if effect := effect_of_new_key(key.public):
            tell(effect)
    click.echo(key.public.text())
