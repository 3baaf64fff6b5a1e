"""Erasure reaches the tasks of lanes: what was asked, what was answered, and what still waits."""

from __future__ import annotations

import json
import os

import pytest

from kit.store.ground import STRICT, laid_out, new, origin, patience
from muniment import lane as reading
from muniment.errors import DeadlineExceeded
from muniment.lane import Ended, Lane, NewTask, Originator
from muniment.store import erase as module
from muniment.store import tasks
from muniment.store.audit import records, verify
from muniment.store.erase import EraseGround, erase, is_forgotten, left_over, plan

OWNER = Originator("owner")
SHOWN = {"contextMode": "workspace", "scope": "user"}
ERASED = {"code": "erased"}


def secret(size=60):
    """Random text that no other text holds a piece of."""
    return os.urandom(size).hex()


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


@pytest.fixture
def where(ground):
    return EraseGround(ground.state, ground.roots, STRICT, patience())


@pytest.fixture
def lane(ground):
    return Lane(ground.state, "w")


def queued(lane, content, *, kind="remember", shown=SHOWN):
    return lane.submit(NewTask(kind, {"content": content}, OWNER, shown)).task


def begun(lane, content):
    queued(lane, content)
    return lane.claim()


def completed(lane, summary, *paths, content="x"):
    task = begun(lane, content)
    result = {"summary": summary, "filesTouched": list(paths), "removedEntries": [{"summary": summary}]}
    return lane.finish(task, Ended("completed", result))


def completed_with(lane, result):
    return lane.finish(begun(lane, "x"), Ended("completed", result))


def left_in(directory, text):
    """Pieces of 16 characters of `text` in the files of a directory, by trying all of them."""
    pieces = {text[at : at + 16].encode() for at in range(len(text) - 15)}
    return {path.name for path in directory.iterdir() for piece in pieces if piece in path.read_bytes()}


def told(ground, task):
    """The last event about a task."""
    return [event for event in tasks.read(ground.state.ledger, 0, 1_000) if event.task == task.id][-1]


def shape(task):
    return (task.status, task.arguments, task.result, task.error)


def test_a_task_that_wrote_it_says_nothing_of_it_any_more(ground, where, lane):
    text = secret()
    task = begun(lane, text)
    ground.commit(new("user/x.md", text.encode()), origin=origin(task.id))
    lane.finish(task, Ended("completed", {"summary": "saved", "filesTouched": ["user/x.md"]}))
    assert plan("user/x.md", where).lane_tasks == 1
    receipt = erase("user/x.md", where)
    assert (receipt.tasks, receipt.lane_tasks) == ((task.id,), 1)
    after = lane.get(task.id)
    assert shape(after) == ("failed", None, None, ERASED)
    assert (after.kind, after.shown, after.seq) == ("remember", SHOWN, task.seq)
    assert left_in(ground.state.directory, text) == set()
    assert verify(ground.state).problems == ()


def test_what_waits_and_holds_it_fails_and_is_told_and_all_else_still_waits(ground, where, lane):
    text = secret()
    ground.commit(new("user/x.md", text.encode()))
    first = queued(lane, "The user drinks tea")
    holding = queued(lane, f"The user's key is {text[8:40]}", kind="forget")
    last = queued(lane, "The user drinks coffee", kind="forget")
    erase("user/x.md", where)
    after = lane.get(holding.id)
    assert shape(after) == ("failed", None, None, ERASED)
    assert after.updated > holding.updated
    event = told(ground, holding)
    assert (event.type, event.workspace, event.token, event.client) == ("task", "w", "owner", None)
    assert event.data == {"kind": "forget", "status": "failed", "attempt": 0, "code": "erased"}
    assert [lane.claim().id, reading.count_pending(ground.state.ledger, lane.workspace)] == [
        first.id,
        {"remember": 1, "forget": 1},
    ]
    assert lane.get(last.id) == last
    assert left_in(ground.state.directory, text) == set()


def test_what_is_over_is_cleared_without_an_event(ground, where, lane):
    text = secret()
    ground.commit(new("user/x.md", text.encode()))
    task = completed(lane, text)
    erase("user/x.md", where)
    assert told(ground, task).data["status"] == "completed"


def test_a_task_that_was_cancelled_stays_so(ground, where, lane):
    """It says nothing of what it was asked by then."""
    task = queued(lane, "about user/x.md")
    lane.cancel(task.id, OWNER)
    before = lane.get(task.id)
    ground.commit(new("user/x.md", secret().encode()), origin=origin(task.id))
    assert erase("user/x.md", where).lane_tasks == 0
    assert lane.get(task.id) == before
    assert shape(before) == ("cancelled", None, None, None)


WORDS = ["user", "workspace", "remember", "content", "summary", "saved", "rules", "reference", "user/k.md"]


@pytest.mark.parametrize("word", WORDS)
def test_an_entry_of_a_word_that_every_task_uses_takes_no_other_task_with_it(ground, where, lane, word):
    """Names of fields, fixed words, scopes and paths are no text of the entry."""
    ground.commit(new("user/x.md", word.encode()))
    arguments = {"content": "The user drinks tea", "scope": "user", "context": "workspace"}
    result = {
        "summary": "saved it",
        "filesTouched": ["user/k.md"],
        "removedEntries": [{"topic": "reference", "summary": "tea", "filePath": "user/k.md"}],
        "touchedTopics": ["reference"],
        "touchedScopes": ["user"],
        "decidedBy": "rules",
    }
    done = completed_with(lane, result)
    waiting = lane.submit(NewTask("remember", arguments, OWNER, SHOWN)).task
    erase("user/x.md", where)
    assert [lane.get(waiting.id), lane.get(done.id)] == [waiting, done]


