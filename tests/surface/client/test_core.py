"""What is asked of the daemon, and what is made of the answers; without any I/O."""

from __future__ import annotations

import json

import pytest

from kit.client.driving import carry_out
from kit.client.scripted import RECALLED, REMEMBERED, task
from muniment.client import core as owner
from muniment.client.core import FIRST_PAUSE, ClientCore, HttpReply, Lost
from muniment.client.errors import BadAnswer, Cancelled, QueueFull, TaskNotFound, Unreachable, WaitTimeout
from muniment.client.results import Recalled, Task
from muniment.errors import ConfigInvalid
from muniment.testing.minds import FakeClock

GONE = Lost("nobody takes the connection", may_have_arrived=False)
BROKEN = Lost("the connection ended early", may_have_arrived=True)
DONE = task("completed", result=REMEMBERED)


def reply(document, status=200, **headers):
    return HttpReply(status, headers, json.dumps(document).encode())


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

    def take(_step):
        clock.advance(seconds)
        return outcome

    return take


def test_a_fact_is_sent_with_what_was_given_and_nothing_else(core, clock):
    (step,), accepted = carry_out(core.remember("A fact."), clock, reply(task(), 202))
    assert (step.ask.method, step.ask.path) == ("POST", "/workspace/memory/remember")
    assert json.loads(step.ask.body) == {"content": "A fact."}
    assert step.ask.headers["content-type"] == "application/json"
    assert step.ask.headers["idempotency-key"] == "key-0"
    assert (accepted.task.task_id, accepted.replayed) == ("remember-1", False)


def test_everything_that_can_be_said_of_a_fact_is_sent(core, clock):
    plan = core.remember(
        "é", scope="user", context_mode="clean", trust="agent", ref="mail 7", idempotency_key="mine"
    )
    (step,), accepted = carry_out(plan, clock, reply(task(), 202, **{"idempotency-replayed": "true"}))
    assert json.loads(step.ask.body) == {
        "content": "é",
        "scope": "user",
        "contextMode": "clean",
        "source": {"trust": "agent", "ref": "mail 7"},
    }
    assert step.ask.headers["idempotency-key"] == "mine"
    assert accepted.replayed


def test_forget_and_dream_send_what_they_should(core, clock):
    (step,), _ = carry_out(
        core.forget("x", scope="user", dry_run=True), clock, reply(task(kind="forget"), 202)
    )
    assert json.loads(step.ask.body) == {"query": "x", "scope": "user", "dryRun": True}
    (step,), _ = carry_out(core.forget("x"), clock, reply(task(kind="forget"), 202))
    assert json.loads(step.ask.body) == {"query": "x"}
    (step,), _ = carry_out(core.dream(), clock, reply(task(kind="dream"), 202))
    assert (step.ask.path, json.loads(step.ask.body)) == ("/workspace/memory/dream", {})


def test_every_try_of_a_call_has_its_key_and_every_call_another(core, clock):
    first, _ = carry_out(core.remember("A fact."), clock, BROKEN, GONE, reply(task(), 202))
    second, _ = carry_out(core.remember("A fact."), clock, reply(task(), 202))
    assert [step.ask.headers["idempotency-key"] for step in (*first, *second)] == ["key-0"] * 3 + ["key-1"]


def test_the_client_id_goes_with_every_request(clock):
    core = made(clock, client_id="web-1")
    for plan in (core.get("dream-1"), core.capabilities(), owner.audit_head(core)):
        assert next(plan).ask.headers["x-muniment-client-id"] == "web-1"
    assert core.follow_ask("").headers["x-muniment-client-id"] == "web-1"


def test_a_workspace_stands_in_the_path_by_its_key_or_its_real_path(clock):
    for named, encoded in ("app-12ab", "app-12ab"), ("/w/项目 1", "%2Fw%2F%E9%A1%B9%E7%9B%AE%201"):
        assert made(clock, workspace=named).follow_ask("").path == f"/workspaces/{encoded}/memory/events"


@pytest.mark.parametrize(
    "options",
    [
        {"client_id": "two words"},
        {"client_id": "a\r\nhost: b"},
        {"workspace": ""},
        {"workspace": ".."},
        {"workspace": "half \ud800"},
        {"timeout": 0},
        {"timeout": float("nan")},
    ],
)
def test_what_cannot_be_sent_is_refused(clock, options):
    with pytest.raises(ConfigInvalid):
        made(clock, **options)


def test_ids_lead_nowhere_else(core):
    path = next(core.get("remember-1/../../x?y#z")).ask.path
    assert path.endswith("/remember/remember-1%2F..%2F..%2Fx%3Fy%23z")
    for unsafe_id in ("", "..", "undo-1", "remembered-1"):
        with pytest.raises(ConfigInvalid):
            core.get(unsafe_id)


def test_an_idempotency_key_and_an_event_id_that_cannot_be_sent_are_refused(core):
    with pytest.raises(ConfigInvalid, match="idempotency key"):
        core.remember("A fact.", idempotency_key="a\nb")
    with pytest.raises(ConfigInvalid, match="id of an event"):
        core.follow_ask("a b")


