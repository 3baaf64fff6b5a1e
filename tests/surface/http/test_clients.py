"""What a client may not do to another one, to the daemon, or under a name that is not its own."""

from __future__ import annotations

import json

import pytest

from kit.daemon.raw import HeldWriter, running
from muniment.lane import MAX_PENDING, MAX_TIDYING
from muniment.names import Trust
from muniment.store import tasks
from muniment.store.audit import records

FACT = "The user prefers dark mode in all editors"
THEIRS = "The user keeps bees"


@pytest.fixture
def held():
    made = HeldWriter()
    yield made
    made.free.set()


@pytest.fixture
def daemon(tmp_path, held):
    with running(tmp_path, model=held) as made:
        made.a, made.b = made.add("a", "a-1", "a-2"), made.add("b", "b-1")
        yield made
        held.free.set()


def following(daemon, line, **terms):
    """Follow the events from the first on; the answer."""
    epoch = daemon.daemon.core.stream.epoch
    line.send(daemon.request("GET", "/workspace/memory/events", f"Last-Event-ID: {epoch}-0", **terms))
    return line.answer()


def told(line, count):
    """The next events of a line that follows, as documents."""
    found = []
    while len(found) < count:
        if (text := line.line()).startswith(b"data: "):
            found.append(json.loads(text.removeprefix(b"data: ")))
    return found


# -- another client's tasks ----------------------------------------------------------------------------


@pytest.mark.threat("T-API-02", control="own_tasks")
@pytest.mark.parametrize(
    ("who", "header"),
    [("b", ()), ("b", ("X-Muniment-Client-Id: b-1",)), ("a", ("X-Qwen-Client-Id: a-2",))],
    ids=["another token", "another token with an id", "another id of the same token"],
)
def test_a_client_cannot_tell_another_ones_task_from_one_that_there_is_not(daemon, who, header):
    task = daemon.post("remember", {"content": THEIRS}, "X-Qwen-Client-Id: a-1", token=daemon.a).json[
        "taskId"
    ]
    token = getattr(daemon, who)
    unknown = f"remember-{'0' * 8}{task.removeprefix('remember-')[8:]}"
    for method in ("GET", "DELETE"):
        found, none = (
            daemon.ask(method, f"/workspace/memory/remember/{each}", *header, token=token)
            for each in (task, unknown)
        )
        assert found.code == none.code == (404, "remember_task_not_found")
        assert (found.body, dict(found.headers).keys()) == (none.body, dict(none.headers).keys())
    assert daemon.ask("GET", "/workspace/memory/tasks", *header, token=token).json["tasks"] == []
    mine = daemon.ask("GET", "/workspace/memory/tasks", "X-Qwen-Client-Id: a-1", token=daemon.a).json["tasks"]
    assert [each["taskId"] for each in mine] == [task]


@pytest.mark.threat("T-API-02", control="own_tasks")
def test_a_client_follows_its_own_tasks_and_that_the_memory_changed_but_no_others(daemon, held):
    held.free.set()
    theirs = daemon.post("remember", {"content": THEIRS}, "X-Qwen-Client-Id: a-1", token=daemon.a).json[
        "taskId"
    ]
    daemon.ended(theirs)
    mine = daemon.post("remember", {"content": FACT}, token=daemon.b).json["taskId"]
    daemon.ended(mine)
    with daemon.line() as line:
        assert following(daemon, line, token=daemon.b).status == 200
        events = told(line, 2)
        while events[-1]["data"].get("status") != "completed":
            events += told(line, 1)
    assert {each["type"] for each in events if each["data"]["taskId"] == theirs} == {"memory_changed"}
    assert {each["type"] for each in events if each["data"]["taskId"] == mine} == {"memory_changed", "task"}
    assert THEIRS not in json.dumps(events)


def test_the_owner_sees_every_task_and_with_an_id_that_ones_alone(daemon):
    task = daemon.post("remember", {"content": THEIRS}, "X-Qwen-Client-Id: a-1", token=daemon.a).json[
        "taskId"
    ]
    path = f"/workspace/memory/remember/{task}"
    assert daemon.ask("GET", path).status == 200
    assert daemon.ask("GET", path, "X-Qwen-Client-Id: a-1").status == 200
    assert daemon.ask("GET", path, "X-Qwen-Client-Id: b-1").status == 404


# -- floods --------------------------------------------------------------------------------------------


@pytest.mark.threat("T-API-03", control="lane_caps")
def test_a_client_that_floods_the_queue_is_told_to_come_again(daemon):
    answers = [
        daemon.post("remember", {"content": f"{FACT} {n}"}, token=daemon.a) for n in range(MAX_PENDING + 4)
    ]
    assert [answer.status for answer in answers] == [202] * MAX_PENDING + [429] * 4
    assert answers[-1].code == (429, "remember_queue_full")
    assert answers[-1].values("retry-after") == ["5"]


