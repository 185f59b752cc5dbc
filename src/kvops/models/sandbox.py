"""The one place where a jinja2 environment is made: for templates that a stranger wrote.

A template sees plain values only, and what it may build, repeat and compute is bounded, so that rendering ends.
It has the filters and globals below and no others. Everything in a template that can cost something (a turn of a
loop, a filter, a test, a call, an operator, an output) looks at the clock and adds to what was built so far; what one
of them may cost is bounded by the size of what it is given.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from kvops.models.template_bounds import (
    MAX_BUILT,
    MAX_CHARACTERS,
    MAX_ITEMS,
    MAX_SLOW_CHARACTERS,
    TemplateTooLarge,
    at_most,
    check_operator,
    length_of,
    pieces,
)

MAX_STEPS = 100_000
MAX_CPU_SECONDS = 1.0

_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr",
    "sort", "title", "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
_SLOW_ON_TEXT = frozenset(("title", "wordcount"))
_ITEMWISE = frozenset((
    "dictsort", "groupby", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr",
    "sort", "unique",
))  # fmt: skip
_TEXT_METHODS = frozenset((
    "capitalize", "count", "endswith", "find", "index", "isalpha", "isdigit", "isspace", "join", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "title", "upper",
))  # fmt: skip
_PLAIN_TIME = re.compile(r"(?:[^%]|%-?[A-Za-z%]){0,200}", re.DOTALL)


class TemplateRefusal(TemplateError):
    """The template itself called `raise_exception`: it does not accept these messages."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template. `begin()` starts a new budget; not for two threads at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=self.shown,
        )
        bounded = {
            "join": self.joined, "replace": self.replaced, "string": self.text, "safe": self.text,
            "tojson": self.json, "indent": self.indented,
        }  # fmt: skip
        filters: dict[str, Callable[..., Any]] = {
            name: FILTERS[name] for name in _FILTERS
        } | bounded
        self.filters: dict[str, Any] = {
            name: self._watched(name, work) for name, work in filters.items()
        }
        self.tests = {name: self._watched(name, work) for name, work in self.tests.items()}
        self.globals: dict[str, Any] = {
            "range": self.globals["range"],
            "namespace": _PublicNamespace,
            "dict": _dict,
            "raise_exception": _refuse,
            "strftime_now": _strftime_now,
        }
        self.begin()

    def begin(self, seconds: float = MAX_CPU_SECONDS) -> None:
        """`seconds` of computing in the thread that calls."""
        self._steps = self._characters = self._built = 0
        self._seconds = seconds
        self._deadline = time.thread_time() + seconds

    def step(self) -> str:
        """Called in every turn of a loop and every call of a macro."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateTooLarge(f"it takes more than {MAX_STEPS} steps")
        self._look_at_the_clock()
        return ""

    def built(self, value: Any) -> Any:
        """Called with what a filter, a call, an operator or a slice made: the sum of all that is bounded."""
        self._look_at_the_clock()
        if isinstance(value, str | bytes):
            self._built += len(value)
        elif isinstance(value, list | tuple | dict | set):
            self._built += 8 * len(value)
        if self._built > MAX_BUILT:
            raise TemplateTooLarge(f"it builds more than {MAX_BUILT} characters in all")
        return value

    def literal(self, text: str) -> str:
        """Called for the plain text of a template, so that it is shown, and counted, like a value."""
        return text

    def _look_at_the_clock(self) -> None:
        if time.thread_time() > self._deadline:
            raise TemplateTooLarge(f"it takes more than {self._seconds:g} s of computing")

    def _watched(self, name: str, work: Any) -> Callable[..., Any]:
        """The filter or test, with its input bounded, and its result counted."""
        first = 1 if hasattr(work, "jinja_pass_arg") else 0

        @functools.wraps(work)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if len(args) > first and isinstance(args[first], str):
                if name in _SLOW_ON_TEXT:
                    at_most(len(args[first]), MAX_SLOW_CHARACTERS)
                elif name in _ITEMWISE:
                    at_most(len(args[first]), MAX_ITEMS)
            return self.built(work(*args, **kwargs))

        return watched

    def shown(self, value: Any) -> Any:
        """Called for every `{{ value }}`: the sum of all that is shown is bounded."""
        self._look_at_the_clock()
        self._characters += length_of(value, MAX_CHARACTERS)
        if self._characters > MAX_CHARACTERS:
            raise TemplateTooLarge(f"it writes more than {MAX_CHARACTERS} characters")
        return value

    def text(self, value: Any) -> str:
        length_of(value, MAX_CHARACTERS)
        return str(value)

    def concatenated(self, *values: Any) -> str:
        length_of(values, MAX_CHARACTERS)
        return str(self.built("".join(str(value) for value in values)))

    def joined(
        self, values: Iterable[Any], separator: str = "", attribute: str | None = None
    ) -> str:
        items = list(values)
        parts = items if attribute is None else [self.getitem(item, attribute) for item in items]
        at_most(length_of(parts, MAX_CHARACTERS) + len(separator) * len(parts), MAX_CHARACTERS)
        return str(separator).join(str(part) for part in parts)

    def replaced(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text = self.text(value)
        at_most(len(text) + (text.count(old)) * len(new), MAX_CHARACTERS)
        return text.replace(old, new, -1 if count is None else count)

    def json(
        self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
    ) -> str:
        length_of(value, MAX_ITEMS * 16)
        at_most(indent or 0, 16)
        allowed = {key: options[key] for key in ("separators", "sort_keys") if key in options}
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **allowed)

    def indented(
        self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        at_most(width if isinstance(width, int) else len(width), 64)
        text = self.text(value)
        at_most(len(text) + 64 * text.count("\n"), MAX_CHARACTERS)
        return str(FILTERS["indent"](text, width, first, blank))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(owner, str):
            if name == "join":
                return self.built(self.joined(args[0], owner))
            if name == "replace":
                return self.built(self.replaced(owner, *args))
            if name in ("split", "rsplit", "splitlines"):
                at_most(pieces(owner, name, *args, **kwargs), MAX_ITEMS)
        return self.built(super().call(context, called, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> None:
        """`format` is no text method here: it would pad to any width."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        if isinstance(obj, int | float | complex | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return self.built(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        return _Counting().visit(parsed)  # type: ignore[no-any-return]


