"""Validation of arguments that the library and the clients share."""

from __future__ import annotations

from muniment.errors import BadArguments
from muniment.kernel.names import Trust


def check_texts(**arguments: object) -> None:
    """Check that required arguments are texts.

    Raises:
        BadArguments: one is missing or not a text; the message contains its name.
    """
    for name, value in arguments.items():
        if value is None:
            raise BadArguments(f"{name} is missing: pass a string")
        if not isinstance(value, str):
            raise BadArguments(f"{name} must be a string, not {type(value).__name__}")


def check_optional_texts(**arguments: object) -> None:
    """Check that optional arguments are texts or None.

    Raises:
        BadArguments: one is not; the message contains its name.
    """
    check_texts(**{name: value for name, value in arguments.items() if value is not None})


def parse_trust(value: str | None) -> Trust:
    """Return the trust of an argument, or the owner's for None.

    Raises:
        BadArguments: unknown trust.
    """
    try:
        return Trust.OWNER if value is None else Trust(value)
    except ValueError:
        raise BadArguments(f"unknown trust {value!r}; use one of {', '.join(Trust)}") from None


def parse_integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return a whole number within its limits, also of a float such as 5.0.

    Raises:
        BadArguments: it is not a whole number, or outside of the limits.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadArguments(f"invalid {name} {value!r}: use a whole number")
    if value < minimum or (maximum is not None and value > maximum):
        bounds = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
        raise BadArguments(f"invalid {name} {value!r}: use {bounds}")
    return value
