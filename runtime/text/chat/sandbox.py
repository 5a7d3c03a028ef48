"""A jinja2 environment for templates that nobody has vetted.

jinja2's immutable sandbox keeps a template from the interpreter; it does not keep it from the memory or the
processor. This one also rewrites the parsed template so that whatever loops or allocates calls a counting
function, and knows only the statements, methods, filters and tests in its tables. Nothing is evaluated while
compiling: constant folding would run a bomb before any meter is there. All text in it knows its author
(authored_text.py): the template's own words are literals of the environment.
"""

import itertools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import LoopControlExtension
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace, pass_context

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_markup import Markup
from pyc.runtime.text.authored_text import TEMPLATE, UNKNOWN, AuthoredText, adopt, derive
from pyc.runtime.text.chat import operation_costs as costs
from pyc.runtime.text.chat.filter_costs import COMPARING, Check
from pyc.runtime.text.chat.filters import BUILTIN_FILTERS, OWN_FILTERS, Function, join_text
from pyc.runtime.text.chat.limits import MAX_CALL_DEPTH, OBJECT_CHARACTERS, Meter
from pyc.runtime.text.chat.rewrite import GenerationTag, Rewriter
from pyc.runtime.text.chat.str_format import BoundedFormatter

MAX_TOKENS = 1 << 14
"""Of a template, with the spaces between them; the largest of 209 models' has 4,112."""
MAX_RANGE = 100_000

