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
    ConfinementRequirement,
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


def build_policy_schema() -> dict[str, Any]:
    """Return the schema as a value, in draft 7, which TOML editors support."""
    schema = PolicyFile.model_json_schema(by_alias=True, ref_template="#/definitions/{model}")
    definitions, keys = schema.pop("$defs"), schema["properties"]
    _add_validator_rules(definitions, keys)
    definitions["ConfinementTable"]["description"] = cleandoc(ConfinementRequirement.__doc__ or "")
    for part in (Limits, Changes, Content, Provenance, Retention, Quota):
        definitions[f"{part.__name__}Table"]["description"] = cleandoc(part.__doc__ or "")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"A policy of Muniment: {SCHEMA}",
        **_add_descriptions({**schema, "definitions": definitions}),
    }


def render_schema() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(build_policy_schema(), indent=2) + "\n"


def _add_validator_rules(definitions: dict[str, Any], keys: dict[str, Any]) -> None:
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
    keys["scopes"] = {**_drop_null(keys["scopes"]), "additionalProperties": False}
    test = definitions["CheckTable"]["properties"]
    for key in ("file_bytes", "files", "total_bytes"):
        test[key] = _drop_null(test[key])


def _drop_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an optional key for the case that it is present; TOML has no null."""
    return next(each for each in schema["anyOf"] if each["type"] != "null")


def _add_descriptions(schema: Any) -> Any:
    """Return the schema with docstrings as descriptions for editors, without generated titles."""
    if isinstance(schema, list):
        return [_add_descriptions(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _add_descriptions(value) for key, value in schema.items() if key != "title"}
    if "pattern" in result:
        result["pattern"] = result["pattern"].replace(r"\z", "$")
    if "patternProperties" in result:
        patterns = result["patternProperties"].items()
        result["patternProperties"] = {pattern.replace(r"\z", "$"): value for pattern, value in patterns}
    if "properties" in result and "description" in result:
        result["description"], _, attributes = result["description"].partition("\n\nAttributes:\n")
        for key, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
            result["properties"][key]["description"] = re.sub(r"\s+", " ", text)
    return result


if __name__ == "__main__":
    sys.stdout.write(render_schema())
