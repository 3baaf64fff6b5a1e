"""Remember with models over real sockets: every dialect, noise, deadlines and lost facts."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kit.agent import dialects, simulated_models
from kit.agent.dialects import DIALECTS, FinishWithText, RequestCalls, WriteText
from kit.agent.misbehaviours import list_stalls
from kit.agent.servers import KEY, open_model, short_pauses
from kit.agent.simulated_models import build_answerer
from kit.locations import FACTS
from kit.memories import make_strict_policy, take_snapshot
from kit.operations import contexts
from kit.operations.contexts import (
    assert_succeeded,
    create_context,
    get_base,
    make_saving_model,
    read_entries,
    run_remember,
    write_files,
)
from muniment.cancelling import Cancel
from muniment.errors import PendingReview
from muniment.store.review import load_pending
from muniment.testing.chat_server import Response, make_tool_call, repeat_responder, tool_calls_response
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls

__all__ = ["short_pauses"]
context, sample_rows = contexts.context, contexts.sample_rows
pytestmark = pytest.mark.usefixtures("short_pauses")

ORDINARY = [each["text"] for each in json.loads((FACTS / "ordinary.json").read_text())]
TEXTS = ("native", "fence", "prose and fence", "thinking, bare")
SPELLINGS = [("tools", name) for name in DIALECTS]
SPELLINGS += [(protocol, name) for protocol in ("json", "text", "decide") for name in TEXTS]
CLEAN = {f"remember_{end}" for end in ("failed", "no_update", "refused", "timeout", "path_escape")}


# -- a perfect model, and noise --------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_perfect_model_files_every_fact_in_every_dialect(tmp_path, sample_rows):
    for at, (protocol, dialect) in sample_rows([*enumerate(SPELLINGS)], 12):
        served = open_model(build_answerer(simulated_models.remember_fact, DIALECTS[dialect]), protocol)
        with served as (server, model), create_context(tmp_path / str(at)) as context:
            turns = 0
            for fact in sample_rows(ORDINARY[12 * at : 12 * at + 12], 6):
                result = assert_succeeded(run_remember(context, fact, model))
                assert result.unchanged or fact in read_entries(context)[result.files_touched[0]].decode(), (
                    fact
                )
                assert result.decided_by == "scripted" or protocol == "decide"
                assert len(result.timeline) == result.turns
                used = {turn.usage.input_tokens for turn in result.timeline}
                assert used == {100} or (protocol, dialect) != SPELLINGS[0]
                repeated = run_remember(context, fact, model)
                assert (repeated.status, repeated.unchanged) == ("completed", True), fact
                turns += result.turns + repeated.turns
            assert len(server.requests) == turns or (protocol, dialect) != SPELLINGS[0]


def test_noise_ends_in_clean_error_or_allowed_entry(tmp_path, sample_rows):
    for number, protocol in sample_rows([*enumerate(("tools", "json", "text", "decide") * 12)], 5):
        noisy = open_model(build_answerer(simulated_models.make_random_behavior(number // 4)), protocol)
        with noisy as (server, model), create_context(tmp_path / str(number)) as context:
            before = take_snapshot(get_base(context) / "outside")
            result = run_remember(context, ORDINARY[number], model)
            assert result.error is None or result.error.code in CLEAN
            assert (result.turns <= 6, len(server.requests) <= 18) == (True, True)
            assert take_snapshot(get_base(context) / "outside") == before
            assert {*result.files_touched} == {*read_entries(context)}
            assert result.status == "completed" or not read_entries(context)


def test_constrained_noise_with_decide_files_facts_verbatim(tmp_path, sample_rows):
    facts, pending_count = sample_rows(ORDINARY[::8], 20), 0
    noisy = open_model(build_answerer(simulated_models.make_random_behavior(11, constrained=True)), "decide")
    with noisy as (_, model), create_context(tmp_path, make_strict_policy(), in_process=False) as context:
        for number, fact in enumerate(facts):
            result = run_remember(context, fact, model, context=("workspace", "clean")[number % 2])
            if isinstance(result.error, PendingReview):
                # Noise in a name or description can look like tool markup; the fact is stored anyway.
                pending_count += 1
                assert [reason[-11:] for reason in result.error.reasons] == ["(tool-call)"], fact
                (change,) = load_pending(context.state, result.error.review_id).change_set.changes
                text = change.after
            elif not assert_succeeded(result).unchanged:
                text = read_entries(context)[result.files_touched[0]]
            assert result.unchanged or text.decode().endswith(f"---\n{fact}\n"), fact
    assert pending_count < len(facts) / 4


# -- deadline, cancellation and slow servers -------------------------------------------------------------


def test_run_waiting_for_model_ends_at_deadline_or_cancel(tmp_path):
    first = tool_calls_response(make_tool_call("write_file", {"path": "user/never.md", "content": "Never."}))
    stall = list_stalls()["stall in the body"]
    answers, policy = (
        itertools.chain([first], itertools.repeat(stall)),
        make_strict_policy(limits={"seconds": 1}),
    )
    with (
        open_model(answers) as (server, model),
        create_context(tmp_path / "late", policy, in_process=False) as context,
    ):
        before = take_snapshot(get_base(context))
        assert run_remember(context, "a fact", model).error.code == "remember_timeout"
        assert (take_snapshot(get_base(context)), server.requests[-1].hung_up.wait(60)) == (before, True)
    with (
        open_model(repeat_responder(stall)) as (server, model),
        Cancel() as cancel,
        create_context(tmp_path / "cancel") as context,
    ):
        threading.Thread(target=lambda: server.wait_for_requests() and cancel.set()).start()
        assert run_remember(context, "a fact", model, cancel=cancel).status == "cancelled"
        assert server.requests[0].hung_up.wait(60)


# -- API key ---------------------------------------------------------------------------------------------


def contains_key(process):
    """Return whether the key is in the writable memory of a process."""
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(each, 16) for each in span.split("-"))
                memory.seek(start)
                if KEY.encode() in memory.read(end - start):
                    return True
    return False


def list_descendants(process):
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from (child, *list_descendants(child))


@pytest.mark.threat("T-LEAK-09", control="clean_environment")
@pytest.mark.threat("T-RUN-04", control="clean_environment")
def test_api_key_is_not_in_worker_memory_results_or_events(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MUNIMENT_API_KEY", KEY)
    searched = {}

    def answer(request):
        """Search every child process for the key while a run waits."""
        assert request.headers["authorization"] == f"Bearer {KEY}"
        searched.update(
            (each, contains_key(each)) for each in list_descendants(os.getpid()) if each not in searched
        )
        return build_answerer(simulated_models.remember_fact)(request)

    with (
        open_model(answer) as (_, model),
        create_context(tmp_path, make_strict_policy(), in_process=False) as context,
    ):
        result = assert_succeeded(run_remember(context, "We deploy on Thursdays.", model))
        assert KEY.encode() not in b"".join(read_entries(context).values())
    assert len(searched) >= 2  # The zygote and the worker.
    assert not any(searched.values())
    assert contains_key(os.getpid())  # The search works: this process has the key.
    assert KEY not in json.dumps(result.as_json()) + repr(result) + caplog.text


# -- models that lose a fact -----------------------------------------------------------------------------

FRONT = "---\nname: Deploys\ndescription: when\ntype: project\n---\n"


class Case:
    """A fact, the path that a model would use, and the calls that it could make."""

    def __init__(self, number):
        self.fact = f"We do not deploy ring {number} on Fridays after 16:30, says Anna; ask Ben."
        self.path = f"project/deploy-{number}.md"

    def write(self, body=None, front=FRONT):
        content = f"{front}{self.fact if body is None else body}\n"
        return RequestCalls([("write_file", {"path": self.path, "content": content})])

    def write_with(self, old, new):
        """Write the fact with one replacement."""
        assert old in self.fact
        return self.write(self.fact.replace(old, new))

    def edit(self, old, new, path=None):
        return RequestCalls([("edit", {"path": path or self.path, "old_string": old, "new_string": new})])

    def read(self, path=None):
        return RequestCalls([("read_file", {"path": path or self.path})])

    def double_braces(self, body):
        """Write a call with doubled braces, as shown in a common template."""
        arguments = {"path": self.path, "content": f"{FRONT}{body}\n"}
        action = f"{{{json.dumps({'action': 'write_file', **arguments})}}}"
        tagged = (
            f"<tool_call>\n{{{json.dumps({'name': 'write_file', 'arguments': arguments})}}}\n</tool_call>"
        )
        return lambda request: WriteText(
            action if "action" in dialects.classify_request(request.body) else tagged
        )

    def copy_fences(self, body):
        """Write the fact with the fences of the prompt."""

        def think(request):
            token = re.search(r"<<fact (\w+)>>|$", json.dumps(request.body))[1] or "0"
            return self.write(f"<<fact {token}>>\n{body}\n<<end {token}>>")

        return think


SCRIPTS = {
    "overwrites it with a tool's answer": lambda at: [at.write(), at.read(), at.write(f"created {at.path}")],
    "changes a number": lambda at: [at.write_with("16", "15")],
    "drops a not": lambda at: [at.write_with("not ", "")],
    "saves another fact": lambda at: [at.write("The user likes green tea.")],
    "answers in words": lambda at: [FinishWithText(f"Saved to {at.path}.")],
    "hides it in front matter": lambda at: [at.write("Noted.", FRONT.replace("when", json.dumps(at.fact)))],
    "spoils another entry": lambda at: [at.read("user/tea.md"), at.edit("green", "black", "user/tea.md")],
    "breaks off": lambda _: [WriteText('{"action": "write_file", "path": "project/dep')] * 9,
    "doubles braces": lambda at: [at.double_braces(at.fact)],
    "doubles braces around another number": lambda at: [at.double_braces(at.fact.replace("16", "17"))],
    "copies fences": lambda at: [at.copy_fences(at.fact)],
}
RUNS = [*itertools.product(("tools", "json", "text", "decide"), ("rules",), SCRIPTS)]
RUNS += [("auto", "rules", name) for name in [*SCRIPTS][::4]] + [("tools", "fail", name) for name in SCRIPTS]


@contextmanager
def serve_script(protocol, name, case):
    """Serve a model that follows a script, and then claims that it has saved the fact."""
    steps = SCRIPTS[name](case)

    def think(request):
        turn = sum(message["role"] == "assistant" for message in request.body["messages"])
        step = steps[turn] if turn < len(steps) else FinishWithText(f"Saved to {case.path}.")
        return dialects.encode_response(
            step(request) if callable(step) else step, DIALECTS["native"], request.body
        )

    with open_model(think, protocol) as (_, model):
        yield model


def is_stored(context, fact):
    """Return whether an entry contains the fact verbatim, as lines of its body."""
    texts = (text.decode().rpartition("\n---\n")[2] for text in read_entries(context).values())
    return any(fact in text.splitlines() for text in texts)


@pytest.mark.threat("T-RUN-14", control="contained_facts")
@pytest.mark.timeout(600)
def test_completed_run_never_loses_the_fact(context, sample_rows):
    assert len(RUNS) >= 40
    write_files(context, {"user/tea.md": "The user likes green tea.\n"})
    for number, (protocol, on_failure, name) in enumerate(sample_rows(RUNS, 11)):
        case = Case(number)
        with serve_script(protocol, name, case) as model:
            result = run_remember(replace(context, on_model_failure=on_failure), case.fact, model)
        details = (protocol, name, on_failure, result.status, result.error, result.notes)
        assert is_stored(context, case.fact) or (on_failure == "fail" and result.status == "failed"), details
        by_rules = any("the rules stored the fact" in note for note in result.notes)
        decided = {"rules"} if by_rules else {"scripted"}
        assert result.decided_by in decided or (not by_rules and protocol in {"decide", "auto"}), details


def test_malformed_call_is_repaired_without_failure(context):
    rows = itertools.product(("tools", "json", "text"), ("doubles braces", "copies fences"))
    for number, (protocol, name) in enumerate(rows):
        case = Case(number)
        with serve_script(protocol, name, case) as model:
            result = run_remember(context, case.fact, model)
        assert (result.status, result.decided_by, result.notes) == ("completed", "scripted", ())
        text = read_entries(context)[result.files_touched[0]].decode()
        assert (text.endswith(f"---\n{case.fact}\n"), "<<" in text) == (True, False)


def test_fallback_to_rules_is_noted_with_model_failure(context):
    ring, other_fact = Case(1).fact, Case(2).fact
    result = run_remember(context, ring, make_saving_model("user/a.md", "Thank you!\n"))
    why = "the text that it wrote or cited does not contain the fact"
    (note,) = result.notes
    assert note.startswith(f"the model scripted failed: {why}; the rules stored the fact verbatim; if this")
    assert (result.decided_by, result.as_json()["notes"]) == ("rules", [*result.notes])
    ((path, text),) = read_entries(context).items()
    assert (path, '"decided_by": "rules"' in text.decode()) == (result.files_touched[0], True)
    rules_context = replace(context, on_model_failure="rules")
    with open_model(lambda _: Response(b"{}", status=503), "tools") as (_, model):
        result = run_remember(rules_context, other_fact, model)
    assert (result.status, result.decided_by, "503" in result.notes[0]) == ("completed", "rules", True)
    assert is_stored(context, other_fact)
    escape_calls = [
        reply_with_calls(make_call("read_file", path=f"user/../../{number}")) for number in range(3)
    ]
    result = run_remember(rules_context, "a fact", ScriptedModel(escape_calls))
    assert (result.status, result.decided_by) == ("failed", "scripted")
