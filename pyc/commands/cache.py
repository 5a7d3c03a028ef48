"""`pyc cache`: what the cache of builds and of chunks holds, and making it smaller."""

import errno
from pathlib import Path

import click

from pyc.commands.screen import say, say_json
from pyc.runtime.host.sizes import EXPECTED, human_bytes, parse_size
from pyc.runtime.text.counted import counted


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """A number of bytes: 2000000000, 2GB or 1.5GiB."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes; fails as click's types do."""
        if isinstance(value, int):
            return value
        size_bytes = parse_size(str(value))
        if size_bytes is None:
            self.fail(f"{value!r} is not {EXPECTED}", param, ctx)
        return size_bytes


@click.group("cache", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the sizes as JSON.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show the cache: its folder, what builds and artifacts from other machines left in it, and its size.

    Losing it costs time, never correctness. $PYC_CACHE_DIR moves it, $PYC_CACHE_BYTES limits it (10GB).
    """
    if context.invoked_subcommand is not None:
        return
    from pyc.compiler.files.work_folder import leftovers
    from pyc.runtime.host.cache_folder import limit_bytes, measure

    folder = _folder()
    size, limit = measure(folder), limit_bytes()
    left = size.leftovers + len(leftovers())
    if as_json:
        document = {
            "folder": str(folder),
            "entries": size.entries,
            "entry_bytes": size.entry_bytes,
            "chunks": size.chunks,
            "chunk_bytes": size.chunk_bytes,
            "limit_bytes": limit,
            "zig_bytes": size.zig_bytes,
            "leftovers": left,
        }
        say_json(document)
        return
    say(f"folder     {folder}")
    total = human_bytes(size.entry_bytes + size.chunk_bytes)
    say(f"entries    {size.entries} of builds, {human_bytes(size.entry_bytes)}")
    say(f"chunks     {size.chunks} of artifacts from other machines, {human_bytes(size.chunk_bytes)}")
    say(f"together   {total} of at most {human_bytes(limit)}")
    say(f"zig        {human_bytes(size.zig_bytes)}")
    say(f"leftovers  {left} of processes that were killed")


@command.command("prune", short_help="Remove what was not used for longest, and leftovers.")
@click.option("--max-size", type=Size(), metavar="SIZE", help="Keep the entries used last, up to this size (2GB).")
@click.option("--all", "everything", is_flag=True, help="Remove every entry, and zig's own cache.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prune_cache(max_size: int | None, everything: bool, as_json: bool) -> None:
    """Remove the least recently used entries and chunks, and what killed processes left.

    Without an option down to the limit that the cache has anyway. Builds that run meanwhile are not disturbed.
    """
    import shutil

    from pyc.compiler.files.work_folder import sweep
    from pyc.runtime.host.cache_folder import limit_bytes, measure, prune, sweep_staged, zig_caches

    if everything and max_size is not None:
        raise click.UsageError("--all and --max-size exclude each other")
    folder = _folder()
    leftovers = sweep_staged(folder) + sweep()
    limit = 0 if everything else limit_bytes() if max_size is None else max_size
    pruned = prune(folder, limit)
    entries, removed_bytes = pruned.entries, pruned.dropped_bytes
    if everything:
        before = measure(folder).zig_bytes
        for zig in zig_caches(folder):
            shutil.rmtree(zig, ignore_errors=True)
        removed_bytes += before - measure(folder).zig_bytes
    left = measure(folder)
    kept_bytes = left.entry_bytes + left.chunk_bytes
    if pruned.kept_bytes > limit:
        raise OSError(errno.EACCES, "entries cannot be removed; is the folder read-only?", str(folder))
    if as_json:
        document = {"entries": entries, "removed_bytes": removed_bytes, "leftovers": leftovers}
        say_json({"folder": str(folder), **document, "kept_bytes": kept_bytes})
        return
    kept = f"{_entries(left.entries + left.chunks)}, {human_bytes(kept_bytes)}, kept"
    removed = f"{_entries(entries)} and {counted(leftovers, 'leftover')}, {human_bytes(removed_bytes)}"
    say(f"removed {removed}; {kept}")


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _folder() -> Path:
    from pyc.runtime.host.cache_folder import cache_directory

    folder = cache_directory()
    if folder is None:
        raise OSError(errno.ENOENT, "no home directory, and so no cache; set PYC_CACHE_DIR to a folder to have one")
    try:
        folder.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise OSError(error.errno, f"{folder}: {error.strerror}; set PYC_CACHE_DIR to a folder of yours") from error
    return folder
