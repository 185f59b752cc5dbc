"""The settings file: strict YAML, bounded, and its paths read as seen from its own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kvops.errors import ConfigError
from kvops.paths import open_regular

MAX_FILE_BYTES = 1 << 20


def read_yaml(file: Path) -> dict[str, Any]:
    """A mapping. Raises ConfigError for a file that is missing, too large, no mapping, or plays tricks."""
    try:
        with open_regular(file) as handle:
            data = handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}", hint="name a readable YAML file"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{file} is over the bound of {MAX_FILE_BYTES} bytes",
            hint="name a file of settings; configs/node.yaml is an example",
        )
    document = _parse(file, data)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(
            f"{file} is no mapping of settings", hint="for example `model: {name: smollm2-135m}`"
        )
    return document


def beside(file: Path, path: str) -> str:
    """A path in a file of settings is relative to that file; `~` is the home."""
    return str(file.absolute().parent / Path(path).expanduser())


def _parse(file: Path, data: bytes) -> Any:
    try:
        return yaml.load(data, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(
            f"{file}{where}: not valid YAML: {error.problem}", hint=f"correct it in {file}"
        ) from None
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", "it cannot be read")
        raise ConfigError(f"{file}: not valid YAML: {reason}", hint="save it as UTF-8") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read: {type(error).__name__}",
            hint="settings are two levels deep: section, then key",
        ) from None


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without aliases (they grow exponentially) and without duplicate keys (one would be lost)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} appears twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
