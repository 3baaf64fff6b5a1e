"""Log records: the values that they contain and the values that they never contain."""

import json
import logging

import pytest
import structlog

from kit.recall.places import telling
from muniment.errors import LaneError
from muniment.events import MAX_VALUE_CHARS, emit, emit_defect

CANARY = "canary-7f3a"
NAMES = ("content", "query", "fact", "text", "body", "token", "authorization", "api_key", "key", "arguments")


read_records = pytest.fixture(telling)


def test_record_is_one_json_line_with_bound_values(read_records, caplog):
    forged = 'a\nb\r\n{"event": "forged"}\u2028'
    emit("happened", count=1, path=forged)
    with structlog.contextvars.bound_contextvars(task="remember-1", token=CANARY):
        emit("later")
    first, second = read_records()
    assert all(len(each.getMessage().splitlines()) == 1 for each in caplog.records)
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "happened", "level": "info", "count": 1, "path": forged}
    assert (second["task"], CANARY in json.dumps(read_records())) == ("remember-1", False)
    caplog.set_level(logging.WARNING, logger="muniment")
    emit("happened", path=object())  # Without a listener, nothing is done.
    assert len(read_records()) == 2


def test_content_and_long_values_are_logged_as_size(read_records):
    for value in (CANARY, CANARY.encode(), [CANARY], {"a": [CANARY, {"content": CANARY}]}, 7_313):
        emit("happened", **dict.fromkeys(NAMES, value))
        size = f": {len(value)} characters" if isinstance(value, str | bytes) else ""
        assert [read_records()[-1][name] for name in NAMES] == [f"(redacted{size})"] * len(NAMES)
    for length in (MAX_VALUE_CHARS, MAX_VALUE_CHARS + 1):
        emit("happened", path="x" * length)
    complete, redacted = read_records()[-2:]
    assert (complete["path"], redacted["path"]) == ("x" * MAX_VALUE_CHARS, f"(redacted: {length} characters)")


@pytest.mark.threat("T-LEAK-04", control="redaction")
def test_text_inside_another_value_is_redacted(read_records):
    text = "x" * (MAX_VALUE_CHARS + 1)
    short = {"content": "short", "m": text}
    for value in ([text], {"summary": text}, {"a": [{"b": text}]}, (1, text), short):
        emit("happened", result=value)
        assert ("xxx" in json.dumps(read_records()), '"short"' in json.dumps(read_records())) == (
            False,
            False,
        )


@pytest.mark.threat("T-LEAK-04", control="quiet_defects")
def test_defect_is_logged_without_message_or_directories(read_records):
    namespace = {"message": f"no such file: /home/{CANARY}"}
    code = "def broken():\n    raise ValueError(message)\n"
    exec(compile(code, f"/home/{CANARY}/module.py", "exec"), namespace)
    for _ in range(2):
        try:
            namespace["broken"]()
        except ValueError as error:
            emit_defect("broke", error, method="GET")
    for record in read_records():
        assert (record["problem"], record["where"], record["method"]) == ("ValueError", "module.py:2", "GET")
    emit_defect("broke", LaneError())  # It was never raised, so it has no position.
    last = {name: value for name, value in read_records()[-1].items() if name != "timestamp"}
    assert last == {"event": "broke", "level": "info", "problem": "LaneError", "where": ""}
    assert CANARY not in json.dumps(read_records())
