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

from kit.agent import dialects, served_minds
from kit.agent.dialects import DIALECTS, AskForCalls, Say, Utter
from kit.agent.misbehaviours import stalls
from kit.agent.served_minds import through
from kit.agent.servers import KEY, hasty, serving
from kit.memories import photograph, strict
from kit.operations import places
from kit.operations.places import base, done, lay, made, memory, remembering, saving
from kit.where import FACTS
from muniment.cancelling import Cancel
from muniment.errors import PendingReview
from muniment.store.review import load
from muniment.testing.chat_server import Response, always, tool_call, tool_calls
from muniment.testing.minds import ScriptedModel, call, calls

__all__ = ["hasty"]
context, some = places.place, places.some
pytestmark = pytest.mark.usefixtures("hasty")

ORDINARY = [each["text"] for each in json.loads((FACTS / "ordinary.json").read_text())]
TEXTS = ("native", "fence", "prose and fence", "thinking, bare")
SPELLINGS = [("tools", name) for name in DIALECTS]
SPELLINGS += [(protocol, name) for protocol in ("json", "text", "decide") for name in TEXTS]
CLEAN = {f"remember_{end}" for end in ("failed", "no_update", "refused", "timeout", "path_escape")}


# -- a perfect model, and noise --------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_perfect_model_files_every_fact_in_every_dialect(tmp_path, some):
    for at, (protocol, dialect) in some([*enumerate(SPELLINGS)], 12):
        served = serving(through(served_minds.perfect, DIALECTS[dialect]), protocol)
        with served as (server, model), made(tmp_path / str(at)) as context:
            turns = 0
            for fact in some(ORDINARY[12 * at : 12 * at + 12], 6):
                result = done(remembering(context, fact, model))
                assert result.unchanged or fact in memory(context)[result.files_touched[0]].decode(), fact
                assert result.decided_by == "scripted" or protocol == "decide"
                assert len(result.timeline) == result.turns
                used = {turn.usage.input_tokens for turn in result.timeline}
                assert used == {100} or (protocol, dialect) != SPELLINGS[0]
                repeated = remembering(context, fact, model)
                assert (repeated.status, repeated.unchanged) == ("completed", True), fact
                turns += result.turns + repeated.turns
            assert len(server.requests) == turns or (protocol, dialect) != SPELLINGS[0]


