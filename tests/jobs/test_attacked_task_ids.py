"""A task's id under attack: nobody is told that something is saved which is not."""

from __future__ import annotations

from jobs.places import made
from memories import strict
from muniment.agent.rules import RuleWriter
from muniment.confine.binding import bind_all
from muniment.job_errors import InvalidContent
from muniment.jobs.forget import forget
from muniment.jobs.forget_request import ForgetRequest
from muniment.jobs.remember import remember
from muniment.jobs.request import Place, RememberRequest
from muniment.names import Scope
from muniment.store.state import State


def asked(place, fact, task, scope="user"):
    return remember(RememberRequest(fact, scope=scope, task_id=task), place, RuleWriter())


def test_the_id_of_a_forget_does_not_stand_for_a_fact_that_was_never_saved(tmp_path):
    with made(tmp_path) as place:
        asked(place, "The zebra is striped", "task-1")
        forgotten = forget(ForgetRequest("zebra", yes=True), place, RuleWriter())
        assert forgotten.status == "completed"
        result = asked(place, "The user drinks tea", forgotten.task_id)
    assert isinstance(result.error, InvalidContent)


def test_a_task_of_one_workspace_does_not_stand_for_the_same_id_in_another(tmp_path):
    """The home is shared: a nightly job under one name in two projects lost the fact of the second."""
    for name in ("user", "first", "second"):
        (tmp_path / name).mkdir(mode=0o700)
    results = []
    for project in ("first", "second"):
        roots = bind_all({Scope("user"): tmp_path / "user", Scope("project"): tmp_path / project})
        place = Place(strict(require="none"), roots, State(tmp_path / "state"), in_process=True)
        try:
            results.append(asked(place, f"The build of {project} uses make", "nightly", "project"))
        finally:
            place.close()
    assert results[0].status == "completed"
    assert isinstance(results[1].error, InvalidContent)
    assert list((tmp_path / "second").rglob("*.md")) == []
