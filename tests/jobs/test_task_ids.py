"""A task that names itself is carried out once, however often it is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

import muniment
from jobs.places import made
from muniment.agent.rules import RuleWriter
from muniment.job_errors import InvalidContent
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest
from muniment.store import commit as commits
from muniment.store.audit import records

FACT = "The user prefers dark mode in all editors"


def asked(place, fact=FACT, task="task-1"):
    return remember(RememberRequest(fact, scope="user", task_id=task), place, RuleWriter())


def test_a_task_asked_twice_is_done_once_and_says_the_same(tmp_path):
    with made(tmp_path) as place:
        first, again = asked(place), asked(place, "Another fact")
    assert not first.repeated
    assert again.repeated
    assert (again.task_id, again.status) == ("task-1", "completed")
    assert again.files_touched == first.files_touched
    assert again.changes == first.changes
    assert again.turns == 0
    assert again.as_json()["repeated"] is True
    assert len(list((tmp_path / "user").rglob("*.md"))) == 2


def test_a_task_that_failed_may_be_asked_again(tmp_path, monkeypatch):
    with made(tmp_path) as place:
        with monkeypatch.context() as patched:
            patched.setattr(commits, "begin", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                asked(place)
        assert asked(place).status == "completed"


@pytest.mark.parametrize("task", ["", "a b", "../x", "x" * 101, "é", "a\n"])
def test_a_task_id_that_is_none_is_refused(tmp_path, task):
    with made(tmp_path) as place:
        result = asked(place, task=task)
    assert isinstance(result.error, InvalidContent)


@pytest.mark.threat("T-LOG-02", control="kept_records")
def test_how_a_task_ended_that_wrote_nothing_is_on_record(tmp_path):
    with made(tmp_path) as place:
        result = remember(RememberRequest(FACT, scope="nowhere"), place, RuleWriter())
        (record,) = records(place.state, task=result.task_id)
    assert record.kind == "ended"
    assert record.body["code"] == "invalid_scope"


def test_an_interrupted_commit_is_taken_back_when_the_memory_is_opened_and_told(tmp_path):
    """A real process dies between its files and the end of its commit."""
    program = f"""
import os, muniment
from muniment.store import commit
commit.finish = lambda *_: os._exit(9)
with muniment.open(workspace={str(tmp_path)!r}, home={str(tmp_path / "home")!r}) as memory:
    memory.remember({FACT!r}, scope="user")
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    user = tmp_path / "home" / "user"
    assert [path.name for path in user.rglob("prefers*.md")] != []
    with muniment.open(workspace=tmp_path, home=tmp_path / "home") as memory:
        (note,) = memory.place.notes
        assert "which was interrupted" in note
        assert [path.name for path in user.rglob("prefers*.md")] == []
        assert memory.remember(FACT, scope="user").files_touched
