"""Settings from the environment: `KVOPS_SECTION__KEY`, the file that `KVOPS_SECTION__KEY_FILE` names, and systemd's
credentials, `kvops.section.key`. A setting that comes from two of them is an error, and so is a name that is none.
"""

from __future__ import annotations

import difflib
import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvops import failpoints
from kvops.config.faults import Fault, unknown_key, unknown_variable
from kvops.config.keys import PREFIX, holds_table, leaf_keys, variable_of
from kvops.errors import ConfigError
from kvops.paths import open_regular

KEY_VARIABLES = ("KVOPS_API_KEYS", "KVOPS_API_KEYS_FILE")
NO_SETTINGS = {
    *KEY_VARIABLES, "KVOPS_HOME", "KVOPS_API_KEY", "KVOPS_API_KEY_FILE", "KVOPS_ADMIN_TOKEN",
    "KVOPS_ADMIN_TOKEN_FILE", "KVOPS_CONTROL_URL", "KVOPS_LOAD", "KVOPS_GATEWAY_URL",
    "KVOPS_TENANT_KEYS_FILE", "KVOPS_NODE_LOG", failpoints.VARIABLE,
}  # fmt: skip
"""Variables that kvops reads elsewhere."""
_SECRETS = ("KVOPS_ALERT_URL_",)
"""How the names of others begin, that hold a secret each."""
CREDENTIALS = "CREDENTIALS_DIRECTORY"
_CREDENTIAL = "kvops."
_FILE = "_file"
_MAX_BYTES = 64 * 1024
_NEAR = 0.8


@dataclass
class FromEnvironment:
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """As `environment KVOPS_SERVER__PORT` or `credential kvops.server.port`."""
    faults: list[Fault] = field(default_factory=list)

    def add(self, key: str, text: str, origin: str) -> None:
        if key in self.values:
            both = f"{key} comes from {self.origins[key]} and {origin}"
            self.faults.append(Fault(both, "leave one of them"))
        self.values[key], self.origins[key] = _parsed(key, text), origin

    def add_file(self, key: str, file: Path, origin: str) -> None:
        try:
            self.add(key, read_secret_file(file), origin)
        except ConfigError as error:
            self.faults.append(Fault(f"{key} ({origin}): {error.message}", error.hint))


def from_environment(environment: Mapping[str, str]) -> FromEnvironment:
    found = FromEnvironment()
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX) and not is_secret(name) and name not in NO_SETTINGS:
            _take(found, name, text)
    for file in _credentials(environment):
        key = file.name.removeprefix(_CREDENTIAL)
        if key in leaf_keys():
            found.add_file(key, file, f"credential {file.name}")
        else:
            found.faults.append(unknown_key(key, f"credential {file.name}"))
    return found


def is_secret(variable: str) -> bool:
    return variable.startswith(_SECRETS)


def credential(name: str, environment: Mapping[str, str]) -> Path | None:
    """The file of systemd's credential `kvops.<name>`, where there is one."""
    folder = environment.get(CREDENTIALS)
    file = Path(folder) / f"{_CREDENTIAL}{name}" if folder else None
    return file if file is not None and file.is_file() else None


def read_secret_file(file: Path) -> str:
    """What the file holds, without the end of its line. Raises ConfigError for one that others may read."""
    try:
        with open_regular(file) as opened:
            mode, data = stat.S_IMODE(file.stat().st_mode), opened.read(_MAX_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}", hint="name a readable file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is no text", hint="save it as UTF-8") from None
    if mode & 0o007:
        raise ConfigError(
            f"{file} is readable by everyone (mode {mode:04o})", hint=f"chmod 600 {file}"
        )
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{file} is over the bound of {_MAX_BYTES} bytes", hint="shorten it")
    return text.removesuffix("\n")


def _take(found: FromEnvironment, name: str, text: str) -> None:
    key = name.removeprefix(PREFIX).lower().replace("__", ".")
    pointed = key.removesuffix(_FILE)
    if key in leaf_keys():
        found.add(key, text, f"environment {name}")
    elif key != pointed and pointed in leaf_keys():
        found.add_file(pointed, Path(text), f"environment {name}")
    else:
        found.faults.append(_meant_elsewhere(name) or unknown_variable(name, key))


def _meant_elsewhere(name: str) -> Fault | None:
    """Where a variable that is no setting is nearer than any that is one."""
    known = [*NO_SETTINGS, *map(variable_of, leaf_keys())]
    near = difflib.get_close_matches(name, known, 1, _NEAR)
    if not near or near[0] not in NO_SETTINGS:
        return None
    return Fault(f"{name} is not a setting", f"did you mean {near[0]}?")


def _credentials(environment: Mapping[str, str]) -> Iterator[Path]:
    folder = environment.get(CREDENTIALS)
    for file in sorted(Path(folder).glob(f"{_CREDENTIAL}*")) if folder else ():
        variable = PREFIX + file.name.removeprefix(_CREDENTIAL).upper()
        if variable not in NO_SETTINGS and not is_secret(variable):
            yield file


def _parsed(key: str, text: str) -> Any:
    if text in ("", "null"):
        return None
    if holds_table(key) and text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text  # which the schema refuses by name
    return text
