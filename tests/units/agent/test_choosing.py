"""Questions that a model answers by naming things: what counts as an answer, and what never does."""

import json
import time

import pytest

from kit.agent.misbehaviours import NO_RESPONSE_FORMAT
from kit.agent.servers import form_of, hasty, serving
from kit.raising import raised
from muniment.agent.model import PROTOCOLS, Budget, ModelError, Reply, ToolCall
from muniment.agent.questions import MAX_TEXT_CHARS, Asker, Merge
from muniment.errors import Cancelled
from muniment.kernel.decide import Limits
from muniment.testing.chat_server import always, failure, words
from muniment.testing.minds import ScriptedModel, say

__all__ = ["hasty"]
pytestmark = pytest.mark.usefixtures("hasty")

OPTIONS = ["prefers dark mode", "uses a dark theme in vim", "dark chocolate"]


def asker(model, cancel, **limits):
    budget = Budget(Limits(**limits), cancel, time.monotonic)
    return Asker(model, budget, "token-7f"), budget


def answering(answer, cancel):
    return asker(ScriptedModel([answer if isinstance(answer, Reply) else say(answer)]), cancel)[0]


def asked(answer, cancel):
    return answering(answer, cancel).which_to_forget("dark", OPTIONS)


def helped(answer, cancel):
    return answering(answer, cancel).which_help("dark?", OPTIONS, 2)


def merged(merges, cancel):
    return answering(json.dumps({"merges": merges}), cancel).which_to_merge(OPTIONS)


NO_ANSWERS = [
    *("", "none", "c1", "[]", "null", "{}", '["c1"]', '{"X": "c1"}', '{"X": null}', '{"X": [1]}'),
    *('{"X": ["c4"]}', '{"X": ["c0"]}', '{"X": ["C1"]}', '{"X": ["c1", "c1"]}', '{"X": ["c1", "all"]}'),
    *('{"X": ["*"]}', '{"X": ["user/a.md"]}', '{"X": ["c1"], "why": "x"}', '{"X": ["c1"], "X": []}'),
    *('{"X": ["c1"', 'I choose {"X": ["c1"]}', '{"X": ["c1"]} and {"X": ["c2"]}', "```\nno\n```"),
    *("x" * 100_000, "[" * 100_000),
]


@pytest.mark.threat("T-MEM-08", control="answer_between_options")
def test_anything_but_the_names_of_options_is_no_answer(cancel):
    call = ToolCall("1", "read_file", {"path": "user/a.md"})
    more = [Reply('{"read": ["c1"]}', (call,)), '{"remove": ["c1"]}', '{"read": ["c1", "c2", "c3"]}']
    for ask, key, answers in ((asked, "remove", NO_ANSWERS), (helped, "read", [*NO_ANSWERS, *more])):
        for answer in answers:
            given_answer = answer.replace("X", key) if isinstance(answer, str) else answer
            with pytest.raises(ModelError, match="no valid response"):
                pytest.fail(f"{given_answer!r:.80}: {ask(given_answer, cancel)}")


def test_a_model_that_is_broken_is_a_model_error(cancel):
    for answer in (None, 7, "text", Reply(text=None), Reply(text=b"{}"), Reply(calls=[7])):
        ask, _ = asker(ScriptedModel([lambda _, answer=answer: answer] * 2), cancel)
        raised(ModelError, ask.which_to_forget, "dark", OPTIONS)
        raised(ModelError, ask.which_help, "dark?", OPTIONS, 2)


def merge(*ids, keep="c1", text="", **more):
    return {"ids": list(ids), "keep": keep, "text": text, **more}


def test_a_merge_names_who_stays_and_who_goes_and_anything_else_spoils_the_answer(cancel):
    for merges, expected in (
        *(([], ()), ([merge("c1", "c3", keep="c3")], (Merge(2, (0,), ""),))),
        ([merge("c1", "c2", "c3", text=" dark ")], (Merge(0, (1, 2), "dark"),)),
    ):
        assert merged(merges, cancel) == expected
    for spoilt in (
        *([merge("c1")], [merge("c1", "c2", keep="c3")], [merge("c1", "c1")], [merge("c1", "c4")]),
        *([{"ids": ["c1", "c2"], "keep": "c1"}], [merge("c1", "c2", text="x" * (MAX_TEXT_CHARS + 1))]),
        *([merge("c1", "c2", text=None)], [merge("c1", "c2", path="user/a.md")]),
        [merge("c1", "c2"), merge("c3", "c2", keep="c3")],  # No entry is in two.
    ):
        with pytest.raises(ModelError, match="no valid response"):
            pytest.fail(f"{spoilt!r:.80}: {merged(spoilt, cancel)}")


def test_every_question_takes_a_turn_without_one_none_is_asked_and_a_cancellation_ends_it(cancel):
    model = ScriptedModel([say('{"remove": []}'), say('{"read": ["c1"]}'), say("{}")])
    ask, budget = asker(model, cancel, turns=2)
    assert (ask.which_to_forget("dark", OPTIONS), ask.which_help("dark?", OPTIONS, 2)) == ((), (0,))
    assert (budget.turns, len(budget.timeline)) == (2, 2)
    raised(ModelError, ask.which_to_forget, "dark", OPTIONS, match="no turns left")
    raised(ModelError, ask.which_help, "dark?", OPTIONS, 2, match="no turns left")
    assert len(model.requests) == 2
    cancel.set()
    raised(Cancelled, helped, '{"read": ["c1"]}', cancel)


def test_a_server_is_asked_for_the_schema_whatever_the_protocol_of_runs(cancel):
    for protocol in PROTOCOLS:
        with serving(always(words('{"remove": ["c2"]}')), protocol) as (server, model):
            assert asker(model, cancel)[0].which_to_forget("dark", OPTIONS) == (1,)
            (sent,) = server.requests
        assert form_of(sent) == ("text" if protocol == "text" else "json")
        if protocol != "text":
            wanted = sent.body["response_format"]["json_schema"]
            assert wanted["name"] == "removal"
            assert wanted["schema"]["properties"]["remove"]["items"]["enum"] == ["c1", "c2", "c3"]
        assert "tools" not in sent.body


def test_a_server_that_takes_no_schema_is_asked_in_words_and_one_that_is_down_is_a_model_error(cancel):
    def answer(request):
        refused = next(iter(NO_RESPONSE_FORMAT.values()))
        return refused if form_of(request) == "json" else words('{"remove": ["c1"]}')

    with serving(answer) as (server, model):
        for _ in range(2):
            assert asker(model, cancel)[0].which_to_forget("dark", OPTIONS) == (0,)
        assert [form_of(sent) for sent in server.requests] == ["json", "text", "text"]
    with serving(always(failure(500, "down"))) as (_, model), pytest.raises(ModelError):
        asker(model, cancel)[0].which_to_merge(OPTIONS)
