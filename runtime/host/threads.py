"""Whether this process may start threads."""

from __future__ import annotations

import threading


def may_start_threads(count: int) -> bool:
    """Start `count` threads, which end at once, and return whether all were there together."""
    end = threading.Lock()
    started: list[threading.Thread] = []

    def wait() -> None:
        with end:
            pass

    try:
        with end:
            for _ in range(count):
                thread = threading.Thread(target=wait, daemon=True)
                thread.start()
                started.append(thread)
    except RuntimeError:  # can't start new thread
        return False
    finally:
        for thread in started:
            thread.join()
    return True
