"""Every code with which a task can fail, each produced by a daemon that runs.

A case is a function that has a task fail and returns it as its originator is told.
"""

from __future__ import annotations

import pytest

from kit.daemon.minds import meddling, says, writes
from kit.daemon.process import BASE, HeldModel, serving
from kit.daemon.world import directory, locked
from muniment.daemon.contract import TASK, sentence_of

CASES = {}


def task(code):
    return lambda case: CASES.setdefault(code, []).append(case)


@task("remember_path_escape")
def _(world):
    return world.written("project/../../../escape.md", "This project escapes")


@task("remember_no_update")
def _(world):
    world.model.mind = says("I would rather not.")
    return world.picky.wait(world.picky.remember("This project does nothing"))


@task("remember_scope_mismatch")
def _(world):
    return world.written("user/elsewhere.md", "This project is elsewhere", scope="project")


@task("remember_refused")
def _(world):
    return world.written("project/pinned/mine.md", "This project is pinned", scope="project")


@task("remember_timeout")
def _(world):
    world.model.hold()
    try:
        return world.picky.wait(world.picky.remember("This project is late"))
    finally:
        world.model.release()


@task("forget_timeout")
def _(world):
    assert world.written("project/seed.md", "This project forgets its seeds")["status"] == "completed"
    world.model.hold()
    try:
        return world.picky.wait(world.picky.submit("forget", {"query": "project forgets seeds"}))
    finally:
        world.model.release()


@task("dream_timeout")
def _(world):
    for number in (1, 2):
        twin = world.written(f"project/twin-{number}.md", "This project has a twin")
        assert twin["status"] == "completed"
    with locked(world.picky.root("project")):
        return world.picky.wait(world.picky.submit("dream", {}))


@task("invalid_query")
def _(world):
    return world.picky.wait(world.picky.submit("forget", {"query": "the and of"}))


@task("interrupted")
def _(_world):
    with directory() as base, HeldModel() as model, serving(base, *model.flags) as served:
        model.hold()
        task_id = served.remember("The user is interrupted")
        for attempt in range(1, 4):
            model.wait_until_asked(attempt)
            served.kill()
            served.start()
        return served.wait(task_id)


@task("cancelled")
def _(world):
    world.model.hold()
    try:
        task_id = world.picky.remember("This project is cancelled")
        return world.picky.cancel(task_id).json()
    finally:
        world.model.release()


@task("store_conflict")
def _(world):
    path = world.picky.root("project") / "race.md"
    path.write_text("before\n", encoding="utf-8")
    mind = writes("project/race.md", "This project races", [("read_file", {"path": "project/race.md"})])
    world.model.mind = meddling(mind, lambda: path.write_text("meanwhile\n", encoding="utf-8"))
    return world.picky.wait(world.picky.remember("This project races", scope="project"))


@task("pending_review")
def _(world):
    return world.written("user/waits.md", "The user waits")


@task("remember_failed")
def _(world):
    world.model.mind = says("")
    return world.picky.wait(world.picky.remember("This project fails"))


@task("erased")
def _(world):
    done = world.written("project/gone.md", "This project is gone", scope="project")
    world.picky.post(f"{BASE}/erase", {"target": done["taskId"], "yes": True})
    return world.picky.look(done["taskId"])


@task("managed_memory_unavailable")
def _(_world):
    with directory() as base, HeldModel() as model, serving(base, *model.flags) as served:
        model.hold()
        ahead, task_id = served.remember("The user moves"), served.remember("The user has moved")
        model.wait_until_asked()
        served.root().rename(base / "elsewhere")
        try:
            served.cancel(ahead)
            return served.wait(task_id)
        finally:
            model.release()


def test_every_code_of_a_task_is_produced():
    assert set(TASK) <= set(CASES)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("code", "case"), [(code, case) for code in CASES for case in CASES[code]])
def test_a_task_that_fails(world, code, case):
    failed = case(world)
    assert failed["status"] == ("cancelled" if code == "cancelled" else "failed")
    assert failed["result"] is None
    if code != "cancelled":
        assert failed["error"]["code"] == code
        assert failed["error"]["message"] == sentence_of(code)
