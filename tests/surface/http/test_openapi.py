"""The document that describes the daemon: whole, in order, and about what there is."""

from __future__ import annotations

import json
import re

from kit.daemon.described import KNOWN, Reader
from muniment.daemon.contract import HTTP, TASK
from muniment.daemon.http import document_of
from muniment.daemon.service import OPERATIONS

DOCUMENT = document_of(OPERATIONS)
READER = Reader(DOCUMENT)


def test_the_daemon_serves_the_document_that_its_operations_make(quiet):
    answer = quiet.ask("GET", "/openapi.json")
    assert answer.values("content-type") == ["application/json"]
    assert answer.json == DOCUMENT
    assert str(quiet.base) not in answer.body.decode()


def test_every_name_in_it_leads_somewhere_and_nothing_in_it_is_unused():
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT)))
    assert references == {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    names = [operation.name for operation in READER.operations]
    assert len(set(names)) == len(names) == len(OPERATIONS)
    assert all(re.fullmatch(r"[a-z]+(_[A-Za-z]+)+", name) for name in names), names


def test_each_operation_says_what_it_takes_and_every_way_in_which_it_ends(subtests):
    for operation in READER.operations:
        with subtests.test(operation.name):
            responses, named = set(operation.document["responses"]), re.findall(r"{(\w+)}", operation.path)
            assert [each["name"] for each in operation.parameters("path")] == named
            assert all(each["required"] for each in operation.parameters("path"))
            assert operation.document["summary"].endswith(".")
            assert {"403", "421", "500", "503"} <= responses
            needs_token = operation.document.get("security") != []
            assert ("401" in responses) == needs_token == (operation.path != "/hello")
            assert len([status for status in responses if status.startswith("2")]) == 1
            assert (operation.body is not None) == (operation.method == "POST")
            if operation.body is not None:
                assert {"400", "408", "413", "415"} <= responses
                assert READER.resolved(operation.body)["additionalProperties"] is False


def test_every_problem_in_it_is_one_that_there_is_with_its_status_and_a_sentence():
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
    for sentence in (*TASK.values(), *(sentence for _, sentence in HTTP.values())):
        assert re.fullmatch(r"[A-Z`].+[.…]|Send JSON: .+", sentence), sentence
        assert "{" not in sentence


def test_its_schemas_use_no_word_that_the_fuzzer_does_not_know():
    left = list(DOCUMENT["components"]["schemas"].values())
    while left:
        schema = left.pop()
        assert set(schema) <= KNOWN, set(schema) - KNOWN
        left += schema.get("properties", {}).values()
        left += [each for word in ("anyOf", "oneOf", "allOf") for each in schema.get(word, ())]
        left += [schema["items"]] if isinstance(schema.get("items"), dict) else []


def test_the_reader_tells_what_a_schema_takes_from_what_it_does_not():
    """The oracle of the fuzzer, itself put to the test."""
    null, text = {"type": "null"}, {"type": "string"}
    for schema, good, bad in (
        ({**text, "maxLength": 2}, ["", "ab"], ["abc", 1, None]),
        ({"type": "integer"}, [1, -1], [True, 1.5, "1"]),
        ({"type": "integer", "minimum": 1, "maximum": 2}, [1, 2], [0, 3]),
        ({"type": "array", "items": null, "maxItems": 1}, [[], [None]], [[None, None]]),
        ({"type": "boolean"}, [True], [1, "true"]),
        ({"enum": ["a", "b"]}, ["a"], ["c", None]),
        ({"const": "a"}, ["a"], ["b"]),
        ({**text, "pattern": "^a+$"}, ["aa"], ["b"]),
        ({"anyOf": [text, null]}, ["a", None], [1]),
        ({"oneOf": [text, {"const": "a"}]}, ["b"], ["a", 1]),
        ({"allOf": [text, {"const": "a"}]}, ["a"], ["b"]),
        ({"type": "array", "items": text}, [[], ["a"]], [[1], "a"]),
        (
            {"type": "object", "properties": {"a": null}, "required": ["a"]},
            [{"a": None}, {"a": None, "b": 1}],
            [{}, {"a": 1}, []],
        ),
        ({"type": "object", "properties": {}, "additionalProperties": text}, [{}, {"a": "b"}], [{"a": 1}]),
        ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
    ):
        assert not any(list(READER.problems(schema, value)) for value in good), schema
        assert all(list(READER.problems(schema, value)) for value in bad), schema