class _Counting(NodeTransformer):
    """Makes loops and macros count their turns, and what makes or compares values report it."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.test is not None:
            node.test = _own_call("built", [node.test], node.lineno)
        return self._count(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._count(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._count(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _own_call("concatenated", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        return _own_call("built", [node], node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        sliced = isinstance(node.arg, nodes.Slice)
        return _own_call("built", [node], node.lineno) if sliced else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return _own_call("literal", [nodes.Const(node.data, lineno=node.lineno)], node.lineno)

    def _count(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        counting = nodes.ExprStmt(_own_call("step", [], node.lineno), lineno=node.lineno)
        node.body.insert(0, counting)
        return node  # type: ignore[no-any-return]


def _own_call(name: str, args: Sequence[nodes.Node], lineno: int) -> nodes.Call:
    called = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(called, list(args), [], None, None, lineno=lineno)


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; here its body is plain output."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PublicNamespace(Namespace):
    """Names that begin with an underscore are Python's own."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no private name such as {name[:40]!r}")
        super().__setitem__(name, value)


def _dict(**fields: Any) -> dict[str, Any]:
    return fields


def _refuse(message: Any) -> None:
    raise TemplateRefusal(str(message)[:500])


def _strftime_now(layout: str) -> str:
    if not _PLAIN_TIME.fullmatch(layout):
        raise TemplateTooLarge("it asks for a time format with a width")
    return datetime.now().strftime(layout)
