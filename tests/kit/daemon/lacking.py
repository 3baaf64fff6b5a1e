"""What a daemon answers that lacks something: a case each, named after the code of its answer."""

from __future__ import annotations

import http.client

import httpx2

from kit.daemon.process import BASE
from kit.daemon.world import FACT, locked
from muniment.daemon import http as body
from muniment.daemon import routes


def answers_request_timeout(alone, monkeypatch):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.1)
    host, _, port = alone.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.putrequest("POST", f"{BASE}/remember")
    connection.putheader("Authorization", f"Bearer {alone.token}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "9")
    connection.endheaders(b"{")
    sent = connection.getresponse()
    return httpx2.Response(sent.status, headers=sent.getheaders(), content=sent.read())


def answers_remember_failed(alone, monkeypatch):
    return _with_a_failing_check(alone, monkeypatch, "remember", FACT)


def answers_forget_failed(alone, monkeypatch):
    return _with_a_failing_check(alone, monkeypatch, "forget", {"query": "tea"})


def answers_dream_failed(alone, monkeypatch):
    return _with_a_failing_check(alone, monkeypatch, "dream", {})


def _with_a_failing_check(alone, monkeypatch, kind, sent):
    workspace = alone.core.workspaces[alone.key]
    monkeypatch.setattr(workspace, "problem", lambda: 1 / 0)
    return alone.post(f"{BASE}/{kind}", sent)


def answers_internal_error(alone, monkeypatch):
    monkeypatch.setattr(alone.core, "metrics", None)
    return alone.get("/metrics")


def answers_busy(alone, monkeypatch):
    assert alone.get("/healthz").status_code == 200  # Now it serves.
    monkeypatch.setattr(alone.daemon._server.config.loaded_app.following, "cap", 1)
    with alone.follow() as follower:
        follower.start()
        sent = alone.get(f"{BASE}/events")
    assert sent.headers["retry-after"] == "5"
    return sent


def answers_deadline(alone, monkeypatch):
    monkeypatch.setattr(routes, "WAIT_SECONDS", 0.1)
    done = alone.wait(alone.remember("The user prefers to be first"))
    with locked(alone.root()):
        return alone.post(f"{BASE}/erase", {"target": done["taskId"], "yes": True})


def answers_workspace_draining(alone, monkeypatch):
    monkeypatch.setattr(alone.core, "is_draining", True)
    sent = alone.post(f"{BASE}/recall", {"query": "tea"})
    assert sent.headers["retry-after"] == "1"
    return sent
