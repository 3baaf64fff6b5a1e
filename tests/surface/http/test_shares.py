"""No client's token shuts out another one or the owner: of requests, of waits, of followers."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from kit.daemon.process import BASE
from kit.daemon.raw import HeldWriter, running
from muniment.daemon.contract import HttpProblem
from muniment.daemon.tokens import RESERVE, Shares
from muniment.lane import OWNER

CAP = 40
BUSY = (503, "busy")


def taken(shares, token):
    """How many places a token gets."""
    before = len(shares)
    with suppress(HttpProblem):
        for _ in range(CAP + 1):
            shares.take(token)
    with pytest.raises(HttpProblem) as refused:
        shares.take(token)
    assert (refused.value.code, refused.value.headers) == ("busy", {"Retry-After": "3"})
    return len(shares) - before


def test_a_client_gets_half_all_clients_leave_the_owner_some_and_the_owner_may_have_all():
    shares = Shares(CAP, 3)
    assert taken(shares, "one") == CAP // 2
    assert taken(shares, "other") == CAP - RESERVE - CAP // 2
    assert taken(shares, "third") == 0
    assert taken(shares, OWNER) == RESERVE
    assert len(shares) == CAP
    shares.leave("one")
    assert taken(shares, "third") == 1
    alone = Shares(CAP, 3)
    assert taken(alone, OWNER) == CAP
    assert taken(alone, "one") == 0


def test_a_refused_token_is_not_remembered():
    shares = Shares(1, 3)
    shares.take(OWNER)
    assert taken(shares, "one") == 0
    assert not shares._taken["one"]
    assert list(shares._taken) == [OWNER]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("shares")) as made:
        made.tokens = [made.add(name, f"{name}-1") for name in ("one", "two")]
        yield made


@pytest.fixture
def small(daemon, monkeypatch):
    for each in (daemon.guard.answering, daemon.guard.waiting, daemon.guard.following):
        monkeypatch.setattr(each, "cap", CAP)


def shut_out(daemon, request, places, others):
    """Send what keeps its place until one client has all it gets; then `others` of the second are served."""
    one, two = daemon.tokens
    before = len(places)
    with ExitStack() as opened:

        def send(token):
            line = opened.enter_context(daemon.line())
            line.send(request(token))
            return line

        for _ in range(CAP // 2):
            send(one)
        daemon.until(lambda: len(places) == before + CAP // 2)
        assert send(one).answer().code == BUSY
        for _ in range(others):
            send(two)
        daemon.until(lambda: len(places) == before + CAP // 2 + others)
        assert send(two).answer().code == BUSY
        send(daemon.token)
        daemon.until(lambda: len(places) == before + CAP // 2 + others + 1)


@pytest.mark.threat("T-API-03", control="shares")
@pytest.mark.usefixtures("small")
def test_bodies_that_do_not_come_keep_nobody_else_from_asking(daemon):
    def slow(token):
        return daemon.request("POST", f"{BASE}/remember", body={"content": "x" * 100}, token=token)[:-50]

    shut_out(daemon, slow, daemon.guard.answering, CAP - RESERVE - CAP // 2)
    daemon.until(lambda: len(daemon.guard.answering) == 0)
    assert daemon.ask("GET", "/healthz", token=daemon.tokens[0]).status == 200


@pytest.mark.threat("T-API-03", control="shares")
@pytest.mark.usefixtures("small")
def test_followers_of_one_token_keep_nobody_else_from_following(daemon):
    def follows(token):
        return daemon.request("GET", f"{BASE}/events", token=token)

    shut_out(daemon, follows, daemon.guard.following, CAP - RESERVE - CAP // 2)
    daemon.until(lambda: len(daemon.guard.following) == 0)


def test_waits_of_one_token_keep_nobody_else_from_waiting(tmp_path, monkeypatch):
    model = HeldWriter()
    with running(tmp_path, model=model) as daemon:
        fact = daemon.post("remember", {"content": "The user waits"}).json["taskId"]
        daemon.tokens = [daemon.add(name, f"{name}-1") for name in ("one", "two")]
        monkeypatch.setattr(daemon.guard.waiting, "cap", CAP)
        tasks = {
            token: daemon.post("dream", {}, token=token).json["taskId"]
            for token in (*daemon.tokens, daemon.token)
        }

        def waits(token):
            path = f"{BASE}/dream/{tasks[token]}"
            return daemon.request("GET", path, "Prefer: wait=60", token=token)

        shut_out(daemon, waits, daemon.guard.waiting, CAP - RESERVE - CAP // 2)
        assert daemon.ask("GET", f"{BASE}/remember/{fact}").status == 200
        model.free.set()
        daemon.until(lambda: len(daemon.guard.waiting) == 0)


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_wait_ends_with_nothing_for_a_token_that_was_revoked_meanwhile(tmp_path, is_made_anew):
    model = HeldWriter()
    with running(tmp_path, model=model) as daemon, daemon.line() as line:
        guard = daemon.guard
        token = daemon.add("passing", "passing-1")
        task = daemon.post("remember", {"content": "The user waits"}, token=token).json["taskId"]
        line.send(daemon.request("GET", f"{BASE}/remember/{task}", "Prefer: wait=60", token=token))
        daemon.until(lambda: len(guard.waiting) == 1)
        daemon.daemon.core.tokens.revoke("passing")
        if is_made_anew:
            daemon.add("passing", "passing-1")
        model.free.set()
        answer = line.answer()
        assert answer.code == (401, "token_required")
        assert answer.values("www-authenticate") == ["Bearer"]