def test_the_kind_of_the_path_may_be_another_one_than_that_of_the_id(core, clock):
    problem = reply({"code": "forget_task_not_found", "error": "Not found."}, 404)
    with pytest.raises(TaskNotFound):
        carry_out(core.get("remember-1", "forget"), clock, problem)


def test_a_cancel_is_repeated_since_that_changes_nothing(core, clock):
    tries, found = carry_out(core.cancel("remember-1"), clock, BROKEN, reply(task("cancelled")))
    assert [(step.ask.method, step.ask.path) for step in tries] == [
        ("DELETE", "/workspace/memory/remember/remember-1")
    ] * 2
    assert found.status == "cancelled"


# -- waiting -------------------------------------------------------------------------------------------


def test_a_wait_is_held_by_the_daemon_and_ends_with_the_task(core, clock):
    tries, result = carry_out(
        core.wait("remember-1", None),
        clock,
        after(clock, 20, reply(task("running"))),
        after(clock, 3, reply(DONE)),
    )
    assert [step.ask.headers["prefer"] for step in tries] == ["wait=20"] * 2
    assert [step.pause for step in tries] == [0.0, 0.05]
    assert all(step.seconds == 30 for step in tries)
    assert result.files_touched == ("user/editor.md",)


def test_a_wait_asks_for_no_more_than_its_time_and_then_gives_up(core, clock):
    begun = clock()

    def held(step):
        clock.advance(float(step.ask.headers.get("prefer", "wait=0").removeprefix("wait=")))
        return reply(task("running"))

    plan = core.wait("remember-1", 30.5)
    tries = []
    with pytest.raises(WaitTimeout) as caught:
        tries += carry_out(plan, clock, *[lambda step: (tries.append(step), held(step))[1]] * 50)[0]
    assert clock() - begun == pytest.approx(30.5)
    assert [step.ask.headers.get("prefer") for step in tries[:3]] == ["wait=20", "wait=10", None]
    assert (caught.value.task_id, caught.value.status) == ("remember-1", "running")


def test_a_daemon_that_does_not_hold_is_asked_at_growing_intervals(core, clock):
    tries, _ = carry_out(core.wait("remember-1", None), clock, *[reply(task("running"))] * 8, reply(DONE))
    assert [round(step.pause, 2) for step in tries] == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1]


def test_a_daemon_that_holds_is_asked_again_soon(core, clock):
    running = [after(clock, 20, reply(task("running")))] * 4
    tries, _ = carry_out(core.wait("remember-1", None), clock, *running, reply(DONE))
    assert [step.pause for step in tries] == [0, *[FIRST_PAUSE] * 4]


def test_a_wait_of_no_time_looks_once(core, clock):
    (step,), result = carry_out(core.wait("remember-1", 0), clock, reply(DONE))
    assert result.summary
    assert "prefer" not in step.ask.headers
    with pytest.raises(WaitTimeout):
        carry_out(core.wait("remember-1", 0), clock, reply(task()))


def test_a_wait_outlives_a_daemon_that_is_away_for_as_long_as_it_was_told(core, clock):
    away = [GONE] * 40
    tries, _ = carry_out(
        core.wait("remember-1", 300), clock, reply(task("running")), BROKEN, *away, reply(DONE)
    )
    assert all(step.afresh for step in tries[2:])
    assert sum(step.pause for step in tries) > 60


def test_a_wait_without_limit_ends_when_the_daemon_is_silent_for_the_time_of_a_call(clock):
    core = made(clock, timeout=5)
    begun = clock()
    with pytest.raises(Unreachable):
        carry_out(core.wait("remember-1", None), clock, reply(task("running")), *[GONE] * 1000)
    assert clock() - begun < 5 + 20 + 1


def test_a_wait_whose_time_ends_while_the_daemon_is_away_says_so(core, clock):
    with pytest.raises(WaitTimeout) as caught:
        carry_out(core.wait("remember-1", 10), clock, *[GONE] * 1000)
    assert (caught.value.status, type(caught.value.__cause__)) == (None, Unreachable)


def test_a_wait_whose_time_ends_while_the_daemon_is_busy_says_so(core, clock):
    full = reply({"code": "remember_queue_full", "error": "Full."}, 429)
    with pytest.raises(WaitTimeout) as caught:
        carry_out(core.wait("remember-1", 10), clock, *[full] * 1000)
    assert isinstance(caught.value.__cause__, QueueFull)


def test_a_wait_that_is_told_to_come_back_after_its_time_looks_once_more_at_its_end(core, clock):
    busy = reply({"code": "busy", "error": "Busy."}, 503, **{"retry-after": "31"})
    tries, result = carry_out(core.wait("remember-1", 30), clock, busy, reply(DONE))
    assert [(step.pause, step.ask.headers.get("prefer")) for step in tries] == [(0, "wait=20"), (30, None)]
    assert result.summary
    begun = clock()
    with pytest.raises(WaitTimeout):
        carry_out(core.wait("remember-1", 30), clock, reply(task("running")), busy, busy)
    assert clock() - begun == pytest.approx(30)


