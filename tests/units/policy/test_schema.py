"""The JSON Schema for editors: it accepts every file that loads, and rejects the clearly wrong ones."""

import json
import re
import tomllib

from kit.policy.files import SCOPES, format_policy, format_quota, format_rule, read_error_code
from muniment.lab.schema import build_policy_schema
from muniment.policy.files import get_shipped_folder
from muniment.policy.tables import read_tables

SCHEMA = build_policy_schema()
WRONG_OPTIONS = """limits.turns = 7|limits.minutes = 7|content.reject = ["html"]|changes.max_scope_share = 0|
retention.untrusted = 0|retention.untrusted = true""".replace("\n", "")
TYPES = {"string": str, "integer": int, "number": (int, float), "array": list, "object": dict}


def fits(value, schema=SCHEMA):
    """Validate the part of draft 7 that the schema uses, with all its keywords."""

    def is_known(key):
        return any(matches(pattern, key) for pattern in schema.get("patternProperties", {}))

    checks = {
        "$ref": lambda ref: fits(value, SCHEMA["definitions"][ref.rpartition("/")[2]]),
        "type": lambda kind: isinstance(value, TYPES[kind]) and not isinstance(value, bool),
        "enum": lambda values: value in values,
        "const": lambda expected: value == expected,
        "anyOf": lambda inner: any(fits(value, each) for each in inner),
        "not": lambda inner: not fits(value, inner),
        "pattern": lambda pattern: matches(pattern, value),
        "minimum": lambda least: value >= least,
        "exclusiveMinimum": lambda least: value > least,
        "maximum": lambda most: value <= most,
        **dict.fromkeys(("minItems", "minProperties"), lambda least: len(value) >= least),
        **dict.fromkeys(("maxItems", "maxProperties"), lambda most: len(value) <= most),
        "items": lambda inner: all(fits(each, inner) for each in value),
        "required": lambda keys: set(keys) <= set(value),
        "properties": lambda keys: all(fits(value[key], keys[key]) for key in keys.keys() & value.keys()),
        "patternProperties": lambda keys: all(
            fits(value[key], keys[pattern]) for key in value for pattern in keys if matches(pattern, key)
        ),
        "additionalProperties": lambda _: all(
            map(is_known, value.keys() - schema.get("properties", {}).keys())
        ),
    }
    ignored = {"$schema", "title", "description", "default", "definitions"}
    return all(checks[keyword](schema[keyword]) for keyword in schema if keyword not in ignored)


def matches(pattern, text):
    """Search as ECMA 262 specifies: `$` is the very end."""
    return re.search(pattern.replace("$", r"\Z"), text) is not None


def test_schema_is_closed_and_free_of_python_terms():
    text, tables = json.dumps(SCHEMA), [SCHEMA, *SCHEMA["definitions"].values()]
    assert {table["additionalProperties"] for table in tables if "properties" in table} == {False}
    assert [word for word in ("Attributes:", r"\\z", '"null"') if word in text] == []
    assert SCHEMA["definitions"]["LimitsTable"]["properties"]["turns"]["description"] == "model calls."


FITTING = [
    *(path.read_text() for path in get_shipped_folder().glob("*.toml") if path.name != "invariants.toml"),
    *(
        format_policy("own"),
        format_policy("own", extends=["strict", "./a.toml", "../b/c", "d.toml", ".toml"]),
    ),
    format_policy("own", SCOPES + format_rule("deny", "d", ["*", "read"], ["*.md", "a/"])),
    format_policy("own", '[retention]\nuntrusted = "never"\ndefault = 36_500\n', ["strict"]),
    *(
        format_policy("own", each + SCOPES)
        for each in ("content.reject = []\n", 'confinement.require = "none"\n')
    ),
]
WRONG = [
    *(format_policy(name) for name in ("Own", "request", "own\\n")),
    *(format_policy("own", extends=[each]) for each in ("/etc/a.toml", "~/a.toml", "Strict")),
    *(
        format_policy("own", f"[scopes]\n{line}")
        for line in ("", "User = {}\n", 'user = { trust = "friend" }\n')
    ),
    *(
        format_policy("own", SCOPES + format_rule("allow", "a", verbs, ["/**"]))
        for verbs in (["read", "*"], ["write"], [])
    ),
    *(
        format_policy("own", "color = 1\n" + SCOPES),
        format_policy("own", SCOPES + format_rule("deny", "d", ["*"], [])),
    ),
    *(format_policy("own", f"{term}\n{SCOPES}") for term in WRONG_OPTIONS.split("|")),
    *('schema = "muniment-policy/2"\nname = "own"\n', 'schema = "muniment-policy/1"\n'),
]


def test_schema_agrees_with_the_loader():
    for texts, is_fine in (FITTING, True), (WRONG, False):
        for text in texts:
            data = tomllib.loads(text)
            assert (fits(data), read_error_code(read_tables, data, "own") is None) == (is_fine, is_fine), text
    for table in (
        format_rule("allow", "a", ["read"], ["*.md"]),
        format_quota("q", "*.md"),
    ):  # Allow patterns are anchored.
        assert not fits(tomllib.loads(format_policy("own", SCOPES + table)))
