"""The settings of a language model, and their checks.

Separate from `model`: every command reads settings, and few need the messages to a model.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from muniment.content.gates import escape_invisible
from muniment.errors import ConfigInvalid, printable

ProtocolName = Literal["auto", "tools", "json", "text", "decide"]

PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)
"""The protocols that a user can choose for a language model; `auto` detects what the server supports."""

OnModelFailure = Literal["rules", "fail"]
"""The reaction to a failed language model: the built-in rules do the work, or the task fails."""

MAX_MODEL_CHARS: Final = 200
"""Maximum characters of a model's name, which is part of results, entries and terminal output."""


def check_model_name(name: str) -> str:
    """Return `name` if it is a valid name of a model.

    All characters of a valid name are visible, so that an entry with this name passes every content check.

    Raises:
        ConfigInvalid: `name` does not have 1 to `MAX_MODEL_CHARS` printable characters, or has a space at its
            beginning or end.
    """
    is_fully_visible = name.isprintable() and name == name.strip() and name == escape_invisible(name)
    if not (1 <= len(name) <= MAX_MODEL_CHARS and is_fully_visible):
        raise ConfigInvalid(
            f"invalid model name: use 1 to {MAX_MODEL_CHARS} printable characters, "
            "without a space at either end"
        )
    return name


def check_protocol(protocol: str) -> ProtocolName:
    """Return `protocol` if it is one of `PROTOCOLS`.

    Raises:
        ConfigInvalid: it is another text.
    """
    known = next((each for each in PROTOCOLS if each == protocol), None)
    if known is None:
        choices = f"{', '.join(PROTOCOLS[:-1])} or {PROTOCOLS[-1]}"
        raise ConfigInvalid(f"unknown protocol {printable(protocol)!r}; use one of {choices}")
    return known


def check_on_model_failure(value: str) -> OnModelFailure:
    """Return `value` if it is `rules` or `fail`, the possible reactions to a failed model.

    Raises:
        ConfigInvalid: it is another text.
    """
    known: OnModelFailure | None = next((each for each in get_args(OnModelFailure) if each == value), None)
    if known is None:
        raise ConfigInvalid(f"unknown on_model_failure {printable(value)!r}; use rules or fail")
    return known