STRING_METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "center",
        "count",
        "endswith",
        "find",
        "format",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
        "zfill",
    ]
)
LOOP_ATTRIBUTES = frozenset(
    [
        "index",
        "index0",
        "revindex",
        "revindex0",
        "first",
        "last",
        "length",
        "previtem",
        "nextitem",
        "depth",
        "depth0",
        "cycle",
        "changed",
    ]
)
ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (str, STRING_METHODS),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (LoopContext, LOOP_ATTRIBUTES),
    (Macro, frozenset({"name", "arguments", "caller"})),
)
MOST_ARGUMENTS = 8
OF_THE_COMPILER = frozenset({"_loop_vars", "_block_vars"})
"""What jinja2 adds to each call in a loop or a block, and takes off again before the function has it."""
TEST_NAMES = tuple(name for name in TESTS if name not in ("filter", "test"))  # they ask jinja2's environment


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates. `meter` counts the rendering under way."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, functions: Mapping[str, Function]) -> None:
        """`functions` are global functions beside range, dict and namespace."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
            finalize=_finalize,
            extensions=[LoopControlExtension, GenerationTag],
        )
        self.meter = Meter(0)
        self.literals: list[AuthoredText] = []
        self.filters = {name: _guard_filter(*entry) for name, entry in BUILTIN_FILTERS.items()}
        self.filters |= {name: _count_filter(function) for name, function in (OWN_FILTERS | HOOKS).items()}
        self.filters["@step"] = _step  # gives what it was given
        self.tests = {name: self._count_test(cast("Function", TESTS[name])) for name in TEST_NAMES}
        known = {"filter": BUILTIN_FILTERS.keys() | OWN_FILTERS.keys(), "test": {*TEST_NAMES, "filter", "test"}}
        self.tests |= {name: self._count_test(names.__contains__) for name, names in known.items()}
        self.globals = {"range": _range, "dict": dict, "namespace": ChatNamespace, **functions}

    def compile_chat(self, source: str) -> Callable[[Mapping[str, object]], Iterable[str]]:
        """The template as a function from variables to pieces of text. Raises whatever jinja2 and Python
        do."""
        tokens = self.lexer.tokeniter(source, None) if len(source) > MAX_TOKENS else ()  # a token has a letter at least
        if sum(1 for _ in itertools.islice(tokens, MAX_TOKENS + 1)) > MAX_TOKENS:
            raise RunError(f"chat template: more than {MAX_TOKENS} tokens of jinja2's")
        tree = Rewriter(self, self.literals).visit(self.parse(source))
        assert isinstance(tree, nodes.Template)
        template = self.template_class.from_code(self, self.compile(tree), self.make_globals(None))
        return lambda variables: template.root_render_func(template.new_context(dict(variables)))

    # --- what the sandbox asks

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Attributes in ATTRIBUTES, and what a template itself put into a namespace."""
        if isinstance(obj, ChatNamespace):
            return not attr.startswith("_")
        return any(isinstance(obj, kind) and attr in names for kind, names in ATTRIBUTES)

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Refuse at once; jinja2 would wait until the value is used."""
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} is not allowed")

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """str.format with bounded fields."""
        template, name = _method_of_text(value)
        if template is None or name not in ("format", "format_map"):
            return None
        if name == "format_map":
            raise SecurityError("access to attribute 'format_map' of 'str' is not allowed")

        self.meter.charge(OBJECT_CHARACTERS)

        def bounded(*args: object, **kwargs: object) -> str:
            return BoundedFormatter(self, self.meter).format_text(template, args, kwargs)

        return bounded

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:  # noqa: N805
        """Calls a macro, function or method, its cost checked first."""
        meter = __self.meter
        meter.step()
        named = {name: value for name, value in kwargs.items() if name not in OF_THE_COMPILER}
        text, name = _method_of_text(__obj)
        if text is not None:
            if name == "join" and len(args) == 1:
                return join_text(meter, text, cast("Iterable[object]", args[0]), convert=False)
            if name == "replace" and len(args) >= 2 and isinstance(text, Markup):
                args = (args[0], meter.escaped(args[1]), *args[2:])
            costs.check_method(meter, text, name, args, named)
        else:
            meter.compare_deeply(getattr(__obj, "__self__", None))  # `index` and `count` of lists
        if args and (__obj is dict or __obj is ChatNamespace):
            args = (costs.bounded_pairs(meter, args[0]), *args[1:])
        if len(args) + len(named) > MOST_ARGUMENTS:  # a macro has them as lists
            meter.accept([*args, *named.values()])
        meter.depth += 1
        if meter.depth > MAX_CALL_DEPTH:
            raise RunError(f"chat template: calls nested more than {MAX_CALL_DEPTH} deep; it may recurse without end")
        try:
            result = super().call(__context, __obj, *args, **kwargs)
            result = adopt(result, text, *args, *named.values())
            if text is not None and name in costs.PARTING_METHODS:
                meter.accept_parts(cast("Sequence[str]", result))
                return result
            if isinstance(result, ChatNamespace):
                meter.charge(OBJECT_CHARACTERS + costs.TEXT * len(named))
            return meter.accept(result)
        finally:
            meter.depth -= 1

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Arithmetic, its cost checked first."""
        self.meter.step()
        if operator == "*":
            costs.check_product(self.meter, left, right)
        elif operator == "**":
            costs.check_power(self.meter, left, right)
        elif operator == "%":
            costs.check_percent(self.meter, left, right)
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            if isinstance(left, Markup):
                right = self.meter.escaped(right)
            elif isinstance(right, Markup):
                left = self.meter.escaped(left)
            self.meter.reserve(len(left) + len(right))
        return self.meter.accept(adopt(self.binop_table[operator](left, right), left, right))

    def getattr(self, obj: object, attribute: str) -> object:
        """Attribute or item, a step each."""
        self.meter.step()
        costs.check_dunder(attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: object, argument: object) -> object:
        """Item or attribute, a step each."""
        self.meter.step()
        costs.check_dunder(argument)
        return super().getitem(obj, cast("str", argument))

    def concat(self, parts: Iterable[str]) -> str:  # jinja2 has "".join here
        """What macros and blocks collected, as one text."""
        return join_text(self.meter, AuthoredText("", TEMPLATE), parts, convert=False)

    def _count_test(self, test: Function) -> Function:
        def counted(*args: object, **kwargs: object) -> object:
            self.meter.step()
            for value in args:
                self.meter.compare_deeply(value)
            return test(*args, **kwargs)

        return counted


