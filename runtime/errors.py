"""The one error tree of pyc, with the exit code of each class.

A message says what, where (pass, tensor, file), what it got, what it expected and how to mend it.
Libraries raise these; the command line prints the message on stderr and leaves with `exit_code`.
"""


class PycError(Exception):
    """Base of every error that pyc raises on purpose."""

    exit_code = 1


class RecipeError(PycError):
    """The recipe (model.yaml) is not valid: unknown key, wrong type, duplicate key, alias."""

    exit_code = 3


class IngestError(PycError):
    """The checkpoint cannot be read: missing shard, truncated file, unsupported architecture."""

    exit_code = 4


class AdapterError(PycError):
    """An adapter does not fit the model, or one of its tensors was not consumed."""

    exit_code = 5


class QuantizeError(PycError):
    """A scheme cannot be applied to a tensor."""

    exit_code = 6


class LowerError(PycError):
    """The graph cannot be lowered or compiled for a target."""

    exit_code = 7


class ArtifactError(PycError):
    """An artifact or a key is malformed, altered, or could not be read or written; or one of the five classes below."""

    exit_code = 8


class MissingArtifactError(ArtifactError):
    """There is no file at the artifact's path."""

    exit_code = 10


class UnsignedArtifactError(ArtifactError):
    """Nobody signed the artifact, so its code does not run."""

    exit_code = 11


class UntrustedArtifactError(ArtifactError):
    """A key signed the artifact that is not trusted here, or is not the one that the caller asks for."""

    exit_code = 12


class TrustError(ArtifactError):
    """Whom this machine trusts cannot be told: its policy, its key store or a file of signatures is at fault."""

    exit_code = 15


class FetchError(ArtifactError):
    """An artifact on another machine cannot be had now: network, server, credentials. Its bytes were not the matter."""

    exit_code = 14


class ClusterError(PycError):
    """The machines that do a build's jobs cannot be had, or were lost. The build's inputs were not the matter."""

    exit_code = 16


class QualityError(PycError):
    """The model would exceed a limit of its recipe's quality gate, so there is no artifact of it."""

    exit_code = 13

    def __init__(self, message: str, *, report: str = "") -> None:
        """`report`: what was measured, as the JSON of `pyc.runtime.measure.quality_report`."""
        super().__init__(message)
        self.report = report


class MissingExtraError(PycError):
    """What was asked for needs an extra of the package that is not installed, such as the compilers."""

    exit_code = 69


class RunError(PycError):
    """An artifact cannot be executed here: wrong CPU, wrong library version, bad input."""

    exit_code = 9

    def __init__(self, message: str, *, prompt: int | None = None) -> None:
        """`prompt`: which of several prompts or texts it is about, from 0; the message begins with it, the cause does
        not."""
        super().__init__(message)
        self.prompt = prompt
