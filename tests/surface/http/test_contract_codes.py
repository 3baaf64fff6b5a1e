"""Every code of the contract, brought about: of answers over a socket, of tasks by tasks that fail."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import httpx2
import pytest

from kit.daemon.minds import meddling, says, writes
from kit.daemon.process import BASE, HeldModel, policy_file
from kit.daemon.raw import running, start
from kit.daemon.world import locked
from muniment.daemon import http, routes
from muniment.daemon.contract import HTTP, TASK, sentence_of, task_error
from muniment.errors import StoreConflict, WorkerLost
from muniment.lane import MAX_ATTEMPTS, Lane, NewTask, Originator
from muniment.store.state import State

REVIEWED = '{ trust = "owner", commit = "review" }'
FACT = {"content": "The user prefers codes to prose"}
REFUSED = [  # code, method, path, body, and what else is sent
    ("invalid_request", "POST", "forget", {"query": "tea", "dryrun": True}, {}),
    ("invalid_request", "GET", "tasks?status=done", None, {}),
    ("invalid_json", "POST", "remember", b'{"content": "a", "content": "b"}', {}),
    ("invalid_content", "POST", "remember", {"content": " \n "}, {}),
    ("invalid_context_mode", "POST", "remember", {**FACT, "contextMode": "dirty"}, {}),
    ("invalid_scope", "POST", "remember", {**FACT, "scope": "galaxy"}, {}),
    ("invalid_query", "POST", "forget", {"query": 7}, {}),
    ("invalid_client_id", "POST", "dream", {}, {"client": "somebody"}),
    ("token_required", "GET", "/healthz", None, {"token": "x"}),
    ("untrusted_workspace", "GET", "/workspaces/somewhere/memory/tasks", None, {}),
    ("owner_required", "GET", "review", None, {"token": "client"}),
    ("foreign_origin", "GET", "/healthz", None, {"origin": "null"}),
    ("misdirected_request", "GET", "/healthz", None, {"host": "evil.example"}),
    ("not_found", "GET", "/workspace/memories", None, {}),
    ("method_not_allowed", "PUT", "remember", None, {}),
    ("body_too_large", "POST", "remember", {"content": "x" * 600_000}, {}),
    ("unsupported_media_type", "POST", "remember", FACT, {"content_type": "text/plain"}),
    ("idempotency_mismatch", "POST", "forget", {"query": "codes"}, {"idempotency_key": "codes"}),
    ("remember_task_not_found", "GET", "remember/remember-1", None, {}),
    ("forget_task_not_found", "DELETE", "forget/forget-1", None, {}),
    ("dream_task_not_found", "GET", "dream/dream-1", None, {}),
    ("bad_name", "POST", "erase", {"target": "user/a b?.md"}, {}),
    ("task_not_found", "POST", "undo", {"taskId": "remember-1"}, {}),
    ("nothing_to_erase", "POST", "erase", {"target": "user/nothing.md", "yes": True}, {}),
    ("review_not_found", "POST", "review/r1/reject", {}, {}),
    ("path_escape", "POST", "erase", {"target": "user/../../etc/passwd"}, {}),
    ("refused", "POST", "erase", {"target": "user/MEMORY.md"}, {}),
]
NOT_OVER_A_SOCKET = {
    "pending_review": "what only an undo could be told, and those are the owner's, whom no review stops",
}
"""Codes of answers that nothing brings about today, and why they are there."""

ANSWERS, TASKS = {}, {}


def answer(code):
    return partial(ANSWERS.__setitem__, code)


def task(code):
    return partial(TASKS.__setitem__, code)


class World:
    """A daemon with a model of which a test has the say: its user scope is reviewed, it holds at most twelve
    files and never retries."""

    def __init__(self, daemon, model, base):
        self.daemon, self.model, self.base = daemon, model, base

    def __getattr__(self, name):
        return getattr(self.daemon, name)

    def written(self, path, text, **body):
        """The task of a fact that the model files so."""
        self.model.mind = writes(path, text)
        return self.done("remember", {"content": text, **body})

    def review(self, path, text):
        """What waits to be written there: its id and digest."""
        waiting = self.written(path, text)["reviewId"]
        return waiting, self.get(f"{BASE}/review/{waiting}").json()["digest"]

    def approve(self, review_id, digest):
        return self.post(f"{BASE}/review/{review_id}/approve", {"digest": digest})

    def undo(self, done):
        return self.post(f"{BASE}/undo", {"taskId": done["taskId"]})

    def erase(self, done):
        return self.post(f"{BASE}/erase", {"target": done["taskId"], "yes": True})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    base = tmp_path_factory.mktemp("picky")
    terms = {"user": REVIEWED, "conflict": '"fail"', "max_files": "12", "max_scope_share": "1.0"}
    policy = str(policy_file(base, require='"none"', **terms))
    with (
        HeldModel() as model,
        closing(model.asked()) as asked,
        running(base, asked, policy=policy, on_model_failure="fail", broken=True) as served,
    ):
        yield World(served, model, base)
        model.release()


def assert_problem(sent, code):
    document = sent.json()
    status, sentence = HTTP[code]
    assert (sent.status_code, document["code"]) == (status, code), document
    assert sent.headers["content-type"] == "application/problem+json"
    assert document["error"] == document["title"] == sentence
    assert (document["type"], document["status"]) == ("about:blank", status)
    assert sent.headers["cache-control"] == "no-store"
    assert sent.headers["x-content-type-options"] == "nosniff"


def test_every_code_is_brought_about_or_named_with_a_reason():
    produced = {row[0] for row in REFUSED} | set(ANSWERS) | {f"{kind}_failed" for kind in KINDS}
    assert produced | set(NOT_OVER_A_SOCKET) == set(HTTP)
    assert not produced & set(NOT_OVER_A_SOCKET)
    assert set(TASK) <= set(TASKS) | set(LATE)


def test_what_is_wrong_with_a_request_is_told_by_its_code(daemon, subtests):
    daemon.post(f"{BASE}/dream", {}, idempotency_key="codes")
    for code, method, path, body, more in REFUSED:
        if more.get("token") == "client":
            more = {"token": daemon.client}
        with subtests.test(code):
            sent = daemon.send(method, path if path[0] == "/" else f"{BASE}/{path}", body, **more)
            assert_problem(sent, code)
            assert sent.headers.get("allow") == ("POST" if code == "method_not_allowed" else None)


def test_every_other_code_of_an_answer_is_told_where_it_is_so(world, monkeypatch, subtests):
    for code, case in ANSWERS.items():
        with subtests.test(code), monkeypatch.context() as patch:
            assert_problem(case(world, patch), code)


def over(found):
    return httpx2.Response(found.status, headers=found.headers, content=found.body)


@answer("invalid_http")
def _(world, _patch):
    return over(world.raw(b"what is this?\r\n\r\n"))


@answer("request_timeout")
def _(world, patch):
    patch.setattr(http, "BODY_SECONDS", 0.05)
    return over(world.raw(start(world, "Content-Length: 9") + b"{"))


@answer("review_changed")
def _(world, _patch):
    review_id, digest = world.review("user/changed.md", "The user changes")
    return world.approve(review_id, digest[::-1])


@answer("review_closed")
def _(world, _patch):
    review_id, digest = world.review("user/closed.md", "The user closes")
    rejected = world.post(f"{BASE}/review/{review_id}/reject", {}).json()
    assert (rejected["status"], rejected["taskId"], rejected["filesTouched"]) == ("rejected", None, [])
    sent = world.approve(review_id, digest)
    assert "closed.md" not in world.files()
    return sent


@answer("store_conflict")
def _(world, _patch):
    review_id, digest = world.review("user/conflict.md", "The user disagrees")
    (world.root() / "conflict.md").write_text("by hand\n", encoding="utf-8")
    sent = world.approve(review_id, digest)
    assert sent.json()["paths"] == ["user/conflict.md"]
    return sent


@answer("undo_overlap")
def _(world, _patch):
    done = world.written("project/overlap.md", "This project overlaps", scope="project")
    (world.root("project") / "overlap.md").write_text("by hand\n", encoding="utf-8")
    sent = world.undo(done)
    assert sent.json()["paths"] == ["project/overlap.md"]
    return sent


@answer("already_undone")
def _(world, _patch):
    done = world.written("project/undone.md", "This project is undone", scope="project")
    world.undo(done)
    return world.undo(done)


@answer("erased")
def _(world, _patch):
    done = world.written("project/erased.md", "This project is erased", scope="project")
    assert world.erase(done).json()["status"] == "erased"
    return world.undo(done)


@answer("quota")
def _(world, _patch):
    review_id, digest = world.review("user/quota.md", "The user hoards")
    hoard = [world.root() / f"hoard-{number}.md" for number in range(12)]
    for path in hoard:
        path.write_text("full\n", encoding="utf-8")
    try:
        return world.approve(review_id, digest)
    finally:
        for path in hoard:
            path.unlink()


@answer("content_rejected")
def _(world, _patch):
    base = world.base / "lax"
    base.mkdir()
    unseen = "The user\u200b is invisible"
    world.model.mind = writes("user/loud.md", unseen)
    with closing(world.model.asked()) as asked:
        lax = partial(policy_file, base, require='"none"', user=REVIEWED)
        with running(base, asked, policy=str(lax(reject="[]"))) as daemon:
            waiting = daemon.done("remember", {"content": unseen})["reviewId"]
        with running(base, asked, policy=str(lax())) as daemon:
            digest = daemon.get(f"{BASE}/review/{waiting}").json()["digest"]
            return daemon.post(f"{BASE}/review/{waiting}/approve", {"digest": digest})


@answer("managed_memory_unavailable")
def _(world, _patch):
    (base := world.base / "broken").mkdir()
    (base / "policy.toml").write_text("schema = 1\n", encoding="utf-8")
    with running(base, policy=str(base / "policy.toml")) as daemon:
        assert daemon.get("/healthz").json() == {"status": "ok"}
        unready = daemon.get("/readyz")
        assert unready.json()["workspaces"] == {daemon.key: "policy_invalid"}
        assert daemon.post(f"{BASE}/recall", {"query": "x"}).json()["error"] == "managed_memory_unavailable"
        assert "policy_invalid" in str([each.getMessage() for each in world.records])
        UNREADY.append(unready)
        return daemon.post(f"{BASE}/remember", FACT)


UNREADY = []


@answer("not_ready")
def _(_world, _patch):
    return UNREADY.pop()


@answer("remember_queue_full")
def _(world, _patch):
    world.model.hold()
    accepted = []
    try:
        while (sent := world.post(f"{BASE}/remember", FACT)).status_code == 202:
            accepted.append(sent.json()["taskId"])
        assert len(accepted) >= 16
        assert sent.headers["retry-after"].isdecimal()
        return sent
    finally:
        for task_id in reversed(accepted):
            world.cancel(task_id)
        world.model.release()


@answer("workspace_draining")
def _(world, patch):
    patch.setattr(world.core, "is_draining", True)
    for method, path, body in ("GET", "review", None), ("POST", "remember", FACT), ("POST", "recall", FACT):
        sent = world.send(method, f"{BASE}/{path}", body if path != "recall" else {"query": "tea"})
        assert (sent.status_code, sent.headers["retry-after"]) == (503, "1")
    assert world.get("/readyz").json()["reason"] == "draining"
    return sent


@answer("internal_error")
def _(world, patch):
    patch.setattr(world.core, "metrics", None)
    return world.get("/metrics")


@answer("busy")
def _(world, patch):
    assert world.get("/healthz").status_code == 200  # Now it serves.
    patch.setattr(world.guard.following, "cap", 1)
    with world.follow() as follower:
        follower.start()
        sent = world.get(f"{BASE}/events")
    assert sent.headers["retry-after"] == "5"
    return sent


@answer("deadline")
def _(world, patch):
    done = world.written("project/first.md", "This project is first")
    patch.setattr(routes, "WAIT_SECONDS", 0.1)
    with locked(world.root("project")):
        return world.erase(done)


KINDS = {"remember": FACT, "forget": {"query": "tea"}, "dream": {}}


def test_a_defect_where_a_task_is_accepted_is_told_by_its_kind(world, monkeypatch):
    monkeypatch.setattr(world.core.workspaces[world.key], "problem", lambda: 1 / 0)
    for kind, body in KINDS.items():
        assert_problem(world.post(f"{BASE}/{kind}", body), f"{kind}_failed")


# -- tasks ---------------------------------------------------------------------------------------------


def assert_failed(failed, code):
    assert failed["status"] == ("cancelled" if code == "cancelled" else "failed"), failed
    assert failed["result"] is None
    if code != "cancelled":
        assert (failed["error"]["code"], failed["error"]["message"]) == (code, sentence_of(code))


def test_every_code_of_a_task_is_told_of_one_that_fails(world, subtests):
    for code, case in TASKS.items():
        with subtests.test(code):
            assert_failed(case(world), code)


def test_a_task_that_fails_for_a_reason_of_the_inside_has_failed():
    assert task_error(WorkerLost("killed by 9"), "dream") == {"code": "dream_failed"}
    conflict = {"code": "store_conflict", "paths": ["user/a.md"]}
    assert task_error(StoreConflict(("user/a.md",)), "dream") == conflict


@task("remember_path_escape")
def _(world):
    return world.written("project/../../../escape.md", "This project escapes")


@task("remember_no_update")
def _(world):
    world.model.mind = says("I would rather not.")
    return world.done("remember", {"content": "This project does nothing"})


@task("remember_failed")
def _(world):
    world.model.mind = says("")
    return world.done("remember", {"content": "This project fails"})


@task("remember_scope_mismatch")
def _(world):
    return world.written("user/elsewhere.md", "This project is elsewhere", scope="project")


@task("remember_refused")
def _(world):
    return world.written("project/pinned/mine.md", "This project is pinned", scope="project")


@task("invalid_query")
def _(world):
    return world.done("forget", {"query": "the and of"})


@task("cancelled")
def _(world):
    """Who cancels is told so, before it has begun or after; whoever else may see it is told of a failure."""
    world.model.mind = writes("project/never.md", "This project is never finished")
    world.model.hold()
    try:
        tasks = [world.submit("remember", FACT, token=world.client) for _ in range(2)]
        for task_id in reversed(tasks):
            mine = world.cancel(task_id).json()
            told = world.look(task_id, token=world.client)
            assert (told["status"], told["error"]["code"]) == ("failed", "cancelled")
            assert (mine["status"], mine["error"]) == ("cancelled", None)
            assert world.look(task_id) == world.cancel(task_id).json() == mine
    finally:
        world.model.release()
    assert "never.md" not in world.files("project")
    return mine


@task("store_conflict")
def _(world):
    path = world.root("project") / "race.md"
    path.write_text("before\n", encoding="utf-8")
    mind = writes("project/race.md", "This project races", [("read_file", {"path": "project/race.md"})])
    world.model.mind = meddling(mind, lambda: path.write_text("meanwhile\n", encoding="utf-8"))
    failed = world.done("remember", {"content": "This project races", "scope": "project"})
    assert (failed["error"]["paths"], path.read_text()) == (["project/race.md"], "meanwhile\n")
    return failed


@task("pending_review")
def _(world):
    text = "The user reads before signing"
    failed = world.written("user/signed.md", text)
    waiting = failed["reviewId"]
    assert failed["error"]["reviewId"] == waiting
    listed = {each["reviewId"]: each for each in world.get(f"{BASE}/review").json()["reviews"]}
    assert (listed[waiting]["paths"], listed[waiting]["kind"]) == (["user/signed.md"], "remember")
    shown = world.get(f"{BASE}/review/{waiting}").json()
    assert text in shown["text"]
    assert "signed.md" not in world.files()
    approved = world.approve(waiting, shown["digest"]).json()
    assert (approved["status"], approved["filesTouched"]) == ("approved", ["user/signed.md"])
    assert approved["touchedScopes"] == ["user"]
    assert text in world.files()["signed.md"]
    assert waiting not in {each["reviewId"] for each in world.get(f"{BASE}/review").json()["reviews"]}
    return failed


@task("erased")
def _(world):
    done = world.written("project/gone.md", "This project is gone", scope="project")
    world.erase(done)
    return world.look(done["taskId"])


@task("managed_memory_unavailable")
def _(world):
    (base := world.base / "moved").mkdir()
    with closing(world.model.asked()) as asked, running(base, asked) as daemon:
        world.model.hold()
        try:
            ahead, task_id = daemon.remember("The user moves"), daemon.remember("The user has moved")
            world.model.wait_until_asked(len(world.model.server.requests) + 1)
            daemon.root().rename(base / "elsewhere")
            daemon.cancel(ahead)
            return daemon.wait(task_id)
        finally:
            world.model.release()


@task("interrupted")
def _(world):
    """What no attempt brought to an end, since the daemon was killed each time."""
    (base := world.base / "killed").mkdir()
    with running(base) as daemon:
        key = daemon.key
    with State(base / "home" / "state") as state:
        lane = Lane(state, key)
        task_id = lane.submit(NewTask("dream", {}, Originator("owner"), {})).task.id
        for _ in range(MAX_ATTEMPTS):
            lane.recover()
            assert lane.claim() is not None
    with running(base) as daemon:
        return daemon.wait(task_id)


LATE = ("remember_timeout", "forget_timeout", "dream_timeout")


@pytest.mark.slow
def test_what_its_deadline_ends_is_told_so_by_its_kind(tmp_path, model):
    policy = str(policy_file(tmp_path, require='"none"', seconds="1"))
    with closing(model.asked()) as asked, running(tmp_path, asked, policy=policy) as daemon:
        for number in (1, 2):
            model.mind = writes(f"user/{number}.md", "The user has a twin")
            assert daemon.done("remember", {"content": "The user has a twin"})["status"] == "completed"
        with locked(daemon.root()):
            assert_failed(daemon.done("dream", {}), "dream_timeout")
        model.hold()
        assert_failed(daemon.done("remember", {"content": "The user is late"}), "remember_timeout")
        assert_failed(daemon.done("forget", {"query": "user has twin"}), "forget_timeout")
        model.release()
        assert daemon.done("remember", {"content": "The user is back"})["status"] == "completed"
