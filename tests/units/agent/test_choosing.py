"""Questions that a model answers by naming things: what counts as an answer, and what never does."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.servers import form_of, hasty, serving
from muniment.agent.model import PROTOCOLS, Budget, ModelError, Reply, ToolCall
from muniment.agent.runner import MAX_TEXT_CHARS, Asker, Merge, UnusableAnswer
from muniment.confine.cancel import Cancel
from muniment.errors import Cancelled
from muniment.policy.decide import Limits
from muniment.testing.chat_server import NO_RESPONSE_FORMAT, always, failure, words
from muniment.testing.minds import ScriptedModel, say

__all__ = ["hasty"]
pytestmark = pytest.mark.usefixtures("hasty")

OPTIONS = ["prefers dark mode", "uses a dark theme in vim", "dark chocolate"]


@pytest.fixture
def cancel():
    with Cancel() as cancel:
        yield cancel


def asker(model, cancel, **limits):
    budget = Budget(Limits(**limits), cancel, time.monotonic)
    return Asker(model, budget, "token-7f"), budget


def asked(answer, cancel, options=OPTIONS):
    model = ScriptedModel([answer if isinstance(answer, Reply) else say(answer)])
    return asker(model, cancel)[0].which_to_forget("dark", options)


def helped(answer, cancel, notes=OPTIONS, limit=2):
    model = ScriptedModel([answer if isinstance(answer, Reply) else say(answer)])
    return asker(model, cancel)[0].which_help("dark?", notes, limit)


def merged(answer, cancel, entries=OPTIONS):
    return asker(ScriptedModel([say(answer)]), cancel)[0].which_to_merge(entries)


@pytest.mark.threat("T-MEM-08", control="answer_between_options")
@pytest.mark.parametrize(
    "answer",
    [
        "",
        "none",
        "c1",
        "[]",
        "null",
        "{}",
        '["c1"]',
        '{"remove": "c1"}',
        '{"remove": null}',
        '{"remove": [1]}',
        '{"remove": ["c4"]}',
        '{"remove": ["c0"]}',
        '{"remove": ["C1"]}',
        '{"remove": ["c1", "c1"]}',
        '{"remove": ["c1", "all"]}',
        '{"remove": ["*"]}',
        '{"remove": ["user/a.md"]}',
        '{"remove": ["c1"], "why": "x"}',
        '{"remove": ["c1"], "remove": []}',
        '{"remove": ["c1"',
        'I choose {"remove": ["c1"]}',
        '{"remove": ["c1"]} and {"remove": ["c2"]}',
        "```\nno\n```",
        "x" * 100_000,
        "[" * 100_000,
    ],
)
def test_anything_else_is_no_answer(cancel, answer):
    with pytest.raises(UnusableAnswer):
        asked(answer, cancel)


@pytest.mark.parametrize("answer", [None, 7, "text", Reply(text=None), Reply(text=b"{}"), Reply(calls=[7])])
def test_a_model_that_is_broken_is_a_model_error(cancel, answer):
    model = ScriptedModel([lambda _: answer])
    with pytest.raises(ModelError):
        asker(model, cancel)[0].which_to_forget("dark", OPTIONS)


@given(
    answer=st.recursive(
        st.none()
        | st.integers()
        | st.sampled_from(["c1", "c2", "c9", "read", "remove", "merges", "ids", "keep", "text", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["read", "remove", "merges", "ids", "keep", "text"]), inner, max_size=3
            )
        ),
        max_leaves=8,
    )
)
def test_whatever_is_answered_only_options_are_named(answer):
    with Cancel() as cancel:
        for ask in (asked, helped, merged):
            try:
                found = ask(json.dumps(answer), cancel)
            except UnusableAnswer:
                continue
            numbers = [
                number
                for each in found
                for number in ([each.keep, *each.drop] if isinstance(each, Merge) else [each])
            ]
            assert len(set(numbers)) == len(numbers)
            assert set(numbers) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("merges", "expected"),
    [
        ([], ()),
        ([{"ids": ["c1", "c3"], "keep": "c3", "text": ""}], (Merge(2, (0,), ""),)),
        ([{"ids": ["c1", "c2", "c3"], "keep": "c1", "text": " dark "}], (Merge(0, (1, 2), "dark"),)),
    ],
)
def test_a_merge_names_who_stays_and_who_goes(cancel, merges, expected):
    assert merged(json.dumps({"merges": merges}), cancel) == expected


@pytest.mark.parametrize(
    "merge",
    [
        {"ids": ["c1"], "keep": "c1", "text": ""},
        {"ids": ["c1", "c2"], "keep": "c3", "text": ""},
        {"ids": ["c1", "c1"], "keep": "c1", "text": ""},
        {"ids": ["c1", "c4"], "keep": "c1", "text": ""},
        {"ids": ["c1", "c2"], "keep": "c1"},
        {"ids": ["c1", "c2"], "keep": "c1", "text": "x" * (MAX_TEXT_CHARS + 1)},
        {"ids": ["c1", "c2"], "keep": "c1", "text": None},
        {"ids": ["c1", "c2"], "keep": "c1", "text": "", "path": "user/a.md"},
    ],
)
def test_what_is_no_merge_spoils_the_answer(cancel, merge):
    with pytest.raises(UnusableAnswer):
        merged(json.dumps({"merges": [merge]}), cancel)


def test_no_entry_is_in_two_merges(cancel):
    entries = [*OPTIONS, "more"]
    merges = [
        {"ids": ["c1", "c2"], "keep": "c1", "text": ""},
        {"ids": ["c3", "c2"], "keep": "c3", "text": ""},
    ]
    with pytest.raises(UnusableAnswer):
        merged(json.dumps({"merges": merges}), cancel, entries)


def test_every_question_takes_a_turn_and_without_one_left_none_is_asked(cancel):
    model = ScriptedModel([say('{"remove": []}')] * 3)
    ask, budget = asker(model, cancel, turns=2)
    ask.which_to_forget("dark", OPTIONS)
    ask.which_to_forget("dark", OPTIONS)
    assert (budget.turns, len(budget.timeline)) == (2, 2)
    with pytest.raises(ModelError, match="no turns left"):
        ask.which_to_forget("dark", OPTIONS)
    assert len(model.requests) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_is_asked_for_the_schema_whatever_the_protocol_of_runs(cancel, protocol):
    with serving(always(words('{"remove": ["c2"]}')), protocol) as (server, model):
        assert asker(model, cancel)[0].which_to_forget("dark", OPTIONS) == (1,)
        (sent,) = server.requests
        assert form_of(sent) == ("text" if protocol == "text" else "json")
        if form_of(sent) == "json":
            asked_for = sent.body["response_format"]["json_schema"]
            assert asked_for["name"] == "removal"
            assert asked_for["schema"]["properties"]["remove"]["items"]["enum"] == ["c1", "c2", "c3"]
        assert "tools" not in sent.body


def test_a_server_that_takes_no_schema_is_asked_in_words_and_runs_still_get_their_tools(cancel):
    refusal = next(iter(NO_RESPONSE_FORMAT.values()))

    def answer(request):
        return refusal if form_of(request) == "json" else words('{"remove": ["c1"]}')

    with serving(answer) as (server, model):
        for _ in range(2):
            assert asker(model, cancel)[0].which_to_forget("dark", OPTIONS) == (0,)
        assert [form_of(sent) for sent in server.requests] == ["json", "text", "text"]


def test_a_server_that_is_down_is_a_model_error(cancel):
    with serving(always(failure(500, "down"))) as (_, model), pytest.raises(ModelError):
        asker(model, cancel)[0].which_to_merge(OPTIONS)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "none",
        "[]",
        "null",
        "{}",
        '["c1"]',
        '{"read": "c1"}',
        '{"read": null}',
        '{"read": [0]}',
        '{"read": ["c0"]}',
        '{"read": ["c4"]}',
        '{"read": ["C1"]}',
        '{"read": ["c1", "c1"]}',
        '{"read": ["c1", "c2", "c3"]}',
        '{"read": ["user/a.md"]}',
        '{"remove": ["c1"]}',
        '{"read": ["c1"], "remove": ["c2"]}',
        '{"read": ["c1"], "read": []}',
        'Read these: {"read": ["c1"]}',
        "[" * 100_000,
        Reply('{"read": ["c1"]}', (ToolCall("1", "read_file", {"path": "user/a.md"}),)),
    ],
)
def test_of_what_helps_anything_else_and_more_than_asked_for_is_no_answer(cancel, answer):
    with pytest.raises(UnusableAnswer):
        helped(answer, cancel)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_helps_than_asked_for(cancel, limit):
    ids = [f"c{number}" for number in range(1, limit + 1)]
    assert len(helped(json.dumps({"read": ids}), cancel, limit=limit)) == limit
    with pytest.raises(UnusableAnswer):
        helped(json.dumps({"read": [*ids, f"c{limit + 1}"]}), cancel, [*OPTIONS, "more"], limit)


def test_to_ask_what_helps_takes_a_turn_and_ends_with_a_cancellation(cancel):
    ask, budget = asker(ScriptedModel([say('{"read": ["c1"]}')] * 2), cancel, turns=1)
    assert ask.which_help("dark?", OPTIONS, 2) == (0,)
    assert (budget.turns, len(budget.timeline)) == (1, 1)
    with pytest.raises(ModelError, match="no turns left"):
        ask.which_help("dark?", OPTIONS, 2)
    cancel.set()
    with pytest.raises(Cancelled):
        helped('{"read": ["c1"]}', cancel)


@pytest.mark.parametrize("answer", [None, 7, "text", Reply(text=None), Reply(text=b"{}"), Reply(calls=[7])])
def test_a_broken_model_that_is_asked_what_helps_is_a_model_error(cancel, answer):
    model = ScriptedModel([lambda _: answer])
    with pytest.raises(ModelError):
        asker(model, cancel)[0].which_help("dark?", OPTIONS, 2)