def test_the_text_is_found_in_any_field_that_is_not_known_to_be_a_fixed_word(ground, where, lane):
    text = secret()
    ground.commit(new("user/x.md", text.encode()))
    task = completed_with(lane, {"summary": "saved", "later": [{"invented": text}]})
    erase("user/x.md", where)
    assert shape(lane.get(task.id)) == ("failed", None, None, ERASED)


def test_an_entry_without_text_takes_no_task_and_forbids_nothing(ground, where, lane):
    ground.commit(new("user/x.md", b"---\nname: Nothing yet\n---\n"))
    task = completed(lane, "", "user/k.md")
    erase("user/x.md", where)
    assert lane.get(task.id) == task
    assert not is_forgotten(ground.state, "")
    assert ground.state.ledger.rows("SELECT fact FROM forgotten") == []


OTHER_NAMES = ["superuser/x.md", "user/x.mdx", "user/x.md/y.md", "project/user/x.md", "user/x.md-2.md"]


@pytest.mark.parametrize("other", OTHER_NAMES)
def test_a_path_that_only_contains_the_name_is_another_one(ground, where, lane, other):
    ground.commit(new("user/x.md", secret().encode()))
    said, listed = completed(lane, f"saved {other}, as asked"), completed(lane, "saved", other)
    failed = begun(lane, "x")
    failed = lane.finish(failed, Ended("failed", error={"code": "store_conflict", "paths": [other]}))
    erase("user/x.md", where)
    assert [lane.get(each.id) for each in (said, listed, failed)] == [said, listed, failed]


def test_a_short_fact_that_waits_goes_by_its_digest(ground, where, lane):
    """It is shorter than any piece that is looked for."""
    ground.commit(new("user/x.md", b"# X\nlikes tea\n"), origin=origin(fact=ground.state.keyed("likes tea")))
    same, other = queued(lane, " likes tea\n"), queued(lane, "likes teas")
    erase("user/x.md", where)
    assert shape(lane.get(same.id)) == ("failed", None, None, ERASED)
    assert lane.get(other.id) == other


def test_text_that_json_escapes_is_found_too(ground, where, lane):
    text = 'Él toma\nté "verde"\tsin azúcar, 日本のお茶が好きです\n'
    ground.commit(new("user/x.md", text.encode()))
    task = completed(lane, f"saved: {text}")
    (ground.user / "x.md").unlink()
    assert "ledger.db" in left_over(text.encode(), where)
    erase("user/x.md", where)
    assert shape(lane.get(task.id)) == ("failed", None, None, ERASED)
    assert left_over(text.encode(), where) == {}


def test_the_check_reads_tasks_as_what_they_say(where, lane):
    """Every letter is an escape here, of which the bytes of the file hold no piece."""
    text = "日本のお茶が好きです、毎朝飲みます"
    task = queued(lane, text)
    assert set(left_over(text.encode(), where)) == {"ledger.db"}
    erase(task.id, where)
    assert left_over(text.encode(), where) == {}


@pytest.mark.parametrize("when", ["before", "while it is removed"])
def test_a_task_that_runs_and_holds_it_must_end_first(ground, where, lane, monkeypatch, when):
    text = secret()
    ground.commit(new("user/x.md", text.encode()), origin=origin("task-1"))
    running = begun(lane, text) if when == "before" else queued(lane, text)
    real = module._remove

    def remove(*arguments, **more):
        lane.claim()
        return real(*arguments, **more)

    monkeypatch.setattr(module, "_remove", remove)
    before = ground.contents(), records(ground.state)
    assert plan("user/x.md", where).lane_tasks == 1
    with pytest.raises(DeadlineExceeded, match=f"{running.id} runs and holds it"):
        erase("user/x.md", where)
    if when == "before":
        assert (ground.contents(), records(ground.state)) == before
    assert lane.get(running.id).arguments == {"content": text}
    lane.finish(lane.get(running.id), Ended("failed", error={"code": "remember_failed"}))
    erase("user/x.md", where)
    assert left_in(ground.state.directory, text) == set()


def test_a_task_that_never_committed_is_erased_by_its_id(ground, where, lane):
    text = secret()
    task = queued(lane, text)
    assert plan(task.id, where).lane_tasks == 1
    assert left_in(ground.state.directory, text)
    erase(task.id, where)
    assert shape(lane.get(task.id)) == ("failed", None, None, ERASED)
    assert left_in(ground.state.directory, text) == set()
    assert erase(task.id, where).lane_tasks == 0  # Nothing of it is left to be cleared.
    assert records(ground.state, task=task.id)[0].body is None


def test_tasks_of_other_workspaces_are_reached_as_well(ground, where):
    text = secret()
    ground.commit(new("user/x.md", text.encode()))
    elsewhere = Lane(ground.state, "elsewhere")
    task = completed(elsewhere, text)
    erase("user/x.md", where)
    assert shape(elsewhere.get(task.id)) == ("failed", None, None, ERASED)


def test_the_documents_count_the_tasks(ground, where, lane):
    text = secret()
    ground.commit(new("user/x.md", text.encode()))
    completed(lane, text)
    assert plan("user/x.md", where).as_json()["lane_tasks"] == 1
    document = erase("user/x.md", where).as_json()
    assert document["lane_tasks"] == 1
    assert text[:16] not in json.dumps(document)
