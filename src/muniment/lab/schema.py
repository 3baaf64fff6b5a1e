"""Build the JSON Schema of a policy file, for completion and early checks in editors.

    python -m muniment.lab.schema > policies/policy.schema.json

It is generated from the models that read the file, so it accepts every policy that loads. It does not replace
`muniment policy lint`: it does not check duplicate ids, patterns, parents and tests.
"""

from __future__ import annotations

import json
import re
import sys
from inspect import cleandoc
from typing import Any, Final

from muniment.kernel.decide import (
    MAX_DAYS,
    NEVER,
    Changes,
    Confinement,
    Content,
    Limits,
    Provenance,
    Quota,
    Retention,
)
from muniment.kernel.names import Verb
from muniment.kernel.path import GRAMMAR_LAYER
from muniment.policy.tables import REQUEST_LAYER, RESERVED_RULES, SCHEMA, PolicyFile

_PARENT: Final = r"^([a-z0-9][a-z0-9_-]{0,63}|[^/~].*/.*|[^/~].*\.toml|\.toml)$"
"""Allowed values of `extends`: a name, or a path that is neither absolute nor in a home directory."""


def policy_schema() -> dict[str, Any]:
    """Return the schema as a value, in draft 7, which TOML editors support."""
    made = PolicyFile.model_json_schema(by_alias=True, ref_template="#/definitions/{model}")
    definitions, keys = made.pop("$defs"), made["properties"]
    _say_what_validators_ask(definitions, keys)
    for part in (Limits, Confinement, Changes, Content, Provenance, Retention, Quota):
        definitions[f"{part.__name__}Table"]["description"] = cleandoc(part.__doc__ or "")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"A policy of Muniment: {SCHEMA}",
        **_told({**made, "definitions": definitions}),
    }


def render() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(policy_schema(), indent=2) + "\n"


def _say_what_validators_ask(definitions: dict[str, Any], keys: dict[str, Any]) -> None:
    """Add the rules that pydantic does not know, since functions check them."""
    verbs = [verb.value for verb in Verb]
    definitions["AllowTable"]["properties"]["verbs"]["items"] = {"enum": verbs}
    definitions["RuleTable"]["properties"]["verbs"]["items"] = {"enum": [*verbs, "*"]}
    for table in ("AllowTable", "RuleTable"):
        definitions[table]["properties"]["id"]["not"] = {"enum": sorted(RESERVED_RULES)}
    for table in ("AllowTable", "QuotaTable"):
        definitions[table]["properties"]["paths"]["items"]["pattern"] = "^/"
    days = [{"type": "integer", "minimum": 1, "maximum": MAX_DAYS}, {"const": NEVER}]
    for retention in definitions["RetentionTable"]["properties"].values():
        retention["anyOf"] = days
    keys["name"]["not"] = {"enum": sorted({REQUEST_LAYER, GRAMMAR_LAYER})}
    keys["extends"]["items"]["pattern"] = _PARENT
    keys["scopes"] = {**_present(keys["scopes"]), "additionalProperties": False}
    test = definitions["CheckTable"]["properties"]
    for key in ("file_bytes", "files", "total_bytes"):
        test[key] = _present(test[key])


def _present(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an optional key for the case that it is present; TOML has no null."""
    return next(each for each in schema["anyOf"] if each["type"] != "null")


def _told(schema: Any) -> Any:
    """Return the schema with docstrings as descriptions for editors, without generated titles."""
    if isinstance(schema, list):
        return [_told(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    told = {key: _told(value) for key, value in schema.items() if key != "title"}
    if "pattern" in told:
        told["pattern"] = told["pattern"].replace(r"\z", "$")
    if "patternProperties" in told:
        inside = told["patternProperties"].items()
        told["patternProperties"] = {pattern.replace(r"\z", "$"): value for pattern, value in inside}
    if "properties" in told and "description" in told:
        told["description"], _, attributes = told["description"].partition("\n\nAttributes:\n")
        for key, words in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
            told["properties"][key]["description"] = re.sub(r"\s+", " ", words)
    return told


if __name__ == "__main__":
    sys.stdout.write(render())
