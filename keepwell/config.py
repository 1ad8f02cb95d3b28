"""`keepwell.toml` and the environment: what the command line and a runtime start with.

A value is taken from the environment if it is set there, else from the file, else it is the
default. The file is `keepwell.toml` in the working directory, or what KEEPWELL_CONFIG names.
Secrets are read from the environment only, by those who need them, and are never part of a
`Config`: a file that holds one is refused.

| key | environment | default |
|---|---|---|
| `runtime.data_dir` | KEEPWELL_DATA_DIR | none: conversations are kept in memory |
| `runtime.durability` | KEEPWELL_DURABILITY | `"power"` |
| `runtime.name` | KEEPWELL_NAME | `"keepwell"` |
| `model.name` | KEEPWELL_MODEL | none: the local model if it is installed, else the scripted one |
| `model.base_url` | KEEPWELL_BASE_URL | none: the SDK's default endpoint |
| `service.drain_timeout` | KEEPWELL_DRAIN_TIMEOUT | 25 (seconds) |
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from .actors.errors import InvalidValue
from .runtime import DRAIN_SECONDS, Runtime

FILE: Final = "keepwell.toml"
_SECRETS: Final = ("key", "secret", "token", "password")


class InvalidConfig(InvalidValue):
    """A configuration cannot be used; the sentence names where, which key, and the remedy."""

    def __init__(self, source: str, key: str, problem: str) -> None:
        super().__init__(f"{source}: {key}: {problem}")
        self.source, self.key = source, key


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a non-empty string")
    return value


def _durability(value: object) -> str:
    if value not in ("power", "process"):
        raise ValueError(f'must be "power" or "process", not {value!r}')
    return str(value)


def _seconds(value: object) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"must be a number of seconds, not {value!r}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError(f"must be a number of seconds from 0 up, not {value!r}")
    return float(value)


def _url(value: object) -> str:
    text = _text(value)
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"must begin with http:// or https://, not {text!r}")
    return text


def _setting(default: Any, key: str, variable: str, read: Callable[[object], Any]) -> Any:
    return field(default=default, metadata={"key": key, "variable": variable, "read": read})


@dataclass(frozen=True)
class Config:
    """What was configured, checked. See the table of this module."""

    data_dir: str | None = _setting(None, "runtime.data_dir", "KEEPWELL_DATA_DIR", _text)
    durability: str = _setting("power", "runtime.durability", "KEEPWELL_DURABILITY", _durability)
    name: str = _setting("keepwell", "runtime.name", "KEEPWELL_NAME", _text)
    model: str | None = _setting(None, "model.name", "KEEPWELL_MODEL", _text)
    base_url: str | None = _setting(None, "model.base_url", "KEEPWELL_BASE_URL", _url)
    drain_timeout: float = _setting(
        DRAIN_SECONDS, "service.drain_timeout", "KEEPWELL_DRAIN_TIMEOUT", _seconds
    )

    def runtime(self) -> Runtime:
        """A runtime as configured, to be entered."""
        durability: Any = self.durability
        if self.data_dir is None:
            return Runtime(name=self.name)
        return Runtime(self.data_dir, name=self.name, durability=durability)


def load_config(
    path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ
) -> Config:
    """Read the configuration. Raises InvalidConfig, naming the key and the remedy.

    `path`: the file; None takes what KEEPWELL_CONFIG names, else `keepwell.toml` if it is there. A
    file that was named must exist.
    """
    named = path if path is not None else environ.get("KEEPWELL_CONFIG")
    file = Path(named or FILE)
    values: dict[str, Any] = {}
    if named or file.exists():
        values.update(parse_config(_read(file), str(file)))
    for setting in fields(Config):
        variable = setting.metadata["variable"]
        if environ.get(variable):
            values[setting.name] = _checked(
                setting.metadata["read"], environ[variable], "environment", variable
            )
    return Config(**values)


def parse_config(document: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The fields of a `Config` that `document` (a parsed TOML file) sets. Pure."""
    known = {setting.metadata["key"]: setting for setting in fields(Config)}
    values: dict[str, Any] = {}
    for section, content in document.items():
        if not isinstance(content, Mapping):
            raise InvalidConfig(source, section, f"stands outside a section: use [{section}]")
        for name, value in content.items():
            key = f"{section}.{name}"
            if any(word in name.lower() for word in _SECRETS):
                # The value is not shown: it may be the secret itself.
                raise InvalidConfig(
                    source, key, "secrets do not belong into a file: set the environment variable "
                    "of the model's SDK instead, for example OPENAI_API_KEY",
                )  # fmt: skip
            setting = known.get(key)
            if setting is None:
                near = get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise InvalidConfig(source, key, f"is not known; {hint}")
            values[setting.name] = _checked(setting.metadata["read"], value, source, key)
    return values


def _checked(read: Callable[[object], Any], value: object, source: str, key: str) -> Any:
    try:
        return read(value)
    except ValueError as problem:
        raise InvalidConfig(source, key, str(problem)) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidConfig(str(file), "file", problem.strerror or str(problem)) from problem
    except UnicodeDecodeError as problem:
        raise InvalidConfig(str(file), "file", "is not UTF-8") from problem
    except tomllib.TOMLDecodeError as problem:
        raise InvalidConfig(str(file), "syntax", str(problem)) from problem
