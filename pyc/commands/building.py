"""`pyc.build`: a build as the command does it, with its progress on standard error when asked."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from pyc.runtime.host.whole_imports import import_whole

if TYPE_CHECKING:
    from pyc.compiler.recipe.types import Recipe
    from pyc.passes.build_events import BuildEvent
    from pyc.passes.driver.build import BuildResult


def build(
    recipe: "str | os.PathLike[str] | Mapping[str, object] | Recipe",
    *,
    output: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    jobs: str | None = None,
    use_cache: bool = True,
    force: bool = False,
    download: bool = False,
    key: str | os.PathLike[str] | None = None,
    dump_ir: str | os.PathLike[str] | None = None,
    program_only: bool = False,
    progress: "Callable[[BuildEvent], None] | bool | None" = None,
) -> "BuildResult":
    """Build the artifact that a recipe describes: a path to model.yaml, its contents as a dict, or a Recipe.

    The path of a checkpoint's folder, or a hub id, is built with the recipe that `pyc init` would write.

    - `output` is the file to write instead of the recipe's `artifact.path`. What is there is replaced when it is an
      artifact, or with `force`; a file that the build reads never is.
    - `overrides` are "key=value", as for --set.
    - `workers` threads evaluate weights; without it one for each CPU, within the quota of a container.
    - `jobs` has a Ray cluster evaluate them: "ray" (this machine's) or "ray://HOST:PORT"; `workers` jobs at once.
    - `download` fetches what the local cache lacks of hub models; without it no network is used.
    - `key` is a key file to sign with; without it, the first that `pyc.runtime.artifact.trust.key_sources` lists.
    - `dump_ir` is a folder that gets the model as text after each pass, in numbered files.
    - `program_only` writes compiled code without weights, of which `attach` makes artifacts; no weight is read.
    - `progress` is told how far the build is; True shows it on standard error, as the command does. What a function
      raises ends the build and arrives as it is. Paths of arguments count from the folder at the beginning, whatever
      the function does; `path` of the result is absolute then.

    Raises RecipeError, IngestError, AdapterError, QuantizeError, LowerError or ArtifactError; QualityError where the
    recipe's gate refuses the artifact; ClusterError where the Ray cluster of `jobs` fails; MissingExtraError where the
    compilers are not installed. All are PycError and importable from `pyc`; then nothing is left behind, and a former
    artifact is as it was.
    """

    if callable(progress):
        recipe = _from_here(recipe, only_if_there=True)
        output, key, dump_ir = _from_here(output), _from_here(key), _from_here(dump_ir)

    def run(report: "Callable[[BuildEvent], None] | None") -> "BuildResult":
        import_whole("pyc.passes.driver.build")
        from pyc.passes.driver.build import build as build_quietly
        from pyc.passes.driver.build_arguments import check_flags

        check_flags(program_only=program_only)
        if program_only:
            from pyc.passes.driver.build_programs import build_programs

            return build_programs(
                recipe,
                output=output,
                overrides=overrides,
                use_cache=use_cache,
                force=force,
                download=download,
                key=key,
                dump_ir=dump_ir,
                progress=report,
            )
        return build_quietly(
            recipe,
            output=output,
            overrides=overrides,
            workers=workers,
            jobs=jobs,
            use_cache=use_cache,
            force=force,
            download=download,
            key=key,
            dump_ir=dump_ir,
            progress=report,
        )

    return _reported(run, progress)


def attach(
    program: "str | os.PathLike[str]",
    source: "str | os.PathLike[str] | Mapping[str, object] | Recipe",
    *,
    output: "str | os.PathLike[str] | None" = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    use_cache: bool = True,
    force: bool = False,
    download: bool = False,
    key: "str | os.PathLike[str] | None" = None,
    trust: "str | os.PathLike[str]" = "required",
    progress: "Callable[[BuildEvent], None] | bool | None" = None,
) -> "BuildResult":
    """Build what a recipe describes with the compiled code of the artifact `program`; no compiler is needed.

    `program`, with weights or without, has to be signed by a trusted key, or as `trust` says (see `load`). A
    checkpoint's folder or a hub id as `source` is built with the recipe of `program`, without its adapters. Arguments
    beside, and errors, are those of `build`; a LowerError says what differs where the programs were compiled from
    another module.
    """

    if callable(progress):
        program, source = _from_here(program), _from_here(source, only_if_there=True)
        output, key = _from_here(output), _from_here(key)

    def run(report: "Callable[[BuildEvent], None] | None") -> "BuildResult":
        import_whole("pyc.passes.driver.attach")
        from pyc.passes.driver.attach import attach as attach_quietly

        return attach_quietly(
            program,
            source,
            output=output,
            overrides=overrides,
            workers=workers,
            use_cache=use_cache,
            force=force,
            download=download,
            key=key,
            trust=trust,
            progress=report,
        )

    return _reported(run, progress)


_Argument = TypeVar("_Argument")


def _from_here(argument: _Argument, *, only_if_there: bool = False) -> _Argument:
    """A relative path as an absolute one; what is no path is as it was, and a hub id, with `only_if_there`."""
    if not isinstance(argument, (str, os.PathLike)):
        return argument
    try:
        text = os.fspath(cast("str | os.PathLike[str]", argument))
        if not isinstance(text, str) or text in ("", "-") or (only_if_there and not os.path.exists(text)):
            return argument
        found = os.path.join(os.getcwd(), text)
    except (TypeError, ValueError, OSError):  # what is wrong with it is said where it is checked
        return argument
    return cast("_Argument", found if isinstance(argument, str) else Path(found))


class _Stopped(BaseException):
    """Carries a StopIteration of a function, which ends the generators that it comes through, or is an error there."""

    def __init__(self, reason: StopIteration) -> None:
        self.reason = reason


def _carrying(progress: "Callable[[BuildEvent], None]") -> "Callable[[BuildEvent], None]":
    def report(event: "BuildEvent") -> None:
        try:
            progress(event)
        except StopIteration as reason:
            raise _Stopped(reason) from None

    return report


def _reported(
    run: "Callable[[Callable[[BuildEvent], None] | None], BuildResult]",
    progress: "Callable[[BuildEvent], None] | bool | None",
) -> "BuildResult":
    from pyc.runtime.host.extras import naming_missing_extras

    with naming_missing_extras():
        if progress is True:
            from pyc.commands.progress import report_progress

            with report_progress() as report:
                return run(report)
        try:
            return run(_carrying(progress) if callable(progress) else None if progress is False else progress)
        except _Stopped as stopped:
            raise stopped.reason from None
