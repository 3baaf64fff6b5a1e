"""The JSON Schema for editors: it takes what loads, and marks what is plainly wrong."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from kit.policy.files import READ, SCOPES, named
from muniment.errors import PolicyInvalid
from muniment.lab.schema import policy_schema, render
from muniment.policy.family import shipped_folder
from muniment.policy.tables import read_tables

POLICIES = sorted(path for path in shipped_folder().glob("*.toml") if "muniment-policy/1" in path.read_text())
SCHEMA = policy_schema()
TYPES = {"string": str, "integer": int, "number": (int, float), "array": list, "object": dict}


def fits(value, schema=SCHEMA):
    """A validator of our own for the part of draft 7 that the schema uses; it knows all keywords in it."""
    checks = {
        "$ref": lambda ref: fits(value, SCHEMA["definitions"][ref.rpartition("/")[2]]),
        "type": lambda kind: isinstance(value, TYPES[kind]) and not isinstance(value, bool),
        "enum": lambda known: value in known,
        "const": lambda known: value == known,
        "anyOf": lambda inner: any(fits(value, each) for each in inner),
        "not": lambda inner: not fits(value, inner),
        "pattern": lambda pattern: matches(pattern, value),
        "minimum": lambda least: value >= least,
        "exclusiveMinimum": lambda least: value > least,
        "maximum": lambda most: value <= most,
        "minItems": lambda least: len(value) >= least,
        "maxItems": lambda most: len(value) <= most,
        "minProperties": lambda least: len(value) >= least,
        "maxProperties": lambda most: len(value) <= most,
        "items": lambda inner: all(fits(each, inner) for each in value),
        "required": lambda keys: set(keys) <= set(value),
        "properties": lambda keys: all(fits(value[key], keys[key]) for key in keys.keys() & value.keys()),
        "patternProperties": lambda keys: all(
            fits(value[key], keys[pattern]) for key in value for pattern in keys if matches(pattern, key)
        ),
        "additionalProperties": lambda _: all(known(key, schema) for key in value),
    }
    words = {"$schema", "title", "description", "default", "definitions"}
    return all(checks[keyword](schema[keyword]) for keyword in schema if keyword not in words)


def known(key, schema):
    return key in schema.get("properties", {}) or any(
        matches(pattern, key) for pattern in schema.get("patternProperties", {})
    )


def matches(pattern, text):
    """As ECMA 262 has it: `$` is the very end."""
    return re.search(pattern.replace("$", r"\Z"), text) is not None


def test_the_file_beside_the_policies_is_current():
    """Otherwise: python -m muniment.lab.schema > policies/policy.schema.json."""
    assert (shipped_folder() / "policy.schema.json").read_text() == render()


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_every_shipped_policy_names_the_schema_and_fits_it(path):
    text = path.read_text()
    assert text.startswith("#:schema ./policy.schema.json\n")
    assert fits(tomllib.loads(text))


def test_it_is_closed_and_holds_no_words_of_python():
    text = json.dumps(SCHEMA)
    for table in (SCHEMA, *SCHEMA["definitions"].values()):
        if "properties" in table:
            assert table["additionalProperties"] is False
    assert "Attributes:" not in text
    assert "\\\\z" not in text
    assert '"null"' not in text
    assert SCHEMA["definitions"]["Limits"]["properties"]["turns"]["description"] == "model calls."


RULE = '[[allow]]\nid = "a"\nverbs = {}\npaths = {}\n'
DENY = '[[deny]]\nid = "d"\nverbs = {}\npaths = {}\n'


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        (named("own"), True),
        (named("own", extends=["strict", "./a.toml", "../b/c", "d.toml", ".toml"]), True),
        (named("own", SCOPES + DENY.format('["*", "read"]', '["*.md", "a/"]')), True),
        (named("own", '[retention]\nuntrusted = "never"\ndefault = 36_500\n', ["strict"]), True),
        (named("own", SCOPES + "[content]\nreject = []\n"), True),
        (named("own", SCOPES + '[confinement]\nrequire = "none"\n'), True),
        (named("Own"), False),
        (named("request"), False),
        (named("own\\n"), False),
        (named("own", extends=["/etc/a.toml"]), False),
        (named("own", extends=["~/a.toml"]), False),
        (named("own", extends=["Strict"]), False),
        (named("own", "[scopes]\n"), False),
        (named("own", "[scopes]\nUser = {}\n"), False),
        (named("own", '[scopes]\nuser = { trust = "friend" }\n'), False),
        (named("own", "color = 1\n" + SCOPES), False),
        (named("own", SCOPES + RULE.format('["read", "*"]', '["/**"]')), False),
        (named("own", SCOPES + RULE.format('["write"]', '["/**"]')), False),
        (named("own", SCOPES + RULE.format("[]", '["/**"]')), False),
        (named("own", SCOPES + DENY.format('["*"]', "[]")), False),
        (named("own", SCOPES + READ + "[limits]\nturns = 7\n"), False),
        (named("own", SCOPES + "[limits]\nminutes = 7\n"), False),
        (named("own", SCOPES + '[content]\nreject = ["html"]\n'), False),
        (named("own", SCOPES + "[changes]\nmax_scope_share = 0\n"), False),
        (named("own", SCOPES + "[retention]\nuntrusted = 0\n"), False),
        (named("own", SCOPES + "[retention]\nuntrusted = true\n"), False),
        ('schema = "muniment-policy/2"\nname = "own"\n', False),
        ('schema = "muniment-policy/1"\n', False),
    ],
)
def test_it_agrees_with_what_a_file_is_read_with(text, is_fine):
    data = tomllib.loads(text)
    try:
        read_tables(data, "own")
        is_read = True
    except PolicyInvalid:
        is_read = False
    assert (fits(data), is_read) == (is_fine, is_fine)


def test_it_wants_allow_and_quota_patterns_to_be_anchored():
    for table in (RULE.format('["read"]', '["*.md"]'), '[[quota]]\nid = "q"\npaths = ["*.md"]\n'):
        assert not fits(tomllib.loads(named("own", SCOPES + table)))