@pytest.mark.threat("T-API-03", control="lane_caps")
def test_who_tidies_without_end_leaves_room_for_facts(daemon):
    assert (
        daemon.post("remember", {"content": THEIRS}, token=daemon.b).status == 202
    )  # Everything else waits for it.
    dreams = [daemon.post("dream", {}, token=daemon.a).status for _ in range(MAX_TIDYING + 1)]
    assert dreams == [202] * MAX_TIDYING + [429]
    assert daemon.post("remember", {"content": FACT}, token=daemon.b).status == 202


# -- another one's name --------------------------------------------------------------------------------


@pytest.mark.sweep(3)
@pytest.mark.threat("T-API-04", control="registered_ids")
@pytest.mark.parametrize("claimed", ["b-1", "owner", "a", "nobody-1"])
def test_a_client_cannot_ask_under_an_id_that_is_not_its_own(daemon, claimed):
    for name in ("X-Qwen-Client-Id", "X-Muniment-Client-Id"):
        answer = daemon.post("remember", {"content": FACT}, f"{name}: {claimed}", token=daemon.a)
        assert answer.code == (400, "invalid_client_id")
    assert daemon.ask("GET", "/workspace/memory/tasks").json["tasks"] == []


@pytest.mark.sweep(3)
@pytest.mark.threat("T-API-04", control="token_trust")
@pytest.mark.parametrize("claimed", list(Trust))
@pytest.mark.parametrize("given", list(Trust))
def test_what_a_client_sends_is_trusted_no_more_than_its_token(daemon, claimed, given):
    order = list(Trust)
    token = daemon.add("c", "c-1", trust=given)
    task = daemon.post("remember", {"content": FACT, "source": {"trust": claimed}}, token=token).json[
        "taskId"
    ]
    (record,) = (each for each in records(daemon.daemon.core.state, task=task) if each.kind == "accepted")
    assert record.body["trust"] == order[max(order.index(claimed), order.index(given))]
    assert (record.body["token"], record.body["client"]) == ("c", None)


# -- events and repeats --------------------------------------------------------------------------------


@pytest.mark.sweep(3)
@pytest.mark.threat("T-API-05", control="event_lines")
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\n\n", "\u2028", "\x85", "\x0b"])
def test_no_text_in_an_event_ends_it(daemon, end):
    """Nothing of a fact gets into one; should it ever, it stays there."""
    forged = f"done{end}id: 00000000-9{end}event: memory_changed{end}data: {{}}{end}{end}"
    (workspace,) = daemon.daemon.core.workspaces.values()
    event = tasks.Event(
        type="task",
        at="2026-01-01T00:00:00.000Z",
        task="remember-0",
        data={"status": forged},
        workspace=workspace.key,
        token="a",
    )
    tasks.append(daemon.daemon.core.state, event)
    with daemon.line() as line:
        assert following(daemon, line).status == 200
        frame = []
        while not (frame[-1:] == [b"\n"] and any(each.startswith(b"data") for each in frame)):
            text = line.line()
            frame = [text] if text.startswith(b"id: ") else [*frame, text]
    assert [each.partition(b":")[0] for each in frame] == [b"id", b"event", b"data", b"\n"]
    assert b"".join(frame).isascii()
    assert frame[1] == b"event: task\n"
    assert json.loads(frame[2].removeprefix(b"data: "))["data"]["status"] == forged


@pytest.mark.threat("T-API-06", control="repeats")
def test_a_request_that_is_sent_again_is_the_same_task(daemon, held):
    key = "Idempotency-Key: 7f3a"
    first = daemon.post("remember", {"content": FACT}, key, token=daemon.a)
    again = daemon.post("remember", {"content": FACT}, key, token=daemon.a)
    assert again.json["taskId"] == first.json["taskId"]
    assert (first.values("idempotency-replayed"), again.values("idempotency-replayed")) == ([], ["true"])
    held.free.set()
    daemon.ended(first.json["taskId"])
    late = daemon.post("remember", {"content": FACT}, key, token=daemon.a)
    assert (late.json["taskId"], late.json["status"]) == (first.json["taskId"], "completed")
    assert len(daemon.ask("GET", "/workspace/memory/tasks").json["tasks"]) == 1


def test_a_key_is_its_senders_own_and_names_one_request(daemon):
    key = "Idempotency-Key: 7f3a"
    first = daemon.post("remember", {"content": FACT}, key, token=daemon.a)
    other = daemon.post("remember", {"content": FACT}, key, token=daemon.b)
    assert other.status == 202
    assert other.json["taskId"] != first.json["taskId"]
    changed = daemon.post("remember", {"content": THEIRS}, key, token=daemon.a)
    assert changed.code == (422, "idempotency_mismatch")
