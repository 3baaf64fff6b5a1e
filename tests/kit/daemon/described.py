"""What an OpenAPI document says, read independently of what made it: which values a schema takes, and some.

Only the words of JSON Schema that the document uses are known; another one is an error, not a shrug.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

KNOWN = {
    *("$ref", "type", "enum", "const", "properties", "required", "additionalProperties", "items"),
    *("anyOf", "oneOf", "allOf", "minLength", "maxLength", "pattern", "minimum", "maximum", "maxItems"),
    *("title", "description", "default", "discriminator", "format", "examples"),
}
TYPES = {"string": str, "object": dict, "array": list, "boolean": bool, "integer": int, "any": object}
TYPES |= {"number": (int, float), "null": type(None)}
FITS = {
    "const": lambda value, wanted: value == wanted,
    "enum": lambda value, wanted: value in wanted,
    "minLength": lambda value, least: not isinstance(value, str) or len(value) >= least,
    "maxLength": lambda value, most: not isinstance(value, str) or len(value) <= most,
    "pattern": lambda value, pattern: not isinstance(value, str) or re.search(pattern, value) is not None,
    "minimum": lambda value, least: not isinstance(value, int) or value >= least,
    "maximum": lambda value, most: not isinstance(value, int) or value <= most,
    "maxItems": lambda value, most: not isinstance(value, list) or len(value) <= most,
    "required": lambda value, names: not isinstance(value, dict) or value.keys() >= set(names),
}
"""What a value must be for a word of its schema, where that says something about it."""
HTTP_METHODS = ("get", "post", "delete")


@dataclass(frozen=True)
class Described:
    """One operation of the document."""

    method: str
    path: str
    document: dict[str, Any]

    @property
    def name(self):
        return self.document["operationId"]

    @property
    def body(self):
        """The schema of its body; None: it takes none."""
        content = self.document.get("requestBody", {}).get("content")
        return None if content is None else content["application/json"]["schema"]

    def parameters(self, where):
        return [each for each in self.document["parameters"] if each["in"] == where]

    def answers(self, status):
        """Schemas of an answer by media type; None: no such status is described."""
        found = self.document["responses"].get(str(status))
        return None if found is None else {k: v["schema"] for k, v in found.get("content", {}).items()}


def _parts(schema, value):
    """The members of a value: name, what their schema is (True: any, False: there may be none), and value."""
    if isinstance(value, list) and "items" in schema:
        return [(str(number), schema["items"], each) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return []
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    return [(name, known.get(name, more), each) for name, each in value.items()]


class Reader:
    """Reads a document."""

    def __init__(self, document):
        self.document = document

    @cached_property
    def operations(self):
        return tuple(
            Described(method.upper(), path, described)
            for path, methods in self.document["paths"].items()
            for method, described in methods.items()
        )

    def resolved(self, schema):
        """A schema, where it is only named elsewhere, with what stands beside its name."""
        if "$ref" not in schema:
            return schema
        found = self.document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return {**self.resolved(found), **{name: value for name, value in schema.items() if name != "$ref"}}

    def problems(self, schema, value, where="$"):
        """Why a value is none of a schema, one by one."""
        schema = self.resolved(schema)
        assert set(schema) <= KNOWN, set(schema) - KNOWN
        kind = TYPES[schema.get("type", "any")]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in {bool, object}):
            yield f"{where}: {type(value).__name__} is no {schema['type']}"
            return
        for word, fits in FITS.items():
            if word in schema and not fits(value, schema[word]):
                yield f"{where}: {value!r} is not as {word} {schema[word]!r} says"
        for each in schema.get("allOf", ()):
            yield from self.problems(each, value, where)
        for word in {"anyOf", "oneOf"} & set(schema):
            found = [list(self.problems(each, value, where)) for each in schema[word]]
            if found.count([]) not in ((1,) if word == "oneOf" else range(1, len(found) + 1)):
                yield f"{where}: fits {found.count([])} of {len(found)}: {found}"
        for name, part, each in _parts(schema, value):
            if part is False:
                yield f"{where}: has {name}"
            elif part is not True:
                yield from self.problems(part, each, f"{where}.{name}")

    def values(self, schema, texts, likely=None):
        """Values of a schema.

        `texts` are strings where any will do, `likely` those for members of a name, most of the time.
        """
        likely = likely or {}
        schema = self.resolved(schema)
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return st.one_of([self.values(each, texts, likely) for each in schema[word]])
        return self._made(schema, texts, likely)

    def _made(self, schema, texts, likely):
        """Values of a schema that names one type."""
        match schema["type"]:
            case "string" if "pattern" in schema:
                return st.from_regex(re.compile(schema["pattern"], re.ASCII))
            case "string":
                least, most = schema.get("minLength", 0), schema.get("maxLength", 1 << 20)
                return texts.filter(lambda text: least <= len(text) <= most)
            case "boolean":
                return st.booleans()
            case "integer":
                return st.integers(schema.get("minimum"), schema.get("maximum"))
            case "null":
                return st.none()
            case "array":
                most = min(4, schema.get("maxItems", 4))
                return st.lists(self.values(schema["items"], texts, likely), max_size=most)
            case "object":
                known = {
                    name: st.one_of(*[likely[name]] * 3, each) if name in likely else each
                    for name, part in schema.get("properties", {}).items()
                    for each in [self.values(part, texts, likely)]
                }
                required = set(schema.get("required", ()))
                return st.fixed_dictionaries(
                    {name: each for name, each in known.items() if name in required},
                    optional={name: each for name, each in known.items() if name not in required},
                )
        raise AssertionError(schema)
