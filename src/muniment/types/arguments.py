"""Validation of arguments that the library and the clients share."""

from __future__ import annotations

from muniment.errors import BadArguments
from muniment.kernel.names import Trust


def check_texts(**arguments: object) -> None:
    """Check that the values of required arguments are strings.

    Args:
        arguments: the values, by the names of the arguments.

    Raises:
        BadArguments: a value is None or not a string; the message contains the name of the argument.
    """
    for name, value in arguments.items():
        if value is None:
            raise BadArguments(f"{name} is missing: pass a string")
        if not isinstance(value, str):
            raise BadArguments(f"{name} must be a string, not {type(value).__name__}")


def check_optional_texts(**arguments: object) -> None:
    """Check that the values of optional arguments are strings or None.

    Args:
        arguments: the values, by the names of the arguments.

    Raises:
        BadArguments: a value is neither; the message contains the name of the argument.
    """
    check_texts(**{name: value for name, value in arguments.items() if value is not None})


def parse_trust(value: str | None) -> Trust:
    """Return the trust with the name `value`; None means the trust `owner`.

    Raises:
        BadArguments: unknown name of a trust.
    """
    try:
        return Trust.OWNER if value is None else Trust(value)
    except ValueError:
        raise BadArguments(f"unknown trust {value!r}; use one of {', '.join(Trust)}") from None


def parse_integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return the value of an argument as an integer; a float such as 5.0 is accepted.

    Args:
        name: the name of the argument, for the message.
        value: the value.
        minimum: the smallest permitted value.
        maximum: the largest permitted value; None: no limit.

    Raises:
        BadArguments: the value is not a whole number, or is outside of the limits.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadArguments(f"invalid {name} {value!r}: use a whole number")
    if value < minimum or (maximum is not None and value > maximum):
        bounds = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
        raise BadArguments(f"invalid {name} {value!r}: use {bounds}")
    return value
