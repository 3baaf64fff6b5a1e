"""Where text may come between messages, whoever made these: mappings, or objects of an SDK."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from muniment.recall.conversation import (
    behind_results,
    groups,
    has_pending_call,
    said,
    user,
)


def system(text="rules"):
    return {"role": "system", "content": text}


def calls(*ids, text=None):
    called = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": text, "tool_calls": called}


def result(call, text="done"):
    return {"role": "tool", "tool_call_id": call, "content": text}


def answer(text="answer"):
    return {"role": "assistant", "content": text}


def as_object(value):
    """A message as an SDK returns it."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: as_object(each) for name, each in value.items()})
    return [as_object(each) for each in value] if isinstance(value, list) else value


SHAPES = pytest.mark.parametrize("shape", [dict, MappingProxyType, as_object])


@SHAPES
@pytest.mark.parametrize(
    ("messages", "is_pending"),
    [
        ([], False),
        ([user("hello"), answer()], False),
        ([calls("1")], True),
        ([calls("1"), result("1")], False),
        ([calls("1", "2"), result("2")], True),
        ([calls("1", "2"), result("2"), result("1")], False),
        ([calls("1"), user("meanwhile")], True),
        ([calls("1"), user("meanwhile"), answer()], True),
        ([calls("1"), result("another")], True),
        ([result("1"), calls("1")], True),  # A result stands behind its call.
        ([calls("1"), result("1"), calls("1")], True),  # Some models count from 1 again at each turn.
        ([calls("1"), result("1"), calls("1"), result("1")], False),
        ([{"role": "assistant", "content": "x", "tool_calls": []}], False),
        ([{"role": "assistant", "content": "x", "tool_calls": None}], False),
        ([{"role": "user", "tool_calls": calls("1")["tool_calls"]}], False),  # Only a model calls.
    ],
)
def test_a_call_is_pending_until_its_result_stands_behind_it(shape, messages, is_pending):
    assert has_pending_call(list(map(shape, messages))) is is_pending


@SHAPES
def test_a_call_stands_with_the_results_behind_it_and_everything_else_alone(shape):
    messages = [
        *(system(), user("u"), calls("1", "2"), result("1"), result("2"), answer(), calls("3")),
        *(user("between"), result("3"), calls("4"), result("4"), result("lost")),
    ]
    sizes = [len(each) for each in groups(list(map(shape, messages)))]
    assert sizes == [1, 1, 3, 1, 1, 1, 1, 3]
    assert groups([]) == []


PLAIN = some.sampled_from(
    [system(), user("u"), answer(), calls("1"), calls("1", "2"), result("1"), result("2")]
)


@given(some.lists(PLAIN))
def test_groups_leave_nothing_out_and_turn_nothing_round(messages):
    found = groups(messages)
    assert [each for group in found for each in group] == messages
    assert all(found)
    for group in found:
        assert all(each["role"] == "tool" for each in group[1:])


def test_what_goes_behind_results_stands_behind_the_last_one_and_parts_none_from_its_call():
    messages = [user("u"), calls("1", "2"), result("1"), result("2")]
    assert behind_results(messages, "memory") == [*messages, user("memory")]
    earlier = [*messages, answer(), user("next"), answer()]
    assert behind_results(earlier, "memory") == [*messages, user("memory"), *earlier[4:]]
    assert behind_results([user("u")], "memory") == [user("u"), user("memory")]
    assert len(messages) == 4


def test_a_message_without_content_says_nothing():
    assert said({"role": "assistant"}) == ""
    assert said(SimpleNamespace(role="assistant")) == ""
