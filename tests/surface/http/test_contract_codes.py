"""Every code of `daemon.problems`, each produced over a socket; none is left out without a reason.

A case is a function that brings about one answer and returns it.
"""

from __future__ import annotations

import contextlib
import http.client
import socket

import httpx2
import pytest

from kit.daemon import lacking
from kit.daemon.embedded import embedded
from kit.daemon.minds import writes
from kit.daemon.process import BASE, HeldModel, policy_file, serving
from kit.daemon.world import FACT, REVIEWED, directory, shown
from muniment.daemon.contract import HTTP, task_error
from muniment.errors import (
    StoreConflict,
    WorkerLost,
)

CASES = {}

NOT_OVER_A_SOCKET = {
    "pending_review": "what only an undo could be told, and those are the owner's, whom no review stops",
}
"""Codes of answers that nothing brings about today, and why they are there."""


def answer(code):
    return lambda case: CASES.setdefault(code, []).append(case)


@pytest.fixture
def alone(tmp_path):
    with embedded(tmp_path) as served:
        yield served


def test_every_code_of_an_answer_is_produced_or_named_with_a_reason():
    in_process = {case.__name__.removeprefix("answers_") for case in IN_PROCESS}
    assert set(CASES) | in_process | set(NOT_OVER_A_SOCKET) == set(HTTP)
    assert not (set(CASES) | in_process) & set(NOT_OVER_A_SOCKET)


def test_a_task_that_fails_for_a_reason_of_the_inside_has_failed():
    assert task_error(WorkerLost("killed by 9"), "dream") == {"code": "dream_failed"}
    assert task_error(StoreConflict(("user/a.md",)), "dream") == {
        "code": "store_conflict",
        "paths": ["user/a.md"],
    }


def assert_problem(sent, code):
    document = sent.json()
    status, sentence = HTTP[code]
    assert (sent.status_code, document["code"]) == (status, code), document
    assert sent.headers["content-type"] == "application/problem+json"
    assert document["error"] == document["title"] == sentence
    assert (document["type"], document["status"]) == ("about:blank", status)
    assert sent.headers["cache-control"] == "no-store"
    assert sent.headers["x-content-type-options"] == "nosniff"


# -- what is wrong with a request ----------------------------------------------------------------------


@answer("invalid_request")
def _(world):
    return world.daemon.post(f"{BASE}/forget", {"query": "tea", "dryrun": True})


@answer("invalid_request")
def _(world):
    return world.daemon.get(f"{BASE}/tasks?status=done")


@answer("invalid_json")
def _(world):
    return world.daemon.post(f"{BASE}/remember", b'{"content": "a", "content": "b"}')


@answer("invalid_content")
def _(world):
    return world.daemon.post(f"{BASE}/remember", {"content": " \n "})


@answer("invalid_context_mode")
def _(world):
    return world.daemon.post(f"{BASE}/remember", {**FACT, "contextMode": "dirty"})


@answer("invalid_scope")
def _(world):
    return world.daemon.post(f"{BASE}/remember", {**FACT, "scope": "galaxy"})


@answer("invalid_query")
def _(world):
    return world.daemon.post(f"{BASE}/forget", {"query": 7})


@answer("invalid_client_id")
def _(world):
    return world.daemon.post(f"{BASE}/dream", {}, token=world.client, client="somebody")


@answer("invalid_http")
def _(world):
    host, _, port = world.daemon.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"what is this?\r\n\r\n")
        sent = http.client.HTTPResponse(raw)
        sent.begin()
        return httpx2.Response(sent.status, headers=sent.getheaders(), content=sent.read())


@answer("token_required")
def _(world):
    return world.daemon.http.get("/healthz")


@answer("untrusted_workspace")
def _(world):
    return world.daemon.get("/workspaces/somewhere/memory/tasks")


@answer("owner_required")
def _(world):
    return world.daemon.get(f"{BASE}/review", token=world.client)


@answer("foreign_origin")
def _(world):
    return world.daemon.get("/healthz", origin="null")


@answer("misdirected_request")
def _(world):
    return world.daemon.get("/healthz", host="evil.example")


@answer("not_found")
def _(world):
    return world.daemon.get("/workspace/memories")


@answer("method_not_allowed")
def _(world):
    sent = world.daemon.ask("PUT", f"{BASE}/remember")
    assert sent.headers["allow"] == "POST"
    return sent


@answer("body_too_large")
def _(world):
    return world.daemon.post(f"{BASE}/remember", {"content": "x" * 600_000})


@answer("unsupported_media_type")
def _(world):
    return world.daemon.post(f"{BASE}/remember", FACT, content_type="text/plain")


@answer("idempotency_mismatch")
def _(world):
    world.daemon.post(f"{BASE}/dream", {}, idempotency_key="codes")
    return world.daemon.post(f"{BASE}/forget", {"query": "codes"}, idempotency_key="codes")


# -- what is not there, or no more ---------------------------------------------------------------------


@answer("remember_task_not_found")
def _(world):
    return world.daemon.get(f"{BASE}/remember/remember-1")


@answer("forget_task_not_found")
def _(world):
    return world.daemon.ask("DELETE", f"{BASE}/forget/forget-1")


@answer("dream_task_not_found")
def _(world):
    return world.daemon.get(f"{BASE}/dream/dream-1")


@answer("bad_name")
def _(world):
    return world.daemon.post(f"{BASE}/erase", {"target": "user/a b?.md"})


@answer("task_not_found")
def _(world):
    return world.daemon.post(f"{BASE}/undo", {"taskId": "remember-1"})


