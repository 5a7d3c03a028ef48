"""The one key that a command which signs, or shows a key, was told to take."""

import os

import click
from click.core import ParameterSource


def require_one_key(file: str | None) -> None:
    """Raise click.UsageError where --name is given, and --key or a variable of the environment names a key as well.

    Without it, the key of --key, and then of a variable, goes before the one that --name is by default.
    """
    from pyc.runtime.artifact.trust.external_signer import VARIABLE as SIGNER_VARIABLE
    from pyc.runtime.artifact.trust.key_sources import FILE_VARIABLE, VARIABLE

    if click.get_current_context().get_parameter_source("name") is not ParameterSource.COMMANDLINE:
        return
    if file is not None:
        raise click.UsageError("--name and --key both say which key; leave one of them out")
    for variable in (VARIABLE, FILE_VARIABLE, SIGNER_VARIABLE):
        if variable in os.environ:
            raise click.UsageError(
                f"--name and ${variable} both say which key; leave --name out, or unset {variable}, as with: "
                f"env -u {variable} pyc ..."
            )
