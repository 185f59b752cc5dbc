"""The one place where a jinja2 environment is made: for templates that a stranger wrote.

A template sees plain values only, and what it may build, repeat and compute is bounded, so that rendering ends.
It has the filters and globals below and no others; loops, macros, `~`, `+`, `*` and `**` are counted.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 100_000
MAX_CPU_SECONDS = 1.0
MAX_CHARACTERS = 32 * 2**20
MAX_ITEMS = 100_000
MAX_NUMBER_BITS = 4_096

_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr",
    "sort", "title", "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
_TEXT_METHODS = frozenset((
    "capitalize", "count", "endswith", "find", "index", "isalpha", "isdigit", "isspace", "join", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "title", "upper",
))  # fmt: skip
_PLAIN_FORMAT = re.compile(r"(?:[^%]|%[sdr%])*")
_PLAIN_TIME = re.compile(r"(?:[^%]|%-?[A-Za-z%]){0,200}", re.DOTALL)


class TemplateTooLarge(TemplateError):
    """A template built, repeated or computed more than its bound."""


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
        self.filters: dict[str, Any] = {name: FILTERS[name] for name in _FILTERS} | bounded
        self.globals: dict[str, Any] = {
            "range": self.globals["range"],
            "namespace": _PublicNamespace,
            "dict": _dict,
            "raise_exception": _refuse,
            "strftime_now": _strftime_now,
        }
        self.begin()

    def begin(self) -> None:
        self._steps = self._characters = 0
        self._deadline = time.thread_time() + MAX_CPU_SECONDS

    def step(self) -> str:
        """Called in every turn of a loop and every call of a macro."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateTooLarge(f"it takes more than {MAX_STEPS} steps")
        if time.thread_time() > self._deadline:
            raise TemplateTooLarge(f"it takes more than {MAX_CPU_SECONDS:.0f} s of computing")
        return ""

    def shown(self, value: Any) -> Any:
        """Called for every `{{ value }}`: the sum of all that is shown is bounded."""
        self._characters += _length(value, MAX_CHARACTERS)
        if self._characters > MAX_CHARACTERS:
            raise TemplateTooLarge(f"it writes more than {MAX_CHARACTERS} characters")
        return value

    def text(self, value: Any) -> str:
        _length(value, MAX_CHARACTERS)
        return str(value)

    def concatenated(self, *values: Any) -> str:
        _length(values, MAX_CHARACTERS)
        return "".join(str(value) for value in values)

    def joined(
        self, values: Iterable[Any], separator: str = "", attribute: str | None = None
    ) -> str:
        items = list(values)
        parts = items if attribute is None else [self.getitem(item, attribute) for item in items]
        _at_most(_length(parts, MAX_CHARACTERS) + len(separator) * len(parts), MAX_CHARACTERS)
        return str(separator).join(str(part) for part in parts)

    def replaced(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text = self.text(value)
        _at_most(len(text) + (text.count(old)) * len(new), MAX_CHARACTERS)
        return text.replace(old, new, -1 if count is None else count)

    def json(
        self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
    ) -> str:
        _length(value, MAX_ITEMS * 16)
        _at_most(indent or 0, 16)
        allowed = {key: options[key] for key in ("separators", "sort_keys") if key in options}
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **allowed)

    def indented(
        self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        _at_most(width if isinstance(width, int) else len(width), 64)
        text = self.text(value)
        _at_most(len(text) + 64 * text.count("\n"), MAX_CHARACTERS)
        return str(FILTERS["indent"](text, width, first, blank))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(owner, str) and name == "join":
            return self.joined(args[0], owner)
        if isinstance(owner, str) and name == "replace":
            return self.replaced(owner, *args)
        return super().call(context, called, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> None:
        """`format` is no text method here: it would pad to any width."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        if isinstance(obj, int | float | complex | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        return _Counting().visit(parsed)  # type: ignore[no-any-return]


class _Counting(NodeTransformer):
    """Makes loops and macros count their turns, and `~` check its size."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._count(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._count(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._count(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _own_call("concatenated", node.nodes, node.lineno)

    def _count(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        counting = nodes.ExprStmt(_own_call("step", [], node.lineno), lineno=node.lineno)
        node.body.insert(0, counting)
        return node  # type: ignore[no-any-return]


def _own_call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    called = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(called, args, [], None, None, lineno=lineno)


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


def _check_operator(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = right if operator == "**" else right.bit_length()
        grows = left.bit_length() * bits if operator == "**" else left.bit_length() + bits
        _at_most(grows, MAX_NUMBER_BITS)
    elif operator == "*":
        sequence, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            _at_most(
                len(sequence) * times, MAX_CHARACTERS if isinstance(sequence, str) else MAX_ITEMS
            )
    elif operator == "%" and isinstance(left, str):
        if not _PLAIN_FORMAT.fullmatch(left):
            raise TemplateTooLarge("it formats with a width")
        _length(right, MAX_CHARACTERS)
    elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, type(left)):
        _at_most(len(left) + len(right), MAX_CHARACTERS if isinstance(left, str) else MAX_ITEMS)


def _at_most(size: int, limit: int) -> None:
    if size > limit:
        raise TemplateTooLarge(
            f"it builds a value of size {size if size < 2**64 else 'over 2^64'}, at most {limit}"
        )


def _length(value: Any, limit: int) -> int:
    """About how long `str(value)` is. Raises TemplateTooLarge above `limit`, before the string is made."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            waiting.extend([*item.keys(), *item.values()])
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        total += 0 if isinstance(item, str | Undefined) else 32
        _at_most(total, limit)
    return total
