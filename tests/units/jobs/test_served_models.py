"""Remembering with language models behind real sockets: in every dialect, by noise, on time, or not."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from kit.agent.servers import KEY, hasty, serving
from kit.jobs.places import made
from kit.memories import SCOPES, photograph, put, strict
from kit.where import FACTS
from muniment.confine.cancel import Cancel
from muniment.errors import PendingReview
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest
from muniment.store.review import load
from muniment.testing.chat_server import always, misbehaviours, stalls, tool_call, tool_calls, words
from muniment.testing.minds import DIALECTS, AskForCalls, Say, noise, perfect, through

__all__ = ["hasty"]
pytestmark = pytest.mark.usefixtures("hasty")

FACTS = [each["text"] for each in json.loads((FACTS / "ordinary.json").read_text())]
PROTOCOLS = ("tools", "json", "text", "decide")
TEXT_DIALECTS = ("native", "fence", "prose and fence", "thinking, bare")
SPELLINGS = [("tools", name) for name in DIALECTS] + [
    (protocol, name) for protocol in ("json", "text", "decide") for name in TEXT_DIALECTS
]
A_FEW = 4
CLEAN = {
    "remember_failed",
    "remember_no_update",
    "remember_refused",
    "remember_timeout",
    "remember_path_escape",
}


def entries(base):
    return {
        str(path.relative_to(base)): path.read_text()
        for scope in SCOPES
        for path in sorted((base / scope).rglob("*.md"))
        if path.name != "MEMORY.md"
    }


# -- a model that does its job ---------------------------------------------------------------------------


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("protocol", "dialect"), SPELLINGS)
@pytest.mark.timeout(600)  # with --slow: every fact, twice
def test_a_perfect_model_files_every_fact_in_every_dialect(tmp_path, protocol, dialect, request):
    at, few = SPELLINGS.index((protocol, dialect)), 3 * A_FEW if request.config.getoption("--slow") else A_FEW
    facts = FACTS[at * A_FEW : at * A_FEW + few]
    with (
        serving(through(perfect, DIALECTS[dialect]), protocol) as (_, model),
        made(tmp_path) as place,
    ):
        for fact in facts:
            result = remember(RememberRequest(fact), place, model)
            assert result.error is None, (fact, result.error)
            assert result.status == "completed"
            assert result.unchanged or fact in (tmp_path / result.files_touched[0]).read_text()
            assert result.decided_by == "scripted" or protocol == "decide"
            again = remember(RememberRequest(fact), place, model)
            assert (again.status, again.unchanged) == ("completed", True), fact


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_perfect_model_files_two_hundred_facts_from_one_server_in_workers(tmp_path):
    facts = FACTS[-200:]
    with (
        serving(through(perfect)) as (server, model),
        made(tmp_path, strict(), in_process=False) as place,
    ):
        results = [remember(RememberRequest(fact), place, model) for fact in facts]
    assert [result.error for result in results] == [None] * len(facts)
    assert all(len(result.timeline) == result.turns <= 4 for result in results)
    assert all(turn.usage.input_tokens == 100 for result in results for turn in result.timeline)
    assert len(server.requests) == sum(result.turns for result in results)


# -- a model that is noise -------------------------------------------------------------------------------


@pytest.mark.sweep(6)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_noise_ends_in_a_clean_error_or_in_an_entry_that_the_policy_grants(tmp_path, protocol, seed):
    with serving(through(noise(seed)), protocol) as (server, model), made(tmp_path) as place:
        before = photograph(tmp_path / "outside")
        result = remember(RememberRequest(FACTS[seed]), place, model)
        assert result.error is None or result.error.code in CLEAN
        assert result.turns <= 6
        assert len(server.requests) <= 18
        assert photograph(tmp_path / "outside") == before
        assert result.status == "completed" or not entries(tmp_path)
        assert set(result.files_touched) == set(entries(tmp_path))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("context", ["workspace", "clean"])
def test_constrained_noise_that_only_decides_files_every_fact_verbatim(tmp_path, context):
    facts = FACTS[::8]
    assert len(facts) >= 40
    waiting = 0
    with (
        serving(through(noise(11, constrained=True)), "decide") as (_, model),
        made(tmp_path, strict(), in_process=False) as place,
    ):
        for fact in facts:
            result = remember(RememberRequest(fact, context=context), place, model)
            if isinstance(result.error, PendingReview):
                # Noise in a name or description may spell markup of a tool; the fact is kept all the same.
                waiting += 1
                assert [reason[-11:] for reason in result.error.reasons] == ["(tool-call)"], fact
                (held,) = load(place.state, result.error.review_id).change_set.changes
                assert held.content.decode().endswith(f"---\n{fact}\n")
                continue
            assert result.error is None, (fact, result.error)
            assert result.unchanged or entries(tmp_path)[result.files_touched[0]].endswith(f"---\n{fact}\n")
    assert waiting < len(facts) / 4


# -- what counts as known --------------------------------------------------------------------------------

KNOWN = "---\nname: Deploys\ntype: project\n---\nWe deploy on Thursdays.\n"
READS = [("read_file", {"path": "project/deploy.md"})]


def reader(request):
    """Reads the entry, then says that the fact is known."""
    has_read = any(message["role"] == "tool" for message in request.body["messages"])
    return Say("Already known: project/deploy.md") if has_read else AskForCalls(READS)


def boaster(_request):
    """Says so without having read it."""
    return Say("Already known: project/deploy.md")


def test_a_model_that_read_the_entry_and_says_so_completes_as_unchanged(tmp_path):
    with serving(through(reader)) as (_, model), made(tmp_path) as place:
        put(tmp_path / "project", "deploy.md", KNOWN)
        before = photograph(tmp_path)
        result = remember(RememberRequest("We deploy on Thursdays."), place, model)
        assert (result.status, result.unchanged, result.files_touched) == ("completed", True, ())
        assert photograph(tmp_path) == before


def test_having_read_the_index_is_not_to_know(tmp_path):
    path = "project/MEMORY.md"

    def mind(request):
        has_read = any(message["role"] == "tool" for message in request.body["messages"])
        return Say(f"Already known: {path}") if has_read else AskForCalls([("read_file", {"path": path})])

    with serving(through(mind)) as (_, model), made(tmp_path) as place:
        put(tmp_path / "project", "MEMORY.md", "- [We deploy on Thursdays](deploy.md)\n")
        result = remember(RememberRequest("We deploy on Thursdays."), place, model)
        assert (result.status, result.error.code) == ("failed", "remember_no_update")


def test_one_that_says_so_without_having_read_it_does_not(tmp_path):
    with serving(through(boaster)) as (_, model), made(tmp_path) as place:
        put(tmp_path / "project", "deploy.md", KNOWN)
        result = remember(RememberRequest("We deploy on Thursdays."), place, model)
        assert result.status == "failed"
        assert result.error.code in CLEAN


# -- the clock -------------------------------------------------------------------------------------------

WRITE = tool_calls(tool_call("write_file", {"path": "user/never.md", "content": "Never."}))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", stalls())
@pytest.mark.parametrize("after", [0, 1], ids=["at once", "after a write"])
def test_a_run_ends_on_its_deadline_and_leaves_nothing(tmp_path, name, after):
    answers = itertools.chain([WRITE] * after, itertools.repeat(stalls()[name]))
    policy = strict(limits={"seconds": 2})
    with serving(answers) as (server, model), made(tmp_path, policy, in_process=False) as place:
        before = photograph(tmp_path)
        started = time.monotonic()
        result = remember(RememberRequest("a fact"), place, model)
        took = time.monotonic() - started
        assert result.error.code == "remember_timeout"
        assert 2.0 <= took <= 2.5
        assert photograph(tmp_path) == before
        assert server.requests[-1].hung_up.wait(5)


def test_a_cancel_ends_a_run_that_waits_for_its_model(tmp_path):
    with (
        serving(always(stalls()["stall in the body"])) as (server, model),
        Cancel() as cancel,
        made(tmp_path) as place,
    ):
        threading.Thread(target=lambda: server.wait_for_requests() and cancel.set()).start()
        result = remember(RememberRequest("a fact"), place, model, cancel=cancel)
        assert result.status == "cancelled"
        assert server.requests[0].hung_up.wait(5)


# -- nothing that a server does reaches the memory -------------------------------------------------------


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", [name for name in misbehaviours() if name not in stalls()])
def test_no_misbehaviour_of_a_server_writes_what_a_broken_call_asked_for(tmp_path, name):
    with (
        serving(always(misbehaviours()[name])) as (_, model),
        made(tmp_path, strict(require="none", limits={"seconds": 20})) as place,
    ):
        result = remember(RememberRequest("a fact"), place, model)
        assert result.error.code in CLEAN
        assert entries(tmp_path) == {}


# -- the key ---------------------------------------------------------------------------------------------


def memory_of(process):
    """Everything readable in the memory of a process."""
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if rights.startswith("r") and not line.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                start, end = (int(each, 16) for each in span.split("-"))
                memory.seek(start)
                yield memory.read(end - start)


def children(process):
    return [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def descendants(process):
    for child in children(process):
        yield child
        yield from descendants(child)


@pytest.mark.threat("T-LEAK-09", control="clean_environment")
@pytest.mark.threat("T-RUN-04", control="clean_environment")
def test_the_key_is_not_in_the_memory_of_the_worker_nor_in_any_result_or_event(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MUNIMENT_API_KEY", KEY)
    searched = []

    def answer(request):
        """Looks into every process below this one while a run waits for it."""
        assert request.headers["authorization"] == f"Bearer {KEY}"
        searched.extend(
            (process, any(KEY.encode() in part for part in memory_of(process)))
            for process in descendants(os.getpid())
        )
        return through(perfect)(request)

    with serving(answer) as (_, model), made(tmp_path, strict(), in_process=False) as place:
        result = remember(RememberRequest("We deploy on Thursdays."), place, model)
    assert result.status == "completed"
    assert len({process for process, _ in searched}) >= 2  # The zygote and the worker.
    assert not any(found for _, found in searched)
    assert any(KEY.encode() in part for part in memory_of(os.getpid()))  # It can be found where it is.
    assert KEY not in json.dumps(result.as_json()) + repr(result) + caplog.text
    assert not any(KEY in text for text in entries(tmp_path).values())


@pytest.mark.threat("T-LEAK-09", control="hidden_key")
def test_words_that_repeat_the_key_are_stored_without_it(tmp_path):
    leak = tool_calls(tool_call("write_file", {"path": "user/a.md", "content": f"The key is {KEY}."}))
    with serving([leak, words(f"Saved {KEY}.")]) as (_, model), made(tmp_path) as place:
        result = remember(RememberRequest("The key is [key]."), place, model)
    assert result.status == "completed"
    assert KEY not in entries(tmp_path)["user/a.md"] + result.summary
