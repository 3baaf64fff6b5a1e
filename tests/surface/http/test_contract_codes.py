"""Every code of the contract occurs: in answers over a socket and in failed tasks."""

from __future__ import annotations

import socket
from functools import partial
from itertools import chain

import httpx2
import pytest

from kit.agent.dialects import FinishWithText, RequestCalls
from kit.server.process import BASE, PausableModel, lock_roots, write_policy
from kit.server.raw import build_incomplete_request, start_local_daemon
from muniment.errors import CODES, WorkerLost
from muniment.operations import job_context
from muniment.server import http, routes
from muniment.server.contract import build_task_error, get_sentence
from muniment.server.lane import MAX_ATTEMPTS, Lane
from muniment.server.lane_tasks import NewTask
from muniment.store.state import State
from muniment.store.tasks import Originator

KINDS, REVIEWED = ("remember", "forget", "dream"), '{ trust = "owner", commit = "review" }'
FACT, QUERY = {"content": "The user prefers codes to prose"}, {"query": "tea"}
REFUSED = [  # code, method, path, body, and further options
    ("invalid_request", "GET", "tasks?status=done", None, {}),
    ("invalid_json", "POST", "remember", b'{"content": "a", "content": "b"}', {}),
    ("invalid_content", "POST", "remember", {"content": " \n "}, {}),
    ("invalid_context_mode", "POST", "remember", {**FACT, "contextMode": "dirty"}, {}),
    ("invalid_scope", "POST", "remember", {**FACT, "scope": "galaxy"}, {}),
    ("invalid_expires", "POST", "remember", {**FACT, "expires": "0d"}, {}),
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
    *((f"{kind}_task_not_found", "GET", f"{kind}/{kind}-1", None, {}) for kind in KINDS),
    ("bad_name", "POST", "erase", {"target": "user/a b?.md", "dryRun": False}, {}),
    ("task_not_found", "POST", "undo", {"taskId": "remember-1"}, {}),
    ("nothing_to_erase", "POST", "erase", {"target": "user/nothing.md", "dryRun": False}, {}),
    ("review_not_found", "POST", "review/r1/reject", {}, {}),
    ("path_escape", "POST", "erase", {"target": "user/../../etc/passwd", "dryRun": False}, {}),
    ("refused", "POST", "erase", {"target": "user/MEMORY.md", "dryRun": False}, {}),
]


def write_then_answer(path, text, before=(), interfere=lambda: None):
    """Return a model that makes the calls of `before`, calls `interfere`, writes a file and answers."""
    steps = [*before, ("write_file", {"path": path, "content": f"---\nname: T\ntype: user\n---\n{text}\n"})]

    def answer_request(request):
        done = sum(1 for message in request.body["messages"] if message["role"] == "tool")
        return (
            RequestCalls([steps[done]]) if done < len(steps) else (interfere(), FinishWithText("Saved."))[1]
        )

    return answer_request


class ScriptedDaemon:
    """A daemon with a scripted model: its user scope is reviewed, it stores at most twelve files and never
    retries.
    """

    def __init__(self, daemon, model):
        self.daemon, self.model = daemon, model

    def __getattr__(self, name):
        return getattr(self.daemon, name)

    def remember_file(self, path, text, **body):
        """Remember a fact that the model writes to `path`, and return the task."""
        self.model.behavior = write_then_answer(path, text)
        return self.run_task("remember", {"content": text, **body})

    def review(self, path, text):
        """Create a pending review of a file and return its id and digest."""
        waiting = self.remember_file(path, text)["reviewId"]
        return waiting, self.get(f"{BASE}/review/{waiting}").json()["digest"]

    def approve(self, review_id, digest):
        return self.post(f"{BASE}/review/{review_id}/approve", {"digest": digest})

    def undo(self, done):
        return self.post(f"{BASE}/undo", {"taskId": done["taskId"]})

    def erase(self, done):
        return self.post(f"{BASE}/erase", {"target": done["taskId"], "dryRun": False})


@pytest.fixture(scope="module")
def scripted_daemon(tmp_path_factory):
    base = tmp_path_factory.mktemp("picky")
    settings = {"user": REVIEWED, "conflict": '"fail"', "max_files": "12", "max_scope_share": "1.0"}
    policy = write_policy(base, require='"none"', **settings)
    with (
        PausableModel() as model,
        start_local_daemon(base, model, policy=policy, expects_defects=True) as served,
    ):
        yield ScriptedDaemon(served, model)


