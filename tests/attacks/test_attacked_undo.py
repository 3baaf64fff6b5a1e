"""Undo under attack: what is committed is not told as failed."""

from __future__ import annotations

from kit.jobs.places import made
from muniment.agent.filing import RuleWriter
from muniment.errors import DeadlineExceeded
from muniment.jobs import review as subject
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest


def test_an_undo_that_cannot_clear_up_behind_itself_is_still_done(tmp_path, monkeypatch):
    """It was told as failed, and a second one as undone already."""

    def held_up(*_arguments):
        raise DeadlineExceeded("somebody holds the lock")

    with made(tmp_path) as place:
        request = RememberRequest("The user prefers dark mode", scope="user", task_id="task-1")
        (path,) = remember(request, place, RuleWriter()).files_touched
        monkeypatch.setattr(subject, "remove_emptied", held_up)
        result = subject.undo("task-1", place)
    assert (result.status, result.error) == ("completed", None)
    assert "somebody holds the lock" in result.notes[-1]
    assert not (tmp_path / path).exists()
