"""What a chat template may use up: steps, processor time, characters built, size of one value.

Values inside a template are immutable (the sandbox has no mutating method), so a container's deep size is
counted once and remembered: `x = [x, x]`, said thirty times, is refused at the line that passes the limit.
"""

import types
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import cast

from jinja2.runtime import Macro

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_markup import Markup, escape, escaped_length
from pyc.runtime.text.authored_text import VIEWS, derive
from pyc.runtime.text.rendering_budget import RenderingBudget

MAX_OUTPUT_CHARACTERS = 1 << 20
MAX_STEPS = 2_000_000
MOST_STEPS = 20_000_000
MAX_COMPARISONS = 1 << 26
MAX_CPU_S = 0.75
MOST_CPU_S = 10.0
"""Of a conversation of any size, as MOST_STEPS is."""
MAX_CALL_DEPTH = 50
MAX_VALUE_DEPTH = 64
MAX_INTEGER_BITS = 2048
_NODE_CHARACTERS = 8
_CONTAINER_NODES = 8
"""That an empty one takes as much as, with what is remembered of it."""
OBJECT_CHARACTERS = 256
"""That a namespace or a generator takes as much as."""
_OTHER_CHARACTERS = 128
"""That a member of a list takes as much as which is neither text nor a number nor a list."""
_BYTES_A_CHARACTER = 64
"""That all may take for each character of the longest output."""
MOST_BYTES = 512 << 20
MAX_EQUAL_KEYS = 64
"""Of a mapping, whose hashes a template can make equal: to compare two such takes that many looks for each key."""
_SHARED = (-5, 256)
"""Integers of which Python has one each."""
_INTEGER_BYTES = 32
_STEPS_A_CLOCK = 16
_LARGE = 4096
_OWN_HASH = 1 << 60
"""Integers below are hashes of no other."""
_REMEMBERED_BYTES = 256
"""That the size of a list takes, with the list."""
_LETTER_CPU_S = 2e-9
_VALUE_CPU_S = 1e-6
"""What a filter takes for a value that it goes over, with the text that is made of it."""
_CHARACTER_CPU_S, _MESSAGE_CPU_S = 5e-6, 0.004
_CHARACTER_STEPS, _MESSAGE_STEPS = 4, 5000
"""More for each letter, which some templates look at (Llama 3.2 Vision's does, for parts of a message), and for each
message: others look at all of a conversation at each of its messages."""
_METHODS = (types.MethodType, types.BuiltinMethodType)
_CONTAINERS = (list, tuple, dict, *VIEWS)
_HOLDERS = (*_CONTAINERS, *_METHODS)
"""Values whose text has that of others in it."""


@dataclass(frozen=True, slots=True)
class _Size:
    """Deep size in characters (8 an object), depth of nesting, number of objects.

    `beside` is what its members take that are neither text nor containers, which count where they are made.
    """

    characters: int
    depth: int
    objects: int
    beside: int = 0