def test_noise_ends_in_clean_error_or_allowed_entry(tmp_path, some):
    for number, protocol in some([*enumerate(("tools", "json", "text", "decide") * 12)], 5):
        noisy = serving(through(served_minds.noise(number // 4)), protocol)
        with noisy as (server, model), made(tmp_path / str(number)) as context:
            before = photograph(base(context) / "outside")
            result = remembering(context, ORDINARY[number], model)
            assert result.error is None or result.error.code in CLEAN
            assert (result.turns <= 6, len(server.requests) <= 18) == (True, True)
            assert photograph(base(context) / "outside") == before
            assert {*result.files_touched} == {*memory(context)}
            assert result.status == "completed" or not memory(context)


def test_constrained_noise_with_decide_files_facts_verbatim(tmp_path, some):
    facts, pending_count = some(ORDINARY[::8], 20), 0
    noisy = serving(through(served_minds.noise(11, constrained=True)), "decide")
    with noisy as (_, model), made(tmp_path, strict(), in_process=False) as context:
        for number, fact in enumerate(facts):
            result = remembering(context, fact, model, context=("workspace", "clean")[number % 2])
            if isinstance(result.error, PendingReview):
                # Noise in a name or description can look like tool markup; the fact is stored anyway.
                pending_count += 1
                assert [reason[-11:] for reason in result.error.reasons] == ["(tool-call)"], fact
                (change,) = load(context.state, result.error.review_id).change_set.changes
                text = change.after
            elif not done(result).unchanged:
                text = memory(context)[result.files_touched[0]]
            assert result.unchanged or text.decode().endswith(f"---\n{fact}\n"), fact
    assert pending_count < len(facts) / 4


# -- deadline, cancellation and slow servers -------------------------------------------------------------


def test_run_waiting_for_model_ends_at_deadline_or_cancel(tmp_path):
    first = tool_calls(tool_call("write_file", {"path": "user/never.md", "content": "Never."}))
    stall = stalls()["stall in the body"]
    answers, policy = itertools.chain([first], itertools.repeat(stall)), strict(limits={"seconds": 1})
    with serving(answers) as (server, model), made(tmp_path / "late", policy, in_process=False) as context:
        before = photograph(base(context))
        assert remembering(context, "a fact", model).error.code == "remember_timeout"
        assert (photograph(base(context)), server.requests[-1].hung_up.wait(60)) == (before, True)
    with serving(always(stall)) as (server, model), Cancel() as cancel, made(tmp_path / "cancel") as context:
        threading.Thread(target=lambda: server.wait_for_requests() and cancel.set()).start()
        assert remembering(context, "a fact", model, cancel=cancel).status == "cancelled"
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
        return through(served_minds.perfect)(request)

    with serving(answer) as (_, model), made(tmp_path, strict(), in_process=False) as context:
        result = done(remembering(context, "We deploy on Thursdays.", model))
        assert KEY.encode() not in b"".join(memory(context).values())
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
        return AskForCalls([("write_file", {"path": self.path, "content": content})])

    def write_with(self, old, new):
        """Write the fact with one replacement."""
        assert old in self.fact
        return self.write(self.fact.replace(old, new))

    def edit(self, old, new, path=None):
        return AskForCalls([("edit", {"path": path or self.path, "old_string": old, "new_string": new})])

    def read(self, path=None):
        return AskForCalls([("read_file", {"path": path or self.path})])

    def double_braces(self, body):
        """Write a call with doubled braces, as shown in a common template."""
        arguments = {"path": self.path, "content": f"{FRONT}{body}\n"}
        action = f"{{{json.dumps({'action': 'write_file', **arguments})}}}"
        tagged = (
            f"<tool_call>\n{{{json.dumps({'name': 'write_file', 'arguments': arguments})}}}\n</tool_call>"
        )
        return lambda request: Utter(action if "action" in dialects.asked_for(request.body) else tagged)

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
    "answers in words": lambda at: [Say(f"Saved to {at.path}.")],
    "hides it in front matter": lambda at: [at.write("Noted.", FRONT.replace("when", json.dumps(at.fact)))],
    "spoils another entry": lambda at: [at.read("user/tea.md"), at.edit("green", "black", "user/tea.md")],
    "breaks off": lambda _: [Utter('{"action": "write_file", "path": "project/dep')] * 9,
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
        step = steps[turn] if turn < len(steps) else Say(f"Saved to {case.path}.")
        return dialects.spell(step(request) if callable(step) else step, DIALECTS["native"], request.body)

    with serving(think, protocol) as (_, model):
        yield model


def is_stored(context, fact):
    """Return whether an entry contains the fact verbatim, as lines of its body."""
    texts = (text.decode().rpartition("\n---\n")[2] for text in memory(context).values())
    return any(fact in text.splitlines() for text in texts)


@pytest.mark.threat("T-RUN-14", control="contained_facts")
@pytest.mark.timeout(600)
def test_completed_run_never_loses_the_fact(context, some):
    assert len(RUNS) >= 40
    lay(context, {"user/tea.md": "The user likes green tea.\n"})
    for number, (protocol, on_failure, name) in enumerate(some(RUNS, 11)):
        case = Case(number)
        with serve_script(protocol, name, case) as model:
            result = remembering(replace(context, on_model_failure=on_failure), case.fact, model)
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
            result = remembering(context, case.fact, model)
        assert (result.status, result.decided_by, result.notes) == ("completed", "scripted", ())
        text = memory(context)[result.files_touched[0]].decode()
        assert (text.endswith(f"---\n{case.fact}\n"), "<<" in text) == (True, False)


def test_fallback_to_rules_is_noted_with_model_failure(context):
    ring, other_fact = Case(1).fact, Case(2).fact
    result = remembering(context, ring, saving("user/a.md", "Thank you!\n"))
    why = "the text that it wrote or cited does not contain the fact"
    (note,) = result.notes
    assert note.startswith(f"the model scripted failed: {why}; the rules stored the fact verbatim; if this")
    assert (result.decided_by, result.as_json()["notes"]) == ("rules", [*result.notes])
    ((path, text),) = memory(context).items()
    assert (path, '"decided_by": "rules"' in text.decode()) == (result.files_touched[0], True)
    rules_context = replace(context, on_model_failure="rules")
    with serving(lambda _: Response(b"{}", status=503), "tools") as (_, model):
        result = remembering(rules_context, other_fact, model)
    assert (result.status, result.decided_by, "503" in result.notes[0]) == ("completed", "rules", True)
    assert is_stored(context, other_fact)
    escape_calls = [calls(call("read_file", path=f"user/../../{number}")) for number in range(3)]
    result = remembering(rules_context, "a fact", ScriptedModel(escape_calls))
    assert (result.status, result.decided_by) == ("failed", "scripted")