class ChatNamespace(Namespace):
    """namespace(): its own names only, none with an underscore in front."""

    def __init__(*args: object, **kwargs: object) -> None:  # so that namespace(self=1) works
        self = cast("ChatNamespace", args[0])
        values: dict[str, object] = dict(*cast("tuple[Mapping[str, object], ...]", args[1:]), **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _each(context: Context, values: object) -> object:
    return _Counted(_meter(context), cast("Iterable[object]", values))


def _concat(context: Context, parts: list[object]) -> str:
    return join_text(_meter(context), AuthoredText("", TEMPLATE), parts, convert=True)


def _slice(context: Context, value: Sequence[object], start: int, stop: int, step: int) -> object:
    result = value[start:stop:step]
    meter = _meter(context)
    if isinstance(result, str):
        return meter.accept(result)
    meter.accept_parts(result)  # its members are there already
    return result


def _built(context: Context, value: object) -> object:
    return _meter(context).accept(value)


@pass_context
def _step(context: Context, value: object) -> object:
    """Before a value is compared, and behind a test."""
    meter = _meter(context)
    meter.step()
    meter.compare_deeply(value)
    return value


# Names that a template cannot spell, for the calls that Rewriter puts in.
HOOKS: dict[str, Function] = {
    "@each": _each,
    "@concat": _concat,
    "@slice": _slice,
    "@built": _built,
}


class _Counted:
    """What a loop runs over: a step for each value, and a length if there is one."""

    def __init__(self, meter: Meter, values: Iterable[object]) -> None:
        self._meter = meter
        self._values = values

    def __iter__(self) -> Iterable[object]:
        return self._meter.each(self._values)

    def __len__(self) -> int:
        return len(cast("Sequence[object]", self._values))


def _meter(context: Context) -> Meter:
    environment = context.environment
    assert isinstance(environment, ChatEnvironment)
    return environment.meter


@pass_context
def _finalize(context: Context, value: object) -> str:
    """Text of a value that is put out."""
    meter = _meter(context)
    meter.step()
    if isinstance(value, str):
        return value if isinstance(value, AuthoredText) else AuthoredText(value, UNKNOWN)
    return derive(meter.text(value), value)


def _method_of_text(value: object) -> tuple[str | None, str]:
    """The text whose method `value` is, or None, and the method's name."""
    if isinstance(value, (types.BuiltinMethodType, types.MethodType)) and isinstance(value.__self__, str):
        return value.__self__, value.__name__
    return None, ""


def _guard_filter(function: Function, check: Check) -> Function:
    """A filter of jinja2's: step, check, call, accept. It takes the context, so that nothing is folded."""
    wants = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def guarded(context: Context, *args: object, **kwargs: object) -> object:
        meter = _meter(context)
        meter.step()
        if check in COMPARING and args and hasattr(args[0], "__next__"):
            args = (meter.accept(list(meter.each(cast("Iterable[object]", args[0])))), *args[1:])
        check(meter, args, kwargs)
        given: tuple[object, ...] = ()
        if wants is not None:
            passed = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
            given = (passed[wants.name],)
        result = function(*given, *args, **kwargs)
        if isinstance(result, types.GeneratorType):
            meter.charge(OBJECT_CHARACTERS)
            return meter.each_made(result)
        return meter.accept(adopt(result, *args, *kwargs.values()))

    return guarded


def _count_filter(function: Function) -> Function:
    """A filter of ours, which takes the context: a step."""

    @pass_context
    def counted(context: Context, *args: object, **kwargs: object) -> object:
        _meter(context).step()
        return adopt(function(context, *args, **kwargs), *args, *kwargs.values())

    return counted


def _range(*bounds: int) -> range:
    values = range(*bounds)
    # len() fails on ranges beyond the machine's word: ask for an item instead
    if values[MAX_RANGE : MAX_RANGE + 1]:
        raise RunError(f"chat template: a range of more than {MAX_RANGE} numbers")
    return values


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}; leave the underscore out")


def raise_exception(message: object) -> None:
    """What templates call when a conversation is not one they know."""
    raise TemplateError(str(message))