@answer("nothing_to_erase")
def _(world):
    return world.daemon.post(f"{BASE}/erase", {"target": "user/nothing.md", "yes": True})


@answer("review_not_found")
def _(world):
    return world.daemon.post(f"{BASE}/review/r1/reject", {})


# -- what the memory does not allow --------------------------------------------------------------------


@answer("review_changed")
def _(world):
    review_id, digest = world.review("user/changed.md", "The user changes")
    return world.approve(review_id, digest[::-1])


@answer("review_closed")
def _(world):
    review_id, digest = world.review("user/closed.md", "The user closes")
    assert world.picky.post(f"{BASE}/review/{review_id}/reject", {}).json()["status"] == "rejected"
    return world.approve(review_id, digest)


@answer("store_conflict")
def _(world):
    review_id, digest = world.review("user/conflict.md", "The user disagrees")
    (world.picky.root() / "conflict.md").write_text("by hand\n", encoding="utf-8")
    sent = world.approve(review_id, digest)
    assert sent.json()["paths"] == ["user/conflict.md"]
    return sent


@answer("undo_overlap")
def _(world):
    done = world.written("project/overlap.md", "This project overlaps", scope="project")
    (world.picky.root("project") / "overlap.md").write_text("by hand\n", encoding="utf-8")
    sent = world.picky.post(f"{BASE}/undo", {"taskId": done["taskId"]})
    assert sent.json()["paths"] == ["project/overlap.md"]
    return sent


@answer("already_undone")
def _(world):
    done = world.written("project/undone.md", "This project is undone", scope="project")
    world.picky.post(f"{BASE}/undo", {"taskId": done["taskId"]})
    return world.picky.post(f"{BASE}/undo", {"taskId": done["taskId"]})


@answer("erased")
def _(world):
    done = world.written("project/erased.md", "This project is erased", scope="project")
    erased = world.picky.post(f"{BASE}/erase", {"target": done["taskId"], "yes": True})
    assert erased.json()["status"] == "erased"
    return world.picky.post(f"{BASE}/undo", {"taskId": done["taskId"]})


@answer("path_escape")
def _(world):
    return world.daemon.post(f"{BASE}/erase", {"target": "user/../../etc/passwd"})


@answer("refused")
def _(world):
    return world.daemon.post(f"{BASE}/erase", {"target": "user/MEMORY.md"})


@answer("quota")
def _(world):
    review_id, digest = world.review("user/quota.md", "The user hoards")
    hoard = [world.picky.root() / f"hoard-{number}.md" for number in range(12)]
    for path in hoard:
        path.write_text("full\n", encoding="utf-8")
    try:
        return world.approve(review_id, digest)
    finally:
        for path in hoard:
            path.unlink()


@answer("content_rejected")
def _(_world):
    with contextlib.ExitStack() as stack:
        tmp_path = stack.enter_context(directory())
        model = stack.enter_context(HeldModel(writes("user/loud.md", "The user\u200b is invisible")))
        policy = policy_file(tmp_path, user=REVIEWED, reject="[]")
        lax = stack.enter_context(serving(tmp_path, "--policy", str(policy), *model.flags))
        waiting = lax.wait(lax.remember("The user\u200b is invisible"))["reviewId"]
        assert lax.stop() == 0
        policy_file(tmp_path, user=REVIEWED)
        lax.start()
        digest = lax.get(f"{BASE}/review/{waiting}").json()["digest"]
        return lax.post(f"{BASE}/review/{waiting}/approve", {"digest": digest})


# -- what the daemon cannot do now ---------------------------------------------------------------------


@contextlib.contextmanager
def _broken():
    """A daemon whose policy cannot be loaded."""
    with directory() as base:
        (base / "policy.toml").write_text("schema = 1\n", encoding="utf-8")
        with serving(base, "--policy", str(base / "policy.toml")) as served:
            yield served


@answer("managed_memory_unavailable")
def _(_world):
    with _broken() as broken:
        return broken.post(f"{BASE}/remember", FACT)


@answer("not_ready")
def _(_world):
    with _broken() as broken:
        assert broken.get("/healthz").json() == {"status": "ok"}
        sent = broken.get("/readyz")
        assert sent.json()["workspaces"] == {broken.key: "policy_invalid"}
        return sent


@answer("remember_queue_full")
def _(world):
    world.model.hold()
    accepted = []
    try:
        while (sent := world.picky.post(f"{BASE}/remember", FACT)).status_code == 202:
            accepted.append(sent.json()["taskId"])
        assert len(accepted) >= 16
        assert sent.headers["retry-after"].isdecimal()
        return sent
    finally:
        for task_id in reversed(accepted):
            world.picky.cancel(task_id)
        world.model.release()


@answer("workspace_draining")
def _(_world):
    with directory() as base, HeldModel() as model, serving(base, *model.flags) as served:
        model.hold()
        served.remember("The user is leaving")
        model.wait_until_asked()
        served.terminate()
        while (sent := served.get("/readyz")).status_code == 200:
            pass
        assert sent.json()["reason"] == "draining"
        try:
            return served.post(f"{BASE}/remember", FACT)
        finally:
            model.release()


IN_PROCESS = [case for name, case in vars(lacking).items() if name.startswith("answers_")]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", IN_PROCESS)
def test_an_answer_of_a_daemon_that_lacks_something(alone, monkeypatch, case):
    assert_problem(case(alone, monkeypatch), case.__name__.removeprefix("answers_"))


@pytest.mark.parametrize(
    ("code", "case"),
    [(code, case) for code in CASES for case in CASES[code]],
    ids=shown,
)
def test_an_answer(world, code, case):
    assert_problem(case(world), code)
