"""The document that describes the daemon: whole, in order, and about what there is."""

from __future__ import annotations

import json
import re

import pytest

from kit.daemon.described import KNOWN, Reader
from kit.daemon.raw import running
from muniment.daemon.contract import HTTP, TASK
from muniment.daemon.http import document_of
from muniment.daemon.service import OPERATIONS

DOCUMENT = document_of(OPERATIONS)
READER = Reader(DOCUMENT)


def references(value):
    """Every `$ref` of a document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_daemon_serves_the_document_that_its_operations_make(tmp_path):
    with running(tmp_path) as daemon:
        answer = daemon.ask("GET", "/openapi.json")
        assert answer.values("content-type") == ["application/json"]
        assert answer.json == DOCUMENT
        assert str(tmp_path) not in answer.body.decode()


def test_every_name_in_it_leads_somewhere_and_nothing_in_it_is_unused():
    used = set(references(DOCUMENT))
    there = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert used == there


def test_no_two_operations_have_one_id():
    names = [operation.name for operation in READER.operations]
    assert len(set(names)) == len(names) == len(OPERATIONS)
    assert all(re.fullmatch(r"[a-z]+(_[A-Za-z]+)+", name) for name in names), names


@pytest.mark.parametrize("operation", READER.operations, ids=lambda operation: operation.name)
def test_each_operation_says_what_it_takes_and_every_way_in_which_it_ends(operation):
    named = re.findall(r"{(\w+)}", operation.path)
    assert [each["name"] for each in operation.parameters("path")] == named
    assert all(each["required"] for each in operation.parameters("path"))
    assert operation.document["summary"].endswith(".")
    assert {"403", "421", "500", "503"} <= set(operation.document["responses"])
    needs_token = operation.document.get("security") != []
    assert ("401" in operation.document["responses"]) == needs_token == (operation.path != "/hello")
    assert len([status for status in operation.document["responses"] if status.startswith("2")]) == 1
    assert (operation.body is not None) == (operation.method == "POST")
    if operation.body is not None:
        assert {"400", "408", "413", "415"} <= set(operation.document["responses"])
        assert READER.resolved(operation.body)["additionalProperties"] is False


def test_every_problem_in_it_is_one_that_there_is_with_its_status():
    found = set()
    for operation in READER.operations:
        for status, answer in operation.document["responses"].items():
            if int(status) < 400:
                continue
            schema = answer["content"]["application/problem+json"]["schema"]
            for code in schema["allOf"][1]["properties"]["code"]["enum"]:
                assert HTTP[code][0] == int(status)
                found.add(code)
    # What no path answers, or no method, is answered where there is no operation; the rest are in tasks.
    assert set(HTTP) - found <= {"not_found", "method_not_allowed"} | set(TASK) | {"workspace_draining"}


def test_every_task_error_and_problem_has_a_sentence_that_is_one():
    for sentence in (*TASK.values(), *(sentence for _, sentence in HTTP.values())):
        assert re.fullmatch(r"[A-Z`].+[.…]|Send JSON: .+", sentence), sentence
        assert "{" not in sentence


def test_its_schemas_use_no_word_that_the_fuzzer_does_not_know():
    def check(schema):
        assert set(schema) <= KNOWN, set(schema) - KNOWN
        for word in ("anyOf", "oneOf", "allOf"):
            for each in schema.get(word, ()):
                check(each)
        for each in schema.get("properties", {}).values():
            check(each)
        if isinstance(schema.get("items"), dict):
            check(schema["items"])

    for schema in DOCUMENT["components"]["schemas"].values():
        check(schema)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "maxLength": 2}, ["", "ab"], ["abc", 1, None]),
        ({"type": "integer"}, [1, -1], [True, 1.5, "1"]),
        ({"type": "integer", "minimum": 1, "maximum": 2}, [1, 2], [0, 3]),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, [[], [None]], [[None, None]]),
        ({"type": "boolean"}, [True], [1, "true"]),
        ({"enum": ["a", "b"]}, ["a"], ["c", None]),
        ({"const": "a"}, ["a"], ["b"]),
        ({"type": "string", "pattern": "^a+$"}, ["aa"], ["b"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
        ({"oneOf": [{"type": "string"}, {"const": "a"}]}, ["b"], ["a", 1]),
        ({"allOf": [{"type": "string"}, {"const": "a"}]}, ["a"], ["b"]),
        ({"type": "array", "items": {"type": "string"}}, [[], ["a"]], [[1], "a"]),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
            [{"a": None}, {"a": None, "b": 1}],
            [{}, {"a": 1}, []],
        ),
        (
            {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
            [{}, {"a": "b"}],
            [{"a": 1}],
        ),
        ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
    ],
)
def test_the_reader_tells_what_a_schema_takes_from_what_it_does_not(schema, good, bad):
    """The oracle of the fuzzer, itself put to the test."""
    for value in good:
        assert not list(READER.problems(schema, value)), json.dumps(value)
    for value in bad:
        assert list(READER.problems(schema, value)), json.dumps(value)
