"""A task's id under attack: nobody is told that something is saved which is not."""

from __future__ import annotations

import pytest

from kit.jobs.places import made
from kit.memories import strict
from muniment.agent.filing import RuleWriter
from muniment.confine.binding import bind_all
from muniment.errors import InvalidContent
from muniment.jobs.forget import forget
from muniment.jobs.place import Place
from muniment.jobs.remember import remember
from muniment.jobs.request import ForgetRequest, RememberRequest
from muniment.names import Scope, Trust
from muniment.store.review import pending
from muniment.store.state import State
from muniment.testing.minds import ScriptedModel, call, calls, say


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


@pytest.mark.threat("T-HUM-03", control="waits_once")
def test_one_request_under_one_id_waits_once_and_asks_its_model_once(tmp_path):
    def ask(fact, name):
        writes = calls(call("write_file", path=f"user/{name}.md", content=f"{fact}\n"))
        model = ScriptedModel([writes, say("Saved.")])
        request = RememberRequest(fact, trust=Trust.EXTERNAL, task_id="task-1")
        return remember(request, place, model).error, len(model.requests)

    with made(tmp_path) as place:
        first, asked_for = ask("The user drinks tea", "one")
        again = [ask("The user drinks tea", name) for name in ("two", "three")]
        other, _ = ask("The user drinks coffee", "four")
        (waiting,) = pending(place.state)
    assert asked_for == 2
    assert [(error.review_id, asked) for error, asked in again] == [(first.review_id, 0)] * 2
    assert waiting.change_set.unsafe_paths == ("user/one.md",)
    assert isinstance(other, InvalidContent)