def test_every_answer_code_occurs(daemon, scripted_daemon, monkeypatch, subtests):
    seen, groups = set(), (request_cases, review_cases, undo_cases, content_cases, policy_cases, daemon_cases)
    for code, sent in chain(
        rejected_requests(daemon), *(group(scripted_daemon, monkeypatch) for group in groups)
    ):
        seen.add(code)
        with subtests.test(code):
            (status, sentence, *_), document = CODES[code], sent.json()
            expected = {"type": "about:blank", "status": status, "code": code}
            expected |= dict.fromkeys(("error", "title"), sentence)
            assert (sent.status_code, document) == (status, document | expected), document
            assert sent.headers["content-type"] == "application/problem+json"
    # Only an undo could return the first code, and an undo of the owner needs no review. Only a node returns
    # the second one: tests/surface/fleet/test_away.py.
    assert seen == {code for code, means in CODES.items() if means.status} - {"pending_review", "ledger_away"}


def rejected_requests(daemon):
    daemon.post(f"{BASE}/dream", {}, idempotency_key="codes")
    for code, method, path, body, more in REFUSED:
        token = {"token": daemon.client} if more.get("token") == "client" else {}
        sent = daemon.send(method, path if path[0] == "/" else f"{BASE}/{path}", body, **more | token)
        assert sent.headers.get("allow") == ("POST" if code == "method_not_allowed" else None)
        yield code, sent


