"""Records of what happened: what they hold, and what never gets into them."""

import json
import logging

import pytest
import structlog

from kit.recall.places import telling
from muniment.errors import LaneError
from muniment.events import MAX_VALUE_CHARS, emit, emit_defect

CANARY = "canary-7f3a"
NAMES = ("content", "query", "fact", "text", "body", "token", "authorization", "api_key", "key", "arguments")


told = pytest.fixture(telling)


def test_a_record_is_a_line_of_json_with_its_name_its_level_its_time_and_what_is_bound(told, caplog):
    forged = 'a\nb\r\n{"event": "forged"}\u2028'
    emit("happened", count=1, path=forged)
    with structlog.contextvars.bound_contextvars(task="remember-1", token=CANARY):
        emit("later")
    first, second = told()
    assert all(len(each.getMessage().splitlines()) == 1 for each in caplog.records)
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "happened", "level": "info", "count": 1, "path": forged}
    assert (second["task"], CANARY in json.dumps(told())) == ("remember-1", False)
    caplog.set_level(logging.WARNING, logger="muniment")
    emit("happened", path=object())  # Where nobody listens nothing is done.
    assert len(told()) == 2


def test_what_may_hold_content_or_is_longer_than_any_path_is_told_by_its_size_alone(told):
    for value in (CANARY, CANARY.encode(), [CANARY], {"a": [CANARY, {"content": CANARY}]}, 7_313):
        emit("happened", **dict.fromkeys(NAMES, value))
        size = f": {len(value)} characters" if isinstance(value, str | bytes) else ""
        assert [told()[-1][name] for name in NAMES] == [f"(redacted{size})"] * len(NAMES)
    for length in (MAX_VALUE_CHARS, MAX_VALUE_CHARS + 1):
        emit("happened", path="x" * length)
    kept, cut = told()[-2:]
    assert (kept["path"], cut["path"]) == ("x" * MAX_VALUE_CHARS, f"(redacted: {length} characters)")


@pytest.mark.threat("T-LEAK-04", control="redaction")
def test_a_text_inside_another_value_is_redacted_as_well(told):
    text = "x" * (MAX_VALUE_CHARS + 1)
    short = {"content": "short", "m": text}
    for value in ([text], {"summary": text}, {"a": [{"b": text}]}, (1, text), short):
        emit("happened", result=value)
        assert ("xxx" in json.dumps(told()), '"short"' in json.dumps(told())) == (False, False)


@pytest.mark.threat("T-LEAK-04", control="quiet_defects")
def test_a_defect_is_told_by_its_class_and_place_and_not_by_its_message_or_directories(told):
    namespace = {"message": f"no such file: /home/{CANARY}"}
    code = "def broken():\n    raise ValueError(message)\n"
    exec(compile(code, f"/home/{CANARY}/module.py", "exec"), namespace)
    for _ in range(2):
        try:
            namespace["broken"]()
        except ValueError as error:
            emit_defect("broke", error, method="GET")
    for record in told():
        assert (record["problem"], record["where"], record["method"]) == ("ValueError", "module.py:2", "GET")
    emit_defect("broke", LaneError())  # It was never raised, so it has no place.
    last = {name: value for name, value in told()[-1].items() if name != "timestamp"}
    assert last == {"event": "broke", "level": "info", "problem": "LaneError", "where": ""}
    assert CANARY not in json.dumps(told())
