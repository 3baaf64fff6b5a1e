"""Records of what happened: what they hold, and what never gets into them."""

from __future__ import annotations

import json
import logging

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from muniment import events
from muniment.errors import WorkspaceDraining
from muniment.events import MAX_VALUE_CHARS, emit, emit_defect

CANARY = "canary-7f3a"


@pytest.fixture
def told(caplog):
    """The records so far, parsed."""
    caplog.set_level(logging.INFO, logger="muniment")
    return lambda: [json.loads(record.getMessage()) for record in caplog.records if record.name == "muniment"]


def test_a_record_is_a_line_of_json_with_its_name_its_level_and_its_time(told):
    emit("happened", count=1, path="user/a.md")
    (record,) = told()
    assert record.pop("timestamp").endswith("Z")
    assert record == {"event": "happened", "level": "info", "count": 1, "path": "user/a.md"}


def test_a_text_with_line_breaks_stays_in_its_record(told, caplog):
    emit("happened", path='a\nb\r\n{"event": "forged"}\u2028')
    assert len(caplog.records[-1].getMessage().splitlines()) == 1
    assert told()[-1]["event"] == "happened"


def test_where_nobody_listens_nothing_is_done(caplog):
    caplog.set_level(logging.WARNING, logger="muniment")
    emit("happened", path=object())
    assert not caplog.records


def test_what_is_bound_to_the_context_is_added(told):
    with structlog.contextvars.bound_contextvars(task="remember-1", token=CANARY):
        emit("happened")
    emit("later")
    assert [record.get("task") for record in told()] == ["remember-1", None]
    assert CANARY not in json.dumps(told())


@pytest.mark.parametrize(
    "name",
    ["content", "query", "fact", "text", "body", "token", "authorization", "api_key", "key", "arguments"],
)
@pytest.mark.parametrize("value", [CANARY, CANARY.encode(), [CANARY], {"a": CANARY}, 7_313])
def test_a_field_that_may_hold_content_is_told_by_its_size_alone(told, name, value):
    emit("happened", **{name: value})
    (record,) = told()
    expected = f"(redacted: {len(value)} characters)" if isinstance(value, str | bytes) else "(redacted)"
    assert record[name] == expected


@pytest.mark.parametrize(("length", "kept"), [(MAX_VALUE_CHARS, True), (MAX_VALUE_CHARS + 1, False)])
def test_a_text_longer_than_any_path_is_content(told, length, kept):
    emit("happened", path="x" * length)
    assert told()[0]["path"] == ("x" * length if kept else f"(redacted: {length} characters)")


@pytest.mark.threat("T-LEAK-04", control="redaction")
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda text: [text],
        lambda text: {"summary": text},
        lambda text: {"a": [{"b": text}]},
        lambda text: (1, text),
        lambda text: {"content": "short"} | {"more": text},
    ],
)
def test_a_text_inside_another_value_is_redacted_as_well(told, wrapped):
    emit("happened", result=wrapped("x" * (MAX_VALUE_CHARS + 1)))
    assert "xxx" not in json.dumps(told())
    assert '"short"' not in json.dumps(told())


@given(
    st.recursive(
        st.just(CANARY),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["a", "content"]), inner, max_size=2)
        ),
        max_leaves=4,
    )
)
def test_under_a_private_name_nothing_is_told_whatever_its_shape(value):
    found = events._redact(None, "info", {"event": "happened", "content": value})
    assert CANARY not in repr(found)


@pytest.mark.threat("T-LEAK-04", control="quiet_defects")
def test_a_defect_is_told_by_its_class_and_where_it_was_raised_and_not_by_its_message(told):
    def broken():
        raise ValueError(f"no such file: /home/{CANARY}")

    for _ in range(2):
        try:
            broken()
        except ValueError as error:
            emit_defect("broke", error, method="GET")
    for record in told():
        assert record["problem"] == "ValueError"
        assert record["where"].startswith("test_events.py:")
        assert record["method"] == "GET"
        assert CANARY not in json.dumps(record)


def test_a_defect_that_was_never_raised_has_no_place(told):
    emit_defect("broke", WorkspaceDraining())
    assert told()[0] | {"timestamp": ""} == {
        "event": "broke",
        "level": "info",
        "problem": "WorkspaceDraining",
        "where": "",
        "timestamp": "",
    }


def test_a_defect_does_not_name_the_directories_of_its_source(told):
    namespace = {}
    exec(compile("def broken():\n    raise KeyError('x')\n", f"/home/{CANARY}/module.py", "exec"), namespace)
    try:
        namespace["broken"]()
    except KeyError as error:
        emit_defect("broke", error)
    assert told()[0]["where"] == "module.py:2"
