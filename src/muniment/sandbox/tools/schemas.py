"""Check the members of an object that a language model or a worker sent, by a table of member and schema.

A schema uses keywords of JSON Schema, so the schemas of arguments are also sent to language models.

S1. An object has only members of its table. A member is required unless its schema has a default.
S2. Nothing is coerced: `true`, 5.0 and "5" are not integers.
S3. A pattern must match the complete string, including a line break at its end.
S4. A string with a pattern or a limit of its length must be valid Unicode.

The returned problems never contain a value, only the name of an unknown member.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Literal, TypedDict

Schemas = Mapping[str, "Schema"]
"""The schemas of an object's members, by name. The first problem is searched in this order."""


class Schema(TypedDict, total=False):
    """The conditions for the value of one member.

    Attributes:
        type: the JSON type of the value; always present.
        nullable: whether the value may also be null.
        properties: the schemas of the members, if the value is an object.
        enum: the allowed strings.
        pattern: a regular expression for the string.
        minLength: minimum number of characters.
        maxLength: maximum number of characters.
        minimum: smallest integer.
        maximum: largest integer.
        default: the value of a missing member.
        description: a text for language models.
    """

    type: Literal["string", "integer", "boolean", "object"]
    nullable: bool
    properties: Schemas
    enum: Collection[str]
    pattern: str
    minLength: int
    maxLength: int
    minimum: int
    maximum: int
    default: str | int | bool
    description: str


_TYPES: Final[Mapping[str, type]] = {"string": str, "integer": int, "boolean": bool, "object": Mapping}
_LIMITS: Final = frozenset({"pattern", "minLength", "maxLength"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def find_problem(schemas: Schemas, value: object) -> str | None:
    """Return the first problem with an object, without its subject; None if the object is valid.

    Args:
        schemas: the schemas of the members.
        value: any value.
    """
    if not isinstance(value, Mapping):
        return "needs an object"
    for name, schema in schemas.items():
        if name not in value and "default" not in schema:
            return f"needs the argument {name!r}; it accepts {', '.join(schemas)}"
        if name in value and (problem := _find_value_problem(schema, value[name])) is not None:
            return f"{name}: {problem}"
    unknown = next((name for name in value if name not in schemas), None)
    return None if unknown is None else f"has no argument {unknown!r}; it accepts {', '.join(schemas)}"


def _find_value_problem(schema: Schema, value: object) -> str | None:
    if value is None and schema.get("nullable"):
        return None
    if not isinstance(value, _TYPES[schema["type"]]) or (
        isinstance(value, bool) and schema["type"] != "boolean"  # In Python, a boolean is an integer.
    ):
        return f"input should be a valid {schema['type']}"
    match value:
        case Mapping():
            return find_problem(schema["properties"], value)
        case str():
            return _find_text_problem(schema, value)
        case int():
            return _find_number_problem(schema, value)
        case _:
            return None


def _find_text_problem(schema: Schema, text: str) -> str | None:
    if "enum" in schema and text not in schema["enum"]:
        return f"input should be one of {', '.join(schema['enum'])}"
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(text))
    if len(text) < least:
        return f"string should have at least {least} character{'s' * (least > 1)}"
    if len(text) > most:
        return f"string should have at most {most} characters"
    if not _LIMITS.isdisjoint(schema) and _SURROGATE.search(text):
        return "input should be a valid string, unable to parse raw data as a unicode string"
    if "pattern" in schema and re.fullmatch(schema["pattern"], text) is None:
        return f"string should match {schema['pattern']}"
    return None


def _find_number_problem(schema: Schema, number: int) -> str | None:
    if number < schema.get("minimum", number):
        return f"input should be greater than or equal to {schema['minimum']}"
    if number > schema.get("maximum", number):
        return f"input should be less than or equal to {schema['maximum']}"
    return None
