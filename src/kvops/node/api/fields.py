"""The building blocks of request schemas: strict bodies, bounded fields, OpenAI fields that only mean "off"."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

MAX_PROMPTS = 64
MAX_PROMPT_TOKENS = 2_000_000
MAX_STOP_CHARS = 256
MAX_LOGIT_BIAS = 300


class Body(BaseModel):
    """Strict JSON types (true is no number, "1" is no number), no unknown field."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_field(cls, data: Any) -> Any:
        for name in data if isinstance(data, dict) else ():
            if name not in cls.model_fields:
                near = difflib.get_close_matches(name[:64], cls.model_fields, 1, 0.8)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise PydanticCustomError(
                    "unknown_field", "is not a field here" + hint, {"field": name[:64]}
                )
        return data


def off(*values: Any) -> BeforeValidator:
    """Accepts only values that mean "not used", for OpenAI fields this node cannot honour."""

    def check(value: Any) -> Any:
        if value is not None and not any(
            type(value) is type(one) and value == one for one in values
        ):
            raise PydanticCustomError("not_supported", "is not supported by this node")
        return None

    return BeforeValidator(check)


def _off_schema(*values: Any) -> WithJsonSchema:
    return WithJsonSchema({"enum": [None, *values]})


Unsupported = Annotated[None, off(), _off_schema()]
EmptyList = Annotated[None, off([]), _off_schema([])]
NoTool = Annotated[None, off("none"), _off_schema("none")]
One = Annotated[None, off(1), _off_schema(1)]
No = Annotated[None, off(False), _off_schema(False)]
PlainText = Annotated[None, off({"type": "text"}), _off_schema({"type": "text"})]
TextOnly = Annotated[None, off(["text"]), _off_schema(["text"])]
DefaultTier = Annotated[None, off("auto", "default"), _off_schema("auto", "default")]
EmptyMap = Annotated[None, off({}), _off_schema({})]
EmptyText = Annotated[None, off(""), _off_schema("")]
Label = Annotated[str, Field(max_length=512)]


def _parse_stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if (
        not isinstance(stops, list)
        or len(stops) > 64
        or not all(isinstance(stop, str) for stop in stops)
    ):
        raise PydanticCustomError("stop", "must be a string or a list of at most 64 strings")
    if any(not 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise PydanticCustomError(
            "stop", f"holds a string that is not 1 to {MAX_STOP_CHARS} characters long"
        )
    return stops


def _parse_logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_LOGIT_BIAS:
        raise PydanticCustomError(
            "logit_bias", f"must map at most {MAX_LOGIT_BIAS} token ids to numbers"
        )
    return {_token_id(key): _bias(bias) for key, bias in value.items()}


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 9):
        raise PydanticCustomError("logit_bias", "has a key that is not a token id")
    return int(key)


def _bias(bias: Any) -> float:
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
        raise PydanticCustomError("logit_bias", "has a value outside -100..100")
    return float(bias)


def _is_token_list(value: list[Any]) -> bool:
    return all(type(token) is int and 0 <= token < 2**31 for token in value)


def parse_prompts(value: Any) -> list[str | list[int]]:
    """A string, a list of strings, a list of token ids, or a list of such lists, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError(
            "prompt", "must be a string, a list of token ids, or a list of either"
        )
    if type(value[0]) is int:
        if len(value) > MAX_PROMPT_TOKENS or not _is_token_list(value):
            raise PydanticCustomError(
                "prompt",
                f"must be a list of at most {MAX_PROMPT_TOKENS} token ids, integers of 0 or more",
            )
        return [value]
    if len(value) > MAX_PROMPTS:
        raise PydanticCustomError("prompt", f"must hold at most {MAX_PROMPTS} prompts")
    for one in value:
        if not (isinstance(one, str) or (isinstance(one, list) and _is_token_list(one))):
            raise PydanticCustomError(
                "prompt", "must hold strings only, or lists of token ids only"
            )
    return value


_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}
Prompts = Annotated[
    list[str | list[int]], PlainValidator(parse_prompts), WithJsonSchema(_PROMPT_SCHEMA)
]
Stop = Annotated[
    list[str],
    PlainValidator(_parse_stop),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "null"},
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": 4},
            ]
        }
    ),
]
LogitBias = Annotated[
    dict[int, float],
    PlainValidator(_parse_logit_bias),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]


@dataclass(frozen=True)
class Within:
    """A number from `low` to `high`, or above `low` where that is excluded; the error names both ends."""

    low: float
    high: float
    excluded: bool = False

    def check(self, value: float) -> float:
        above = value > self.low if self.excluded else value >= self.low
        if not (above and value <= self.high):
            start = "above" if self.excluded else "from"
            raise PydanticCustomError("bounds", f"must be {start} {self.low} to {self.high}")
        return value

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        least = "exclusiveMinimum" if self.excluded else "minimum"
        return handler(schema) | {least: self.low, "maximum": self.high}
