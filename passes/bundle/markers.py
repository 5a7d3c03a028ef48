"""Environment markers of requirements (PyPA's specification of dependency specifiers), for where a bundle runs.

    holds('platform_system == "Windows" and python_version < "3.13"', environment("x86_64", "3.12"))

pip judges a marker by the machine that it runs on; a bundle is made on one machine and installed on another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

_token = re.compile(
    r"\s*(?:(?P<sign>[()]|===|[<>=!~]=|[<>]|not\s+in\b|(?:in|and|or)\b)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\")"
)
_VERSIONS = ("python_version", "python_full_version", "implementation_version")
_OLD_NAMES = {
    "os.name": "os_name",
    "sys.platform": "sys_platform",
    "platform.machine": "platform_machine",
    "platform.version": "platform_version",
    "platform.python_implementation": "platform_python_implementation",
    "python_implementation": "platform_python_implementation",
}
_Ordered = TypeVar("_Ordered", str, tuple[tuple[int, ...], bool])


def environment(machine: str, python: str) -> dict[str, str]:
    """Return what markers call Linux on `machine` with CPython `python`, such as "3.12", whose first release counts."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }


def holds(marker: str, values: Mapping[str, str]) -> bool:
    """Return whether a marker holds where its variables have `values`. Raises ValueError for what is no marker."""
    parser = _Parser(marker, values)
    found = parser.any_of()
    if parser.tokens:
        raise ValueError(f"{marker!r}: expected its end, got {parser.tokens[0][1]!r}")
    return found


class _Parser:
    """Reads a marker from left to right; `tokens` are those that it has not read, each with its kind."""

    def __init__(self, marker: str, values: Mapping[str, str]) -> None:
        self.tokens: list[tuple[str, str]] = []
        self._marker, self._values = marker, values
        place, text = 0, marker.rstrip()
        while place < len(text):
            match = _token.match(text, place)
            if match is None or match.lastgroup is None:
                raise ValueError(f"{marker!r}: cannot be read at {text[place:]!r}")
            self.tokens.append((match.lastgroup, " ".join(match[match.lastgroup].split())))
            place = match.end()

    def any_of(self) -> bool:
        """Read terms with `or` between them."""
        found = self._all_of()
        while self._take("or"):
            found = self._all_of() or found
        return found

    def _all_of(self) -> bool:
        found = self._comparison()
        while self._take("and"):
            found = self._comparison() and found
        return found

    def _comparison(self) -> bool:
        if self._take("("):
            found = self.any_of()
            if not self._take(")"):
                raise ValueError(f"{self._marker!r}: a parenthesis is not closed")
            return found
        left, left_is_version = self._value()
        kind, sign = self._next()
        if kind != "sign" or sign in ("(", ")", "and", "or"):
            raise ValueError(f"{self._marker!r}: expected a comparison, got {sign!r}")
        right, right_is_version = self._value()
        return _compare(left, sign, right, left_is_version or right_is_version)

    def _value(self) -> tuple[str, bool]:
        """A value, and whether it is that of a variable with a version."""
        kind, text = self._next()
        if kind == "sign":
            raise ValueError(f"{self._marker!r}: expected a value, got {text!r}")
        if kind != "name":
            return text, False
        name = _OLD_NAMES.get(text, text)
        if name not in self._values:
            raise ValueError(f"{self._marker!r}: unknown variable {text!r}")
        return self._values[name], name in _VERSIONS

    def _next(self) -> tuple[str, str]:
        if not self.tokens:
            raise ValueError(f"{self._marker!r}: it ends too early")
        return self.tokens.pop(0)

    def _take(self, sign: str) -> bool:
        if self.tokens[:1] != [("sign", sign)]:
            return False
        self.tokens.pop(0)
        return True


def _compare(left: str, sign: str, right: str, is_version: bool) -> bool:
    if sign in ("in", "not in"):
        return (left in right) == (sign == "in")
    if sign == "===":
        return left == right
    if not is_version:
        if sign == "~=":
            raise ValueError(f"{left!r} ~= {right!r}: these are no versions")
        return _is_ordered(left, sign, right)
    if sign in ("==", "!=") and right.endswith(".*"):
        parts = right[:-2].split(".")
        return (left.split(".")[: len(parts)] == parts) == (sign == "==")
    if sign == "~=":
        parts = right.split(".")[:-1]
        return left.split(".")[: len(parts)] == parts and _version(left) >= _version(right)
    return _is_ordered(_version(left), sign, _version(right))


def _is_ordered(left: _Ordered, sign: str, right: _Ordered) -> bool:
    if sign in ("==", "!="):
        return (left == right) == (sign == "==")
    return (left < right) == (sign in ("<", "<=")) if left != right else sign in ("<=", ">=")


def _version(text: str) -> tuple[tuple[int, ...], bool]:
    """A version in order: its numbers, without zeros at the end; 3.12.0a6, which is before a release, is below it."""
    match = re.match(r"\d+(\.\d+)*", text)
    if match is None:
        raise ValueError(f"{text!r} is no version")
    numbers = [int(part) for part in match[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), text == match[0]
