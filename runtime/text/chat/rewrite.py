"""Rewrites a parsed chat template so that whatever loops or allocates calls a counting filter.

    for x in values        the loop runs over values | @each
    a ~ b                  [a, b] | @concat
    value[i:j]             value | @slice(i, j, none)
    [a, b], (a, b), {..}   the literal | @built
    a == b == c            a == (b | @step) == (c | @step)
    a is test              the result | @step
    'text', and text outside of tags
                           environment.literals[i], which knows that the template wrote it

The filters' names cannot be spelt in a template. What is not in ALLOWED_NODES is refused.
"""

from collections.abc import Sequence
from typing import cast

from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from pyc.runtime.text.authored_text import TEMPLATE, AuthoredText

ALLOWED_NODES: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Break, nodes.Continue),
    *(nodes.Assign, nodes.AssignBlock, nodes.NSRef, nodes.Macro, nodes.CallBlock, nodes.FilterBlock),
    *(nodes.With, nodes.Scope, nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair),
    *(nodes.Keyword, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.Filter, nodes.Test),
    *(nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.Concat, nodes.And, nodes.Or, nodes.Not),
    *(nodes.Neg, nodes.Pos, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow),
)


class GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's words for training; here it is its contents."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance's

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's contents, in a scope of their own."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class Rewriter(NodeTransformer):
    """Refuses what is not in ALLOWED_NODES; sends loops and allocations through HOOKS, appends to `literals`."""

    def __init__(self, environment: Environment, literals: list[AuthoredText]) -> None:
        self._environment = environment
        self._literals = literals

    def visit(self, node: nodes.Node, *args: object, **kwargs: object) -> object:
        """The node's replacement. Raises SecurityError."""
        if not isinstance(node, ALLOWED_NODES):
            raise SecurityError(f"{type(node).__name__} in line {node.lineno} is not allowed in a chat template")
        self.generic_visit(node)
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            return self._literal(node.value, node.lineno)
        if isinstance(node, nodes.TemplateData):
            return self._literal(node.data, node.lineno)
        if isinstance(node, nodes.For):
            if node.recursive:
                raise SecurityError(f"a recursive loop in line {node.lineno} is not allowed in a chat template")
            node.iter = self._hook(cast("nodes.Expr", node.iter), "@each")
        elif isinstance(node, nodes.Concat):
            parts = nodes.List(node.nodes, lineno=node.lineno, environment=self._environment)
            return self._hook(parts, "@concat")
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            bounds = [node.arg.start, node.arg.stop, node.arg.step]
            return self._hook(node.node, "@slice", [bound or nodes.Const(None, lineno=node.lineno) for bound in bounds])
        elif isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
            return self._hook(cast("nodes.Expr", node), "@built")
        elif isinstance(node, nodes.Compare):
            for operand in node.ops:
                operand.expr = self._hook(operand.expr, "@step")
        elif isinstance(node, nodes.Test):
            return self._hook(node, "@step")
        return node

    def _literal(self, text: str, lineno: int) -> nodes.EnvironmentAttribute:
        self._literals.append(AuthoredText(text, TEMPLATE))
        return nodes.EnvironmentAttribute(f"literals[{len(self._literals) - 1}]", lineno=lineno)

    def _hook(self, node: nodes.Expr, name: str, args: Sequence[nodes.Expr] = ()) -> nodes.Filter:
        return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno, environment=self._environment)
