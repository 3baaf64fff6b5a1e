"""What is asked of the daemon, and what is made of the answers; without any I/O."""

from __future__ import annotations

import json

import pytest

from kit.client.driving import BROKEN, GONE, carry_out, said
from kit.client.scripted import RECALLED, REMEMBERED, task
from muniment.client import core as owner
from muniment.client.core import FIRST_PAUSE, ClientCore
from muniment.client.errors import BadAnswer, Cancelled, QueueFull, TaskNotFound, Unreachable, WaitTimeout
from muniment.client.results import Recalled
from muniment.errors import ConfigInvalid
from muniment.testing.minds import FakeClock

DONE = said(200, task("completed", result=REMEMBERED))
RUNNING = said(200, task("running"))
ABSENT = said(404, {"code": "remember_task_not_found", "error": "Not found."})


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def core(clock):
    return made(clock)


def made(clock, **options):
    keys = iter(f"key-{number}" for number in range(100))
    return ClientCore(new_key=lambda: next(keys), clock=clock, **options)


def after(clock, seconds, outcome):
    """An outcome that takes time."""
    return lambda _step: clock.advance(seconds) or outcome


def test_what_is_asked_is_sent_with_what_was_given_and_nothing_else(core, clock):
    everything = {"scope": "user", "context_mode": "clean", "trust": "agent", "ref": "mail 7"}
    sent = {"scope": "user", "contextMode": "clean", "source": {"trust": "agent", "ref": "mail 7"}}
    keyed = {"idempotency_key": "mine"}
    for number, (plan, key, path, body) in enumerate(
        (
            (core.remember("A fact."), "key-0", "remember", {"content": "A fact."}),
            (core.remember("é", **everything, **keyed), "mine", "remember", {"content": "é", **sent}),
            (core.forget("x"), "key-1", "forget", {"query": "x"}),
            (core.forget("x", scope="user", dry_run=True), "key-2", "forget", None),
            (core.dream(), "key-3", "dream", {}),
        )
    ):
        headers = {"idempotency-replayed": "true"} if number % 2 else {}
        (step,), accepted = carry_out(plan, clock, said(202, task(kind=path), **headers))
        assert (step.ask.method, step.ask.path) == ("POST", f"/workspace/memory/{path}")
        expected = {"query": "x", "scope": "user", "dryRun": True} if body is None else body
        assert json.loads(step.ask.body) == expected
        assert step.ask.headers["content-type"] == "application/json"
        assert step.ask.headers["idempotency-key"] == key
        assert (accepted.task.task_id, accepted.replayed) == (f"{path}-1", bool(number % 2))


def test_every_try_of_a_call_has_its_key_and_every_call_another(core, clock):
    first, _ = carry_out(core.remember("A fact."), clock, BROKEN, GONE, said(202, task()))
    second, _ = carry_out(core.remember("A fact."), clock, said(202, task()))
    keys = [step.ask.headers["idempotency-key"] for step in (*first, *second)]
    assert keys == ["key-0"] * 3 + ["key-1"]


def test_the_client_id_goes_with_every_request_and_the_workspace_stands_in_its_path(clock):
    core = made(clock, client_id="web-1")
    asks = [next(plan).ask for plan in (core.get("dream-1"), core.capabilities(), owner.audit_head(core))]
    assert {ask.headers["x-muniment-client-id"] for ask in (*asks, core.follow_ask(""))} == {"web-1"}
    for named, encoded in ("app-12ab", "app-12ab"), ("/w/项目 1", "%2Fw%2F%E9%A1%B9%E7%9B%AE%201"):
        assert made(clock, workspace=named).follow_ask("").path == f"/workspaces/{encoded}/memory/events"


