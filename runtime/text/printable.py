"""Text that somebody else wrote, as it may appear on a terminal."""


def printable(text: str, keep: str = "") -> str:
    """Return `text` with every character escaped that does not stand for itself, but for those in `keep`.

    Control characters of either set (C0, C1), line and paragraph separators, and formats such as the overrides of
    writing direction become "\\x1b", "\\x9b", "\\u202e": they could move the cursor, or make a name look like another.
    """
    return "".join(letter if letter.isprintable() or letter in keep else ascii(letter)[1:-1] for letter in text)