def request_cases(scripted_daemon, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(http, "BODY_SECONDS", 0.05)
        late = build_incomplete_request(scripted_daemon, "Content-Length: 9") + b"{"
        for code, data in ("invalid_http", b"what is this?\r\n\r\n"), ("request_timeout", late):
            found = scripted_daemon.send_raw(data)
            yield code, httpx2.Response(found.status, headers=found.headers, content=found.body)


def review_cases(scripted_daemon, _):
    review_id, digest = scripted_daemon.review("user/changed.md", "The user changes")
    yield "review_changed", scripted_daemon.approve(review_id, digest[::-1])
    rejected = scripted_daemon.post(f"{BASE}/review/{review_id}/reject", {}).json()
    assert rejected == rejected | {"status": "rejected", "filesTouched": []}
    yield "review_closed", scripted_daemon.approve(review_id, digest)
    assert "changed.md" not in scripted_daemon.read_files()
    waiting = scripted_daemon.review("user/conflict.md", "The user disagrees")
    (scripted_daemon.get_root() / "conflict.md").write_text("by hand\n", encoding="utf-8")
    yield "store_conflict", (sent := scripted_daemon.approve(*waiting))
    assert sent.json()["paths"] == ["user/conflict.md"]
    waiting = scripted_daemon.review("user/quota.md", "The user hoards")
    hoard = [scripted_daemon.get_root() / f"hoard-{number}.md" for number in range(12)]
    for path in hoard:
        path.write_text("full\n")
    yield "quota", scripted_daemon.approve(*waiting)
    for path in hoard:
        path.unlink()


def undo_cases(scripted_daemon, monkeypatch):
    done = scripted_daemon.remember_file("project/overlap.md", "This project overlaps", scope="project")
    (scripted_daemon.get_root("project") / "overlap.md").write_text("by hand\n", encoding="utf-8")
    yield "undo_overlap", (sent := scripted_daemon.undo(done))
    assert sent.json()["paths"] == ["project/overlap.md"]
    done = scripted_daemon.remember_file("project/undone.md", "This project is undone", scope="project")
    scripted_daemon.undo(done)
    yield "already_undone", scripted_daemon.undo(done)
    done = scripted_daemon.remember_file("project/erased.md", "This project is erased", scope="project")
    with monkeypatch.context() as patch, lock_roots(scripted_daemon.get_root("project")):
        patch.setattr(job_context, "WAIT_SECONDS", 0.1)
        yield "deadline", scripted_daemon.erase(done)
    assert scripted_daemon.erase(done).json()["status"] == "erased"
    yield "erased", scripted_daemon.undo(done)


def content_cases(scripted_daemon, _):
    (base := scripted_daemon.base / "lax").mkdir()
    unseen = "The user\u202e is invisible"
    policy = partial(write_policy, base, require='"none"', user=REVIEWED)
    scripted_daemon.model.behavior = write_then_answer("user/loud.md", unseen)
    with start_local_daemon(base, scripted_daemon.model, policy=policy(reject="[]")) as daemon:
        waiting = daemon.run_task("remember", {"content": unseen})["reviewId"]
    with start_local_daemon(base, policy=policy()) as daemon:
        digest = daemon.get(f"{BASE}/review/{waiting}").json()["digest"]
        yield "content_rejected", daemon.post(f"{BASE}/review/{waiting}/approve", {"digest": digest})


def policy_cases(scripted_daemon, _):
    (base := scripted_daemon.base / "broken").mkdir()
    (base / "policy.toml").write_text("schema = 1\n", encoding="utf-8")
    with start_local_daemon(base, policy=base / "policy.toml") as daemon:
        assert daemon.get("/healthz").json() == {"status": "ok"}
        yield "not_ready", (unready := daemon.get("/readyz"))
        assert unready.json()["workspaces"] == {daemon.key: "policy_invalid"}
        assert daemon.post(f"{BASE}/recall", {"query": "x"}).json()["error"] == "managed_memory_unavailable"
        assert "policy_invalid" in str([each.getMessage() for each in scripted_daemon.records])
        yield "managed_memory_unavailable", daemon.post(f"{BASE}/remember", FACT)


def daemon_cases(scripted_daemon, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(routes.importlib.util, "find_spec", lambda _: None)
        yield "mcp_not_installed", scripted_daemon.post("/mcp", {})
        yield "ui_not_installed", scripted_daemon.post("/ui", {})
    with monkeypatch.context() as patch, socket.create_server(("127.0.0.2", 0)) as other_listener:
        patch.setattr(scripted_daemon.core.page_access, "listener", other_listener)
        yield "ui_not_local", scripted_daemon.post("/ui", {})
    with socket.create_server(("::1", scripted_daemon.port), family=socket.AF_INET6):
        yield "ui_port_taken", scripted_daemon.post("/ui", {})
    scripted_daemon.model.pause()
    accepted = [scripted_daemon.remember(f"The user waits {number}") for number in range(16)]
    yield "remember_queue_full", scripted_daemon.post(f"{BASE}/remember", FACT)
    for task_id in reversed(accepted):
        scripted_daemon.cancel(task_id)
    scripted_daemon.model.resume()
    workspaces = scripted_daemon.core.workspaces
    with monkeypatch.context() as patch:
        patch.setattr(
            scripted_daemon.core, "workspaces", workspaces | {"other": workspaces[scripted_daemon.key]}
        )
        yield "workspace_required", scripted_daemon.get(f"{BASE}/tasks")
    with monkeypatch.context() as patch:
        patch.setattr(scripted_daemon.core, "_is_draining", True)
        assert scripted_daemon.get("/readyz").json()["reason"] == "draining"
        for path, body in ("review", None), ("remember", FACT), ("recall", QUERY):
            sent = scripted_daemon.send("POST" if body else "GET", f"{BASE}/{path}", body)
            yield "workspace_draining", sent
            assert sent.headers["retry-after"] == "1"
    with monkeypatch.context() as patch, scripted_daemon.follow_events() as follower:
        follower.read_to_start()
        patch.setattr(scripted_daemon.guard.following, "cap", 1)
        yield "busy", (sent := scripted_daemon.get(f"{BASE}/events"))
        assert sent.headers["retry-after"] == "5"
        patch.setattr(scripted_daemon.core, "metrics", None)
        yield "internal_error", scripted_daemon.get("/metrics")
        patch.setattr(scripted_daemon.core.workspaces[scripted_daemon.key], "problem", lambda: 1 / 0)
        for kind, body in zip(KINDS, (FACT, QUERY, {}), strict=True):
            yield f"{kind}_failed", scripted_daemon.post(f"{BASE}/{kind}", body)


# -- tasks ---------------------------------------------------------------------------------------------


def assert_failed(failed, code):
    error = {"code": code, "message": get_sentence(code)}
    assert "result" not in failed
    if code == "cancelled":
        assert failed == failed | {"status": "cancelled"}
    else:
        assert failed == failed | {"status": "failed", "error": failed["error"] | error}


def test_every_task_code_occurs(scripted_daemon, subtests):
    seen, groups = set(), (model_cases, owner_cases, race_cases, stopped_daemon_cases)
    for code, failed in chain(*(group(scripted_daemon) for group in groups)):
        seen.add(code)
        with subtests.test(code):
            assert_failed(failed, code)
    ends = {code for code, means in CODES.items() if means.ends_task and not means.status}
    assert ends <= seen | {f"{kind}_timeout" for kind in KINDS}
    assert build_task_error(WorkerLost("killed by 9"), "dream") == {"code": "dream_failed"}


def model_cases(scripted_daemon):
    for code, path, body in (
        ("remember_path_escape", "project/../../../escape.md", {}),
        ("remember_scope_mismatch", "user/elsewhere.md", {"scope": "project"}),
        ("remember_refused", "project/pinned/mine.md", {"scope": "project"}),
    ):
        yield code, scripted_daemon.remember_file(path, f"This project has {path}", **body)
    for code, text in ("remember_no_update", "I would rather not."), ("remember_failed", ""):
        scripted_daemon.model.behavior = lambda _, text=text: FinishWithText(text)
        yield code, scripted_daemon.run_task("remember", {"content": f"This project does nothing: {code}"})
    yield "invalid_query", scripted_daemon.run_task("forget", {"query": "the and of"})


def owner_cases(scripted_daemon):
    text = "The user reads before signing"
    yield "pending_review", (failed := scripted_daemon.remember_file("user/signed.md", text))
    waiting = failed["error"]["reviewId"]
    listed = {each["reviewId"]: each for each in scripted_daemon.get(f"{BASE}/review").json()["reviews"]}[
        waiting
    ]
    assert (listed["paths"], listed["kind"]) == (["user/signed.md"], "remember")
    assert "signed.md" not in scripted_daemon.read_files()
    approved = scripted_daemon.approve(
        waiting, scripted_daemon.get(f"{BASE}/review/{waiting}").json()["digest"]
    ).json()
    expected = {"status": "approved", "filesTouched": ["user/signed.md"], "touchedScopes": ["user"]}
    assert (approved, text in scripted_daemon.read_files()["signed.md"]) == (approved | expected, True)
    with scripted_daemon.follow_events(cursor=scripted_daemon.cursor(0)) as follower:
        event = follower.read_until(lambda each: each.data["taskId"] == approved["taskId"])[-1]
    assert (event.type, event.data["source"]) == ("memory_changed", "workspace_memory_remember")
    done = scripted_daemon.remember_file("project/gone.md", "This project is gone", scope="project")
    scripted_daemon.erase(done)
    yield "erased", scripted_daemon.read_task(done["taskId"])


def race_cases(scripted_daemon):
    path, text = scripted_daemon.get_root("project") / "race.md", "This project races"
    path.write_text("before\n", encoding="utf-8")
    before = [("read_file", {"path": "project/race.md"})]
    scripted_daemon.model.behavior = write_then_answer(
        "project/race.md", text, before, lambda: path.write_text("meanwhile\n")
    )
    failed = scripted_daemon.run_task("remember", {"content": text, "scope": "project"})
    assert (failed["error"]["paths"], path.read_text()) == (["project/race.md"], "meanwhile\n")
    yield "store_conflict", failed
    preview_digest = scripted_daemon.run_task("forget", {"query": "project/race.md", "dryRun": True})[
        "result"
    ]["digest"]
    path.write_text("once more\n", encoding="utf-8")
    yield (
        "preview_changed",
        scripted_daemon.run_task("forget", {"query": "project/race.md", "digest": preview_digest}),
    )
    scripted_daemon.model.behavior = write_then_answer("project/never.md", "This project is never finished")
    scripted_daemon.model.pause()
    for task_id in reversed(
        [scripted_daemon.submit("remember", FACT, token=scripted_daemon.client) for _ in range(2)]
    ):
        task = scripted_daemon.cancel(task_id).json()  # One is queued, and one is running.
        assert scripted_daemon.read_task(task_id) == scripted_daemon.cancel(task_id).json() == task
        yield "cancelled", task
    scripted_daemon.model.resume()
    assert "never.md" not in scripted_daemon.read_files("project")


def stopped_daemon_cases(scripted_daemon):
    (base := scripted_daemon.base / "moved").mkdir()
    with start_local_daemon(base, scripted_daemon.model) as daemon:
        scripted_daemon.model.pause()
        request_count = len(scripted_daemon.model.server.requests)
        first, task_id = daemon.remember("The user moves"), daemon.remember("The user has moved")
        scripted_daemon.model.wait_for_requests(request_count + 1)
        daemon.get_root().rename(base / "elsewhere")
        daemon.cancel(first)
        yield "managed_memory_unavailable", daemon.wait_for_task(task_id)
    with State(daemon.state) as state:  # No attempt ended: the daemon was killed each time.
        lane = Lane(state, daemon.key)
        task_id = lane.submit(NewTask("dream", {}, Originator("owner"), {})).task.id
        for _ in range(MAX_ATTEMPTS):
            lane.recover()
            assert lane.claim() is not None
    with start_local_daemon(base) as daemon:
        yield "interrupted", daemon.wait_for_task(task_id)


@pytest.mark.slow
def test_task_past_deadline_has_timeout_code_of_kind(tmp_path, model):
    policy = write_policy(tmp_path, require='"none"', seconds="1")
    with start_local_daemon(tmp_path, model, policy=policy) as daemon:
        for number in (1, 2):
            model.behavior = write_then_answer(f"user/{number}.md", "The user has a twin")
            assert daemon.run_task("remember", {"content": "The user has a twin"})["status"] == "completed"
        with lock_roots(daemon.get_root()):
            assert_failed(daemon.run_task("dream", {}), "dream_timeout")
        model.pause()
        assert_failed(daemon.run_task("remember", {"content": "The user is late"}), "remember_timeout")
        assert_failed(daemon.run_task("forget", {"query": "user has twin"}), "forget_timeout")
        model.resume()
        model.behavior = write_then_answer("user/back.md", "The user is back")
        assert daemon.run_task("remember", {"content": "The user is back"})["status"] == "completed"
