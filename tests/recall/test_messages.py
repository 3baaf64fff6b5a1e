"""Where text may come between messages, whoever made these: mappings, or objects of an SDK."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from muniment.recall.conversation import (
    behind_results,
    field,
    groups,
    has_pending_call,
    said,
    user,
    with_reminders,
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
def test_a_field_is_found_whatever_a_message_is_and_missing_ones_are_none(shape):
    message = shape(result("1"))
    assert (field(message, "role"), field(message, "tool_call_id")) == ("tool", "1")
    assert field(message, "tool_calls") is None


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
@pytest.mark.parametrize("name", ["same", "", None])
def test_of_several_calls_of_one_id_each_wants_a_result(shape, name):
    """Some models give no ids: whatever came between the first result and the second would part them."""
    messages = [calls(name, name), result(name)]
    assert has_pending_call(list(map(shape, messages)))
    assert not has_pending_call(list(map(shape, [*messages, result(name)])))
    assert not has_pending_call(list(map(shape, [*messages, result(name), result(name)])))


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


@given(some.lists(some.lists(some.booleans(), min_size=1, max_size=3), max_size=6), some.booleans())
def test_no_group_of_a_whole_conversation_begins_with_a_result(turns, is_answered):
    messages = []
    for number, turn in enumerate(turns):
        messages.append(user("u"))
        ids = [f"{number}.{at}" for at, _ in enumerate(turn)]
        messages += [calls(*ids), *map(result, ids)] if any(turn) else [answer()]
    messages += [answer()] if is_answered else []
    assert not has_pending_call(messages)
    assert all(group[0]["role"] != "tool" for group in groups(messages))


def test_reminders_are_one_message_before_what_the_user_wrote_last():
    messages = [system(), user("first"), answer(), user("second")]
    assert with_reminders(messages, ["memory", "host"]) == [
        *messages[:3],
        user("memory\n\nhost"),
        messages[3],
    ]


def test_reminders_stand_before_the_last_question_also_where_the_model_is_at_work_on_it():
    messages = [user("first"), answer(), user("second"), calls("1"), result("1")]
    found = with_reminders(messages, ["memory"])
    assert found == [*messages[:2], user("memory"), *messages[2:]]
    assert not has_pending_call(found)


def test_where_the_user_wrote_nothing_reminders_come_at_the_end():
    assert with_reminders([system()], ["memory"]) == [system(), user("memory")]
    assert with_reminders([], ["memory"]) == [user("memory")]


def test_without_reminders_nothing_is_put_in_and_the_list_is_another_one():
    messages = [user("u")]
    found = with_reminders(messages, [])
    assert found == messages
    assert found is not messages


def test_what_goes_behind_results_stands_behind_the_last_one_and_parts_none_from_its_call():
    messages = [user("u"), calls("1", "2"), result("1"), result("2")]
    assert behind_results(messages, "memory") == [*messages, user("memory")]
    earlier = [*messages, answer(), user("next"), answer()]
    assert behind_results(earlier, "memory") == [*messages, user("memory"), *earlier[4:]]
    assert behind_results([user("u")], "memory") == [user("u"), user("memory")]
    assert len(messages) == 4


@SHAPES
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, ""),
        ([], ""),
        (
            [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {}},
                {"type": "text", "text": "b"},
            ],
            "a\nb",
        ),
        ([{"type": "text", "text": None}, {"type": "text"}, {"type": "text", "text": 7}], ""),
    ],
)
def test_what_a_message_says_is_its_text_and_that_of_its_parts(shape, content, text):
    assert said(shape({"role": "user", "content": content})) == text


def test_a_message_without_content_says_nothing():
    assert said({"role": "assistant"}) == ""
    assert said(SimpleNamespace(role="assistant")) == ""
