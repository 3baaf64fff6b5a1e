"""Queries that a model answers with option ids: valid and invalid answers."""

import json
import time

import pytest

from kit.agent.misbehaviours import NO_RESPONSE_FORMAT
from kit.agent.servers import detect_form, open_model, short_pauses
from kit.catching import catch_error
from muniment.agent.model import Budget, ModelError, Reply, ToolCall
from muniment.agent.model_settings import PROTOCOLS
from muniment.agent.questions import MAX_TEXT_CHARS, Merge, ModelQuery
from muniment.errors import Cancelled
from muniment.kernel.decide import Limits
from muniment.testing.chat_server import error_response, repeat_responder, text_response
from muniment.testing.scripted_models import ScriptedModel, reply_with_text

__all__ = ["short_pauses"]
pytestmark = pytest.mark.usefixtures("short_pauses")

OPTIONS = ["prefers dark mode", "uses a dark theme in vim", "dark chocolate"]


def make_query(model, cancel, **limits):
    budget = Budget(Limits(**limits), cancel, time.monotonic)
    return ModelQuery(model, budget, "token-7f"), budget


def script_query(answer, cancel):
    return make_query(
        ScriptedModel([answer if isinstance(answer, Reply) else reply_with_text(answer)]), cancel
    )[0]


def query_forgotten(answer, cancel):
    return script_query(answer, cancel).choose_forgotten("dark", OPTIONS)


def query_helpful(answer, cancel):
    return script_query(answer, cancel).choose_helpful("dark?", OPTIONS, 2)


def query_merges(merges, cancel):
    return script_query(json.dumps({"merges": merges}), cancel).propose_merges(OPTIONS)


INVALID_ANSWERS = [
    *("", "none", "c1", "[]", "null", "{}", '["c1"]', '{"X": "c1"}', '{"X": null}', '{"X": [1]}'),
    *('{"X": ["c4"]}', '{"X": ["c0"]}', '{"X": ["C1"]}', '{"X": ["c1", "c1"]}', '{"X": ["c1", "all"]}'),
    *('{"X": ["*"]}', '{"X": ["user/a.md"]}', '{"X": ["c1"], "why": "x"}', '{"X": ["c1"], "X": []}'),
    *('{"X": ["c1"', 'I choose {"X": ["c1"]}', '{"X": ["c1"]} and {"X": ["c2"]}', "```\nno\n```"),
    *("x" * 100_000, "[" * 100_000),
]


@pytest.mark.threat("T-MEM-08", control="answer_between_options")
def test_answer_other_than_option_ids_is_model_error(cancel):
    call = ToolCall("1", "read_file", {"path": "user/a.md"})
    more = [Reply('{"read": ["c1"]}', (call,)), '{"remove": ["c1"]}', '{"read": ["c1", "c2", "c3"]}']
    for send_query, key, answers in (
        (query_forgotten, "remove", INVALID_ANSWERS),
        (query_helpful, "read", [*INVALID_ANSWERS, *more]),
    ):
        for answer in answers:
            scripted_answer = answer.replace("X", key) if isinstance(answer, str) else answer
            with pytest.raises(ModelError, match="no valid response"):
                pytest.fail(f"{scripted_answer!r:.80}: {send_query(scripted_answer, cancel)}")


def test_malformed_reply_is_model_error(cancel):
    for answer in (None, 7, "text", Reply(text=None), Reply(text=b"{}"), Reply(calls=[7])):
        query, _ = make_query(ScriptedModel([lambda _, answer=answer: answer] * 2), cancel)
        catch_error(ModelError, query.choose_forgotten, "dark", OPTIONS)
        catch_error(ModelError, query.choose_helpful, "dark?", OPTIONS, 2)


def make_merge(*ids, survivor_id="c1", text="", **more):
    return {"ids": list(ids), "keep": survivor_id, "text": text, **more}


def test_merge_answer_is_parsed_and_invalid_merge_rejected(cancel):
    for merges, expected in (
        *(([], ()), ([make_merge("c1", "c3", survivor_id="c3")], (Merge(2, (0,), ""),))),
        ([make_merge("c1", "c2", "c3", text=" dark ")], (Merge(0, (1, 2), "dark"),)),
    ):
        assert query_merges(merges, cancel) == expected
    for invalid_merges in (
        *(
            [make_merge("c1")],
            [make_merge("c1", "c2", survivor_id="c3")],
            [make_merge("c1", "c1")],
            [make_merge("c1", "c4")],
        ),
        *([{"ids": ["c1", "c2"], "keep": "c1"}], [make_merge("c1", "c2", text="x" * (MAX_TEXT_CHARS + 1))]),
        *([make_merge("c1", "c2", text=None)], [make_merge("c1", "c2", path="user/a.md")]),
        [
            make_merge("c1", "c2"),
            make_merge("c3", "c2", survivor_id="c3"),
        ],  # An entry may be in one merge only.
    ):
        with pytest.raises(ModelError, match="no valid response"):
            pytest.fail(f"{invalid_merges!r:.80}: {query_merges(invalid_merges, cancel)}")


def test_query_uses_turn_and_fails_if_none_left_or_cancelled(cancel):
    model = ScriptedModel(
        [reply_with_text('{"remove": []}'), reply_with_text('{"read": ["c1"]}'), reply_with_text("{}")]
    )
    query, budget = make_query(model, cancel, turns=2)
    assert (query.choose_forgotten("dark", OPTIONS), query.choose_helpful("dark?", OPTIONS, 2)) == ((), (0,))
    assert (budget.turns, len(budget.timeline)) == (2, 2)
    catch_error(ModelError, query.choose_forgotten, "dark", OPTIONS, match="no turns left")
    catch_error(ModelError, query.choose_helpful, "dark?", OPTIONS, 2, match="no turns left")
    assert len(model.requests) == 2
    cancel.set()
    catch_error(Cancelled, query_helpful, '{"read": ["c1"]}', cancel)


def test_query_sends_schema_unless_protocol_is_text(cancel):
    for protocol in PROTOCOLS:
        with open_model(repeat_responder(text_response('{"remove": ["c2"]}')), protocol) as (server, model):
            assert make_query(model, cancel)[0].choose_forgotten("dark", OPTIONS) == (1,)
            (sent,) = server.requests
        assert detect_form(sent) == ("text" if protocol == "text" else "json")
        if protocol != "text":
            json_schema = sent.body["response_format"]["json_schema"]
            assert json_schema["name"] == "removal"
            assert json_schema["schema"]["properties"]["remove"]["items"]["enum"] == ["c1", "c2", "c3"]
        assert "tools" not in sent.body


def test_query_falls_back_to_text_if_schema_is_rejected(cancel):
    def answer(request):
        rejection = next(iter(NO_RESPONSE_FORMAT.values()))
        return rejection if detect_form(request) == "json" else text_response('{"remove": ["c1"]}')

    with open_model(answer) as (server, model):
        for _ in range(2):
            assert make_query(model, cancel)[0].choose_forgotten("dark", OPTIONS) == (0,)
        assert [detect_form(sent) for sent in server.requests] == ["json", "text", "text"]
    with open_model(repeat_responder(error_response(500, "down"))) as (_, model), pytest.raises(ModelError):
        make_query(model, cancel)[0].propose_merges(OPTIONS)
