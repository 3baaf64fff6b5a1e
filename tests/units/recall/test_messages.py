"""Where text may be inserted between messages, which are mappings or objects of an SDK."""

from types import MappingProxyType, SimpleNamespace

from kit.recall.messages import assistant, calling, result, user
from muniment.recall.messages import behind_results, groups, has_pending_call, said

ANSWER = assistant("answer")


def to_object(value):
    """Return a message as an SDK returns it."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: to_object(each) for name, each in value.items()})
    return [to_object(each) for each in value] if isinstance(value, list) else value


SHAPES = (dict, MappingProxyType, to_object)


def test_call_is_pending_until_its_result_follows():
    for shape in SHAPES:
        for messages, is_pending in (
            *(([], False), ([calling(1), result(1)], False), ([calling(1), user("meanwhile"), ANSWER], True)),
            *(([calling(1, 2), result(2)], True), ([calling(1, 2), result(2), result(1)], False)),
            ([result(1), calling(1)], True),  # A result follows its call.
            ([calling(1), result(1), calling(1)], True),  # Some models restart the ids at each turn.
            ([calling(1), result(1), calling(1), result(1)], False),
            ([ANSWER | {"tool_calls": []}, ANSWER | {"tool_calls": None}], False),
            ([calling(1) | {"role": "user"}], False),  # Only a model calls.
        ):
            assert has_pending_call(list(map(shape, messages))) is is_pending, messages


def test_call_and_its_results_form_one_group():
    messages = [
        *(user("u"), calling(1, 2), result(1), result(2), ANSWER, calling(3)),
        *(user("between"), result(3), calling(4), result(4), result("lost")),
    ]
    for shape in SHAPES:
        shaped = list(map(shape, messages))
        found = groups(shaped)
        assert [len(each) for each in found] == [1, 3, 1, 1, 1, 1, 3]
        assert [each for group in found for each in group] == shaped


def test_text_is_inserted_after_the_last_result():
    messages = [user("u"), calling(1, 2), result(1), result(2)]
    assert behind_results(messages, "memory") == [*messages, user("memory")]
    earlier = [*messages, ANSWER, user("next"), ANSWER]
    assert behind_results(earlier, "memory") == [*messages, user("memory"), *earlier[4:]]
    assert behind_results([user("u")], "memory") == [user("u"), user("memory")]
    assert len(messages) == 4
    assert said({"role": "assistant"}) == said(SimpleNamespace(role="assistant")) == ""
