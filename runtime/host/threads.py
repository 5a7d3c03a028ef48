"""Whether this process may start threads."""

from __future__ import annotations

import threading


def may_start_threads(count: int) -> bool:
    """Start `count` threads, which end at once, and return whether all were there together."""
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:  # can't start new thread
        return False
    finally:
        end.set()
        for thread in started:
            thread.join()
    return True