@pytest.mark.parametrize("timeout", [None, 10])
def test_a_wait_for_a_task_that_is_not_there_ends_at_once(core, clock, timeout):
    problem = reply({"code": "remember_task_not_found", "error": "Not found."}, 404)
    with pytest.raises(TaskNotFound):
        carry_out(core.wait("remember-1", timeout), clock, problem)


def test_a_wait_for_a_task_that_was_cancelled_raises_that(core, clock):
    with pytest.raises(Cancelled):
        carry_out(core.wait("remember-1", None), clock, reply(task("cancelled")))


# -- recalls -------------------------------------------------------------------------------------------


def test_a_recall_is_sent_with_what_was_given_and_nothing_else(core, clock):
    (step,), found = carry_out(core.recall("Which editor?"), clock, reply(RECALLED))
    assert (step.ask.method, step.ask.path) == ("POST", "/workspace/memory/recall")
    assert json.loads(step.ask.body) == {"query": "Which editor?"}
    assert "idempotency-key" not in step.ask.headers
    assert found.text == "## Relevant Memory"
    seen = (each.id for each in found.entries)
    (step,), _ = carry_out(core.recall("é", exclude=seen, limit=3), clock, reply(RECALLED))
    assert json.loads(step.ask.body) == {"query": "é", "exclude": [found.entries[0].id], "limit": 3}


def test_a_recall_is_repeated_since_that_changes_nothing(core, clock):
    busy = reply({"code": "busy", "error": "Busy."}, 503, **{"retry-after": "1"})
    tries, _ = carry_out(core.recall("x"), clock, BROKEN, GONE, busy, reply(RECALLED))
    assert len({step.ask.body for step in tries}) == 1
    assert tries[-1].pause == 1


def test_a_recall_that_fails_is_a_value(core, clock):
    failed = {"entries": [], "text": "", "tokens": 0, "abstained": False, "error": "deadline"}
    _, found = carry_out(core.recall("x"), clock, reply(failed))
    assert found == Recalled((), "", 0, abstained=False, error="deadline")


# -- lists and the owner's -----------------------------------------------------------------------------


def test_a_list_is_read_to_its_last_page(core, clock):
    pages = [
        reply({"tasks": [task(number=2)], "nextCursor": "2"}),
        reply({"tasks": [task(kind="dream")], "nextCursor": None}),
    ]
    tries, found = carry_out(core.tasks("queued"), clock, *pages)
    assert [step.ask.path for step in tries] == [
        "/workspace/memory/tasks?status=queued",
        "/workspace/memory/tasks?status=queued&cursor=2",
    ]
    assert [each.task_id for each in found] == ["remember-2", "dream-1"]
    assert all(isinstance(each, Task) for each in found)


@pytest.mark.parametrize("page", [{}, {"tasks": {}}, {"tasks": [1]}, {"tasks": [], "nextCursor": 7}])
def test_a_page_that_is_none_is_refused(core, clock, page):
    with pytest.raises(BadAnswer):
        carry_out(core.tasks(None), clock, reply(page))


def test_tasks_that_are_newer_than_this_client_are_left_out_of_a_list(core, clock):
    newer = [task(kind="tidy"), task("sleeping"), task(number=2)]
    _, found = carry_out(core.tasks(None), clock, reply({"tasks": newer, "nextCursor": None}))
    assert [each.task_id for each in found] == ["remember-2"]


def test_a_list_without_end_is_refused(core, clock):
    with pytest.raises(BadAnswer, match="100 pages"):
        carry_out(core.tasks(None), clock, *[reply({"tasks": [], "nextCursor": "1"})] * 100)


def test_what_the_owner_does_is_given_time_and_not_repeated_where_it_may_have_arrived(core, clock):
    (step,), undone = carry_out(
        owner.undo(core, "remember-1"),
        clock,
        reply(
            {"taskId": "undo-1", "undone": "remember-1", "filesTouched": [], "touchedScopes": [], "notes": []}
        ),
    )
    assert (step.ask.path, json.loads(step.ask.body)) == ("/workspace/memory/undo", {"taskId": "remember-1"})
    assert step.seconds == 70
    assert undone.task_id == "undo-1"
    with pytest.raises(Unreachable):
        carry_out(owner.reject(core, "r/1"), clock, BROKEN)


@pytest.mark.parametrize(
    ("make", "method", "path"),
    [
        (owner.reviews, "GET", "review"),
        (lambda core: owner.review(core, "r 1"), "GET", "review/r%201"),
        (lambda core: owner.approve(core, "r1", "d"), "POST", "review/r1/approve"),
        (lambda core: owner.reject(core, "r1"), "POST", "review/r1/reject"),
        (lambda core: owner.erase(core, "user/a.md", yes=True), "POST", "erase"),
        (owner.audit_head, "GET", "audit/head"),
        (
            lambda core: owner.explain(core, "read", "user/a&b.md"),
            "GET",
            "policy/explain?verb=read&path=user%2Fa%26b.md",
        ),
    ],
)
def test_what_is_the_owners_is_asked_at_its_path(core, make, method, path):
    ask = next(make(core)).ask
    assert (ask.method, ask.path) == (method, f"/workspace/memory/{path}")