class Meter:
    """Counts what one rendering does. Every method raises RunError when a limit is passed.

    All limits on characters grow with the conversation: output to 1 MiB and four times the input, one value
    to twice that, all that is there to 64 bytes for each character of output, up to 512 MiB; time and steps do, too, up
    to 10 s. The clock is the thread's processor time. Lists, mappings and other objects count for good, texts as long
    as they are there (`budget`): a template that writes its text into one variable, a piece after the other, builds
    each of its beginnings.
    """

    def __init__(self, input_characters: int, messages: int = 0) -> None:
        self.max_output = MAX_OUTPUT_CHARACTERS + 4 * input_characters
        self.max_value = 2 * self.max_output
        self.depth = 0
        self._steps = 0
        more = input_characters * _CHARACTER_STEPS + messages * _MESSAGE_STEPS
        self._max_steps = min(MAX_STEPS + more, MOST_STEPS)
        more_s = input_characters * _CHARACTER_CPU_S + messages * _MESSAGE_CPU_S
        most_bytes = min(_BYTES_A_CHARACTER * self.max_output, MOST_BYTES)
        self.budget = RenderingBudget(most_bytes, min(MAX_CPU_S + more_s, MOST_CPU_S))
        self._sizes: dict[int, tuple[object, _Size]] = {}

    def step(self) -> None:
        """Counts one operation."""
        self._steps += 1
        if self._steps % _STEPS_A_CLOCK == 0:
            self.budget.check_clock()
        if self._steps > self._max_steps:
            raise RunError(f"chat template: more than {self._max_steps} steps; it may loop without end")

    def charge(self, characters: int) -> None:
        """Counts a container about to be built, or just built, for good; `characters` may be any size."""
        self.reserve(characters)
        self.budget.charge(characters)

    def reserve(self, characters: int) -> None:
        """Before something is built: a text, which counts itself once it is there, or what goes at once."""
        if characters > self.max_value:
            raise RunError(f"chat template: a value of {_amount(characters)} characters, more than {self.max_value}")
        if characters > _LARGE:
            self.budget.require(2 * characters)

    def each(self, values: Iterable[object]) -> Iterator[object]:
        """`values`, a step each."""
        for value in values:
            self.step()
            yield value

    def pass_over(self, values: object, share: float = 1.0) -> None:
        """Before something goes over all values, or a share of a text's letters: refused if it would take too long."""
        if isinstance(values, (str, *_CONTAINERS)):
            self.expect(int(share * len(values)))

    def expect(self, count: int) -> None:
        """Before something goes over so many values: refused if it would take too long."""
        if count > _LARGE:
            self.budget.check_clock(count * _VALUE_CPU_S)

    def each_made(self, values: Iterable[object]) -> Iterator[object]:
        """`values`, which a filter makes as they are asked for: a step each, and their sizes are checked."""
        for value in self.each(values):
            yield value if isinstance(value, str) or id(value) in self._sizes else self.accept(value)

    def accept(self, value: object) -> object:
        """`value`, which an operation made, after checking its size."""
        if isinstance(value, str):
            self.reserve(len(value))
        elif isinstance(value, (list, tuple)):
            self.charge(_NODE_CHARACTERS * (_CONTAINER_NODES + len(value)) + self.size(value).beside)
        elif isinstance(value, dict):
            self.check_keys(value)
            self.charge(_NODE_CHARACTERS * _CONTAINER_NODES * (1 + len(value)) + self.size(value).beside)
        elif isinstance(value, int):
            self.check_integer_bits(value.bit_length())
        return value

    def accept_parts(self, parts: Sized) -> None:
        """A list of a text's parts, each of which counts, or of members of another list."""
        self.charge(_NODE_CHARACTERS * (_CONTAINER_NODES + len(parts)))

    def size(self, value: object) -> _Size:
        """The deep size of `value`."""
        if isinstance(value, str):
            return _Size(len(value) + _NODE_CHARACTERS, 1, 1)
        if isinstance(value, _METHODS):
            whose = self.size(value.__self__)
            return _Size(whose.characters + _NODE_CHARACTERS, whose.depth, whose.objects)
        if isinstance(value, int):
            return _Size(_NODE_CHARACTERS + value.bit_length() // 3, 1, 1)
        if not isinstance(value, _HOLDERS):
            return _Size(_shown_characters(value), 1, 1)
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        members = cast("Iterable[object]", value)
        if isinstance(value, Mapping):
            members = [*value.keys(), *value.values()]
        characters, depth, objects, beside = _NODE_CHARACTERS, 0, 1, 0
        for member in members:
            if not isinstance(member, _HOLDERS):  # as above; most members of large values are none of these
                if isinstance(member, str):
                    characters += _NODE_CHARACTERS + len(member)
                elif isinstance(member, int):
                    characters += _NODE_CHARACTERS + member.bit_length() // 3  # of which each digit has more
                    if not _SHARED[0] <= member <= _SHARED[1]:
                        beside += _INTEGER_BYTES + member.bit_length() // 7
                elif member is None:
                    characters += _NODE_CHARACTERS
                else:
                    characters += _shown_characters(member)
                    beside += _OTHER_CHARACTERS
                depth = depth or 1
                objects += 1
                continue
            inner = self.size(member)
            beside += 0 if isinstance(member, _CONTAINERS) else _OTHER_CHARACTERS
            characters += inner.characters
            depth = max(depth, inner.depth)
            objects += inner.objects
        if characters > self.max_value:
            raise RunError(f"chat template: a value of more than {self.max_value} characters")
        if depth >= MAX_VALUE_DEPTH:
            raise RunError(f"chat template: a value nested more than {MAX_VALUE_DEPTH} deep")
        size = _Size(characters, depth + 1, objects, beside)
        self.budget.charge(_REMEMBERED_BYTES)
        self._sizes[id(value)] = (value, size)  # the reference keeps the id from being used again
        return size

    def check_integer_bits(self, bits: int) -> None:
        """Refuse integers of more than 2048 bits."""
        if bits > MAX_INTEGER_BITS:
            raise RunError(f"chat template: an integer of more than {MAX_INTEGER_BITS} bits")

    def text(self, value: object) -> str:
        """str(value), its size checked before and after."""
        if isinstance(value, str):
            return value
        if isinstance(value, _HOLDERS):
            self.reserve(self.size(value).characters)
        text = str(value)
        self.reserve(len(text))
        return text

    def search(self, text: str, part: object) -> None:
        """Before Python looks for `part` in `text` from its end, or strips its characters: it compares all with all."""
        self.compare(len(text) * len(part) if isinstance(part, str) else 0)

    def hash_all(self, keys: Iterable[object]) -> None:
        """Before a set is made of `keys`: those whose hashes a template can make equal are compared, each with each.
        Python draws the hashes of texts."""
        others = _equal_hashes(keys)
        self.compare(others * others)

    def check_keys(self, keys: Iterable[object]) -> None:
        """Refuse a mapping of more than 64 keys whose hashes may be equal."""
        if _equal_hashes(keys) > MAX_EQUAL_KEYS:
            raise RunError(f"chat template: a mapping of more than {MAX_EQUAL_KEYS} keys that are no text")

    def compare_deeply(self, value: object) -> None:
        """Before a value is compared with others, member by member."""
        if isinstance(value, _CONTAINERS):
            known = self._sizes.get(id(value))  # not of a text's parts, which are texts
            self.compare(max(len(value), known[1].characters if known else 0))

    def compare(self, letters: int) -> None:
        """Before so many letters are compared with others, or copied."""
        if letters > MAX_COMPARISONS:
            raise RunError("chat template: it takes too long; it compares long texts with long ones")
        if letters > _LARGE:
            self.budget.check_clock(letters * _LETTER_CPU_S)

    def escaped(self, value: object) -> Markup:
        """str(value) as text of HTML, its size checked before: it may be five times as long."""
        text = self.text(value)
        length = escaped_length(text)
        self.reserve(length)
        self.expect((length - len(text)) // 2)
        return escape(text if isinstance(value, str) else derive(text, value))


def _shown_characters(value: object) -> int:
    """The characters that a value which holds no text is shown by, at most."""
    if isinstance(value, range):
        return sum(_NODE_CHARACTERS + each.bit_length() // 3 for each in (value.start, value.stop, value.step))
    if isinstance(value, Macro):
        return _OTHER_CHARACTERS + len(value.name)
    return 3 * _NODE_CHARACTERS if isinstance(value, float) else _OTHER_CHARACTERS


def _equal_hashes(keys: Iterable[object]) -> int:
    return sum(1 for key in keys if not isinstance(key, str) and not (isinstance(key, int) and abs(key) < _OWN_HASH))


def _amount(characters: int) -> str:
    return str(characters) if characters < 1 << 62 else "very many"