def test_what_cannot_be_sent_is_refused_and_ids_lead_nowhere_else(core, clock):
    for options in (
        *({"client_id": "two words"}, {"client_id": "a\r\nhost: b"}),
        *({"workspace": ""}, {"workspace": ".."}, {"workspace": "half \ud800"}),
        *({"timeout": 0}, {"timeout": float("nan")}),
    ):
        with pytest.raises(ConfigInvalid):
            made(clock, **options)
    with pytest.raises(ConfigInvalid, match="idempotency key"):
        core.remember("A fact.", idempotency_key="a\nb")
    with pytest.raises(ConfigInvalid, match="id of an event"):
        core.follow_ask("a b")
    for unsafe_id in ("", "..", "undo-1", "remembered-1"):
        with pytest.raises(ConfigInvalid):
            core.get(unsafe_id)
    path = next(core.get("remember-1/../../x?y#z")).ask.path
    assert path.endswith("/remember/remember-1%2F..%2F..%2Fx%3Fy%23z")
    path = next(core.get("remember-1", "forget")).ask.path  # Another kind than that of the id.
    assert path.endswith("/forget/remember-1")


def test_a_cancel_and_a_recall_are_repeated_since_that_changes_nothing(core, clock):
    tries, found = carry_out(core.cancel("remember-1"), clock, BROKEN, said(200, task("cancelled")))
    asked = [(step.ask.method, step.ask.path) for step in tries]
    assert asked == [("DELETE", "/workspace/memory/remember/remember-1")] * 2
    assert found.status == "cancelled"
    busy = said(503, {"code": "busy", "error": "Busy."}, **{"retry-after": "1"})
    tries, _ = carry_out(core.recall("x"), clock, BROKEN, GONE, busy, said(200, RECALLED))
    assert (len({step.ask.body for step in tries}), tries[-1].pause) == (1, 1)


# -- waiting -------------------------------------------------------------------------------------------


def test_a_wait_is_held_by_the_daemon_and_ends_with_the_task(core, clock):
    held = [after(clock, 20, RUNNING)] * 4
    tries, result = carry_out(core.wait("remember-1", None), clock, *held, after(clock, 3, DONE))
    assert [step.ask.headers["prefer"] for step in tries] == ["wait=20"] * 5
    assert [step.pause for step in tries] == [0.0, *[FIRST_PAUSE] * 4]
    assert {step.seconds for step in tries} == {30}
    assert result.files_touched == ("user/editor.md",)
    tries, _ = carry_out(core.wait("remember-1", None), clock, *[RUNNING] * 8, DONE)  # It does not hold.
    assert [round(step.pause, 2) for step in tries] == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1]


def test_a_wait_asks_for_no_more_than_its_time_and_then_gives_up(core, clock):
    begun, tries = clock(), []

    def held(step):
        tries.append(step)
        clock.advance(float(step.ask.headers.get("prefer", "wait=0").removeprefix("wait=")))
        return RUNNING

    with pytest.raises(WaitTimeout) as caught:
        carry_out(core.wait("remember-1", 30.5), clock, *[held] * 50)
    assert clock() - begun == pytest.approx(30.5)
    assert [step.ask.headers.get("prefer") for step in tries[:3]] == ["wait=20", "wait=10", None]
    assert (caught.value.task_id, caught.value.status) == ("remember-1", "running")
    (step,), result = carry_out(core.wait("remember-1", 0), clock, DONE)
    assert (bool(result.summary), "prefer" in step.ask.headers) == (True, False)
    with pytest.raises(WaitTimeout):
        carry_out(core.wait("remember-1", 0), clock, said(200, task()))


def test_a_wait_outlives_a_daemon_that_is_away_for_as_long_as_it_was_told(core, clock):
    tries, _ = carry_out(core.wait("remember-1", 300), clock, RUNNING, BROKEN, *[GONE] * 40, DONE)
    assert all(step.afresh for step in tries[2:])
    assert sum(step.pause for step in tries) > 60
    begun = clock()  # Without a limit it ends when the daemon is silent for the time of a call.
    with pytest.raises(Unreachable):
        carry_out(made(clock, timeout=5).wait("remember-1", None), clock, RUNNING, *[GONE] * 1000)
    assert clock() - begun < 5 + 20 + 1
    full = said(429, {"code": "remember_queue_full", "error": "Full."})
    for outcome, cause in ((GONE, Unreachable), (full, QueueFull)):
        with pytest.raises(WaitTimeout) as caught:
            carry_out(core.wait("remember-1", 10), clock, *[outcome] * 1000)
        assert (caught.value.status, isinstance(caught.value.__cause__, cause)) == (None, True)


