"""Writers that no command calls alone, for `fault_runner.py`: each writes what the next run of it finds again."""


def cache_entries() -> int:
    """Two entries of the build cache, one in pieces, read back as they were put."""
    from pyc.compiler.files.cache import Cache
    from pyc.runtime.host.cache_folder import cache_directory

    cache = Cache(cache_directory())
    data = bytes(range(256)) * 1024
    first = cache.get("a" * 64)
    assert first in (None, data)
    cache.put("a" * 64, data)
    found = b"".join(cache.stream("b" * 64, [data[:1000], data[1000:]]))
    assert found == data
    assert cache.get("a" * 64) in (None, data)
    cache.trim()
    return 0


def tuned() -> int:
    """What `pyc tune` keeps."""
    from pyc.cli import describe
    from pyc.runtime.errors import PycError
    from pyc.runtime.executors.cpu import prefetch

    try:
        prefetch.keep_distances("x86-64-v3", prefetch.usual_distances())
    except (PycError, OSError) as error:
        import sys

        message, code = describe(error)
        print(message, file=sys.stderr)
        return code
    return 0


def history() -> int:
    """What was typed in a conversation."""
    from pyc.commands.chat_history import ChatHistory

    history = ChatHistory()
    history.add("a message")
    return 0
