"""Where text may be inserted between messages, which are mappings or objects of an SDK."""

from types import MappingProxyType, SimpleNamespace

from kit.recall.messages import (
    make_assistant_message,
    make_call_message,
    make_result_message,
    make_user_message,
)
from muniment.recall.messages import group_messages, has_pending_call, insert_after_results, read_text

ANSWER = make_assistant_message("answer")


def to_object(value):
    """Return a message as an SDK returns it."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: to_object(each) for name, each in value.items()})
    return [to_object(each) for each in value] if isinstance(value, list) else value


SHAPES = (dict, MappingProxyType, to_object)


def test_call_is_pending_until_its_result_follows():
    for shape in SHAPES:
        for messages, is_pending in (
            *(
                ([], False),
                ([make_call_message(1), make_result_message(1)], False),
                ([make_call_message(1), make_user_message("meanwhile"), ANSWER], True),
            ),
            *(
                ([make_call_message(1, 2), make_result_message(2)], True),
                ([make_call_message(1, 2), make_result_message(2), make_result_message(1)], False),
            ),
            ([make_result_message(1), make_call_message(1)], True),  # A result follows its call.
            (
                [make_call_message(1), make_result_message(1), make_call_message(1)],
                True,
            ),  # Some models restart the ids at each turn.
            (
                [make_call_message(1), make_result_message(1), make_call_message(1), make_result_message(1)],
                False,
            ),
            ([ANSWER | {"tool_calls": []}, ANSWER | {"tool_calls": None}], False),
            ([make_call_message(1) | {"role": "user"}], False),  # Only a model calls.
        ):
            assert has_pending_call(list(map(shape, messages))) is is_pending, messages


def test_call_and_its_results_form_one_group():
    messages = [
        *(
            make_user_message("u"),
            make_call_message(1, 2),
            make_result_message(1),
            make_result_message(2),
            ANSWER,
            make_call_message(3),
        ),
        *(
            make_user_message("between"),
            make_result_message(3),
            make_call_message(4),
            make_result_message(4),
            make_result_message("lost"),
        ),
    ]
    for shape in SHAPES:
        shaped = list(map(shape, messages))
        found = group_messages(shaped)
        assert [len(each) for each in found] == [1, 3, 1, 1, 1, 1, 3]
        assert [each for group in found for each in group] == shaped


def test_text_is_inserted_after_the_last_result():
    messages = [
        make_user_message("u"),
        make_call_message(1, 2),
        make_result_message(1),
        make_result_message(2),
    ]
    assert insert_after_results(messages, "memory") == [*messages, make_user_message("memory")]
    earlier = [*messages, ANSWER, make_user_message("next"), ANSWER]
    assert insert_after_results(earlier, "memory") == [*messages, make_user_message("memory"), *earlier[4:]]
    assert insert_after_results([make_user_message("u")], "memory") == [
        make_user_message("u"),
        make_user_message("memory"),
    ]
    assert len(messages) == 4
    assert read_text({"role": "assistant"}) == read_text(SimpleNamespace(role="assistant")) == ""