def test_a_wait_that_is_told_to_come_back_after_its_time_looks_once_more_at_its_end(core, clock):
    busy = said(503, {"code": "busy", "error": "Busy."}, **{"retry-after": "31"})
    tries, result = carry_out(core.wait("remember-1", 30), clock, busy, DONE)
    assert [(step.pause, step.ask.headers.get("prefer")) for step in tries] == [(0, "wait=20"), (30, None)]
    assert result.summary
    begun = clock()
    with pytest.raises(WaitTimeout):
        carry_out(core.wait("remember-1", 30), clock, RUNNING, busy, busy)
    assert clock() - begun == pytest.approx(30)


def test_a_wait_for_what_is_not_there_or_was_cancelled_ends_at_once(core, clock):
    for timeout in (None, 10):
        with pytest.raises(TaskNotFound):
            carry_out(core.wait("remember-1", timeout), clock, ABSENT)
    with pytest.raises(Cancelled):
        carry_out(core.wait("remember-1", None), clock, said(200, task("cancelled")))


# -- recalls, lists and the owner's ----------------------------------------------------------------------


def test_a_recall_is_sent_with_what_was_given_and_its_failure_is_a_value(core, clock):
    (step,), found = carry_out(core.recall("Which editor?"), clock, said(200, RECALLED))
    assert (step.ask.method, step.ask.path) == ("POST", "/workspace/memory/recall")
    assert json.loads(step.ask.body) == {"query": "Which editor?"}
    assert ("idempotency-key" in step.ask.headers, found.text) == (False, "## Relevant Memory")
    seen = (each.id for each in found.entries)
    (step,), _ = carry_out(core.recall("é", exclude=seen, limit=3), clock, said(200, RECALLED))
    assert json.loads(step.ask.body) == {"query": "é", "exclude": [found.entries[0].id], "limit": 3}
    failed = {"entries": [], "text": "", "tokens": 0, "abstained": False, "error": "deadline"}
    _, found = carry_out(core.recall("x"), clock, said(200, failed))
    assert found == Recalled((), "", 0, abstained=False, error="deadline")


def page(*tasks, cursor=None):
    return said(200, {"tasks": tasks, "nextCursor": cursor})


def test_a_list_is_read_to_its_last_page_without_what_is_newer_than_this_client(core, clock):
    newer = task(kind="tidy"), task("sleeping")
    pages = page(task(number=2), *newer, cursor="2"), page(task(kind="dream"))
    tries, found = carry_out(core.tasks("queued"), clock, *pages)
    first = "/workspace/memory/tasks?status=queued"
    assert [step.ask.path for step in tries] == [first, f"{first}&cursor=2"]
    assert [each.task_id for each in found] == ["remember-2", "dream-1"]
    for bad in ({}, {"tasks": {}}, {"tasks": [1]}, {"tasks": [], "nextCursor": 7}):
        with pytest.raises(BadAnswer):
            carry_out(core.tasks(None), clock, said(200, bad))
    with pytest.raises(BadAnswer, match="100 pages"):
        carry_out(core.tasks(None), clock, *[page(cursor="1")] * 100)


def test_what_the_owner_does_is_given_time_and_not_repeated_where_it_may_have_arrived(core, clock):
    done = {"taskId": "undo-1", "undone": "remember-1", "filesTouched": [], "touchedScopes": [], "notes": []}
    (step,), undone = carry_out(owner.undo(core, "remember-1"), clock, said(200, done))
    assert (step.ask.path, json.loads(step.ask.body)) == ("/workspace/memory/undo", {"taskId": "remember-1"})
    assert (step.seconds, undone.task_id) == (70, "undo-1")
    with pytest.raises(Unreachable):
        carry_out(owner.reject(core, "r/1"), clock, BROKEN)
    assert next(owner.review(core, "r 1")).ask.path == "/workspace/memory/review/r%201"
    path = next(owner.explain(core, "read", "user/a&b.md")).ask.path
    assert path == "/workspace/memory/policy/explain?verb=read&path=user%2Fa%26b.md"
