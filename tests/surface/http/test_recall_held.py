"""Recalls that hang: whom they hold up, which is nobody, and how they end."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kit.daemon.embedded import embedded
from kit.daemon.process import BASE, STOP_SECONDS
from muniment.daemon import core, service
from muniment.daemon.core import MAX_RECALLS, RESERVE
from muniment.errors import MunimentError
from muniment.recall.recaller import Recalled, Recaller

RECALL = f"{BASE}/recall"
QUERY = {"query": "What does the user deploy?"}
EMPTY = {"entries": [], "text": "", "tokens": 0, "abstained": False}
DRAINING = (503, "workspace_draining")


class Held:
    """Recalls that are held until `free` is set; each releases `begun` once it has begun.

    Args:
        heeds: whether a recall ends as soon as its patience does.
    """

    def __init__(self, *, heeds):
        self._heeds = heeds
        self.begun, self.free = threading.Semaphore(0), threading.Event()

    def recall(self, _query, *, patience, **_terms):
        self.begun.release()
        try:
            while not self.free.wait(0.005):
                if self._heeds:
                    patience.check()
        except MunimentError as error:
            return Recalled(error=error)
        return Recalled(abstained=True)

    def wait(self, count=1):
        """Wait until so many more have begun."""
        for _ in range(count):
            assert self.begun.acquire(timeout=STOP_SECONDS)


@pytest.fixture
def hold(monkeypatch):
    """Holds recalls from the call on: `hold(heeds=True)`; lets them go at the end."""
    made = []

    def held(*, heeds=False):
        made.append(Held(heeds=heeds))
        monkeypatch.setattr(Recaller, "recall", made[-1].recall)
        return made[-1]

    yield held
    for each in made:
        each.free.set()


@pytest.fixture
def daemon(tmp_path):
    with embedded(tmp_path) as served:
        yield served


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4 * MAX_RECALLS) as pool:
        yield pool


def ask(daemon, token=None):
    """Ask for a recall."""
    return daemon.post(RECALL, QUERY, token=token)


def code(answer):
    return answer.status_code, answer.json().get("code")


@contextmanager
def hanging(daemon, held, threads, *tokens):
    """As many recalls as there are tokens, under way; lets them go, and checks that they were answered."""
    asked = [threads.submit(ask, daemon, token) for token in tokens]
    held.wait(len(asked))
    yield
    held.free.set()
    assert {each.result(STOP_SECONDS).status_code for each in asked} == {200}


def test_recalls_that_hang_hold_up_nobody_else(daemon, hold, threads, monkeypatch):
    monkeypatch.setattr(core, "RECALL_SECONDS", STOP_SECONDS)
    held = hold()
    with hanging(daemon, held, threads, *[None] * MAX_RECALLS):
        assert daemon.get("/healthz").status_code == 200
        assert daemon.get("/readyz").status_code == 200
        assert daemon.get(f"{BASE}/review").status_code == 200
        assert daemon.wait(daemon.remember("We deploy on Thursdays"))["status"] == "completed"
        served = guard(daemon)  # A request is counted until its answer has left.
        daemon.run(until(lambda: (len(served.answering), len(served.waiting)) == (0, MAX_RECALLS)))
    assert daemon.run(counted(daemon)) == 0


def guard(daemon):
    return daemon.daemon._server.config.loaded_app


async def counted(daemon):
    """How many recalls are under way."""
    return len(daemon.core.recalls._running)


async def until(condition):
    """Wait until something holds, looked at after each turn of the loop."""
    deadline = time.monotonic() + STOP_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)


def test_what_the_owner_asks_for_holds_up_no_recall(daemon):
    begun, release = threading.Semaphore(0), threading.Event()

    def body(_place, _cancel):
        begun.release()
        release.wait(STOP_SECONDS)

    workspace = next(iter(daemon.core.workspaces.values()))
    with ThreadPoolExecutor(core.MAX_OWNER) as owners:
        asked = [owners.submit(daemon.run, daemon.core.at(workspace, body)) for _ in range(core.MAX_OWNER)]
        for _ in asked:
            assert begun.acquire(timeout=STOP_SECONDS)
        assert ask(daemon).json()["abstained"]
        release.set()
        assert [each.result(STOP_SECONDS) for each in asked] == [None] * core.MAX_OWNER


@pytest.mark.threat("T-API-03", control="shares")
def test_recalls_of_one_token_keep_nobody_else_from_recalling(daemon, hold, threads, monkeypatch):
    monkeypatch.setattr(core, "PLACE_SECONDS", 0.05)
    one, two = (daemon.core.tokens.add(name, (), "agent") for name in ("one", "two"))
    held, half = hold(), MAX_RECALLS // 2
    with hanging(daemon, held, threads, *[one] * half):
        busy = ask(daemon, one)
        assert (code(busy), busy.headers["retry-after"]) == ((503, "busy"), "1")
        with hanging(daemon, held, threads, *[two] * (half - RESERVE)):
            assert code(ask(daemon, two)) == (503, "busy")
            with hanging(daemon, held, threads, *[None] * RESERVE):
                assert code(ask(daemon)) == (503, "busy")
    assert ask(daemon, one).status_code == 200


def test_a_recall_whose_time_is_over_is_answered_with_nothing(daemon, hold, monkeypatch):
    monkeypatch.setattr(core, "RECALL_SECONDS", 0.05)
    hold(heeds=True)
    assert ask(daemon).json() == {**EMPTY, "error": "deadline"}


def test_a_recall_that_does_not_notice_is_answered_too_and_keeps_its_place(daemon, hold, monkeypatch):
    monkeypatch.setattr(core, "RECALL_SECONDS", 0.05)
    monkeypatch.setattr(core, "_LATE_SECONDS", 0.05)
    held = hold()
    assert ask(daemon).json() == {**EMPTY, "error": "deadline"}
    assert daemon.run(counted(daemon)) == 1
    held.free.set()
    daemon.run(until(lambda: not daemon.core.recalls._running))
    assert len(daemon.core.recalls._places) == 0


def test_a_recall_ends_with_nothing_for_a_token_that_was_revoked_meanwhile(daemon, hold, threads):
    token, held = daemon.core.tokens.add("passing", (), "agent"), hold()
    asked = threads.submit(ask, daemon, token)
    held.wait()
    daemon.core.tokens.revoke("passing")
    held.free.set()
    answer = asked.result(STOP_SECONDS)
    assert (code(answer), answer.headers["www-authenticate"]) == ((401, "token_required"), "Bearer")


# -- the end ---------------------------------------------------------------------------------------------


def test_a_stop_cancels_a_recall_that_is_under_way(tmp_path, hold, threads):
    with embedded(tmp_path) as daemon:
        held = hold(heeds=True)
        asked = threads.submit(ask, daemon)
        held.wait()
        assert daemon.run(daemon.core.stop(0))
        assert code(asked.result(STOP_SECONDS)) == DRAINING


def test_a_recall_that_came_before_the_stop_and_begins_after_it_is_cancelled(daemon):
    daemon.core.recalls._cancel.set()
    assert code(ask(daemon)) == DRAINING


@pytest.mark.slow
def test_a_recall_that_hangs_does_not_keep_the_daemon(tmp_path, hold, threads, monkeypatch):
    for module, name in (
        (core, "_END_SECONDS"),
        (core, "_END_SECONDS"),
        (service, "_LINGER_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.1)
    with embedded(tmp_path, grace=0) as daemon:
        held = hold()
        asked = threads.submit(ask, daemon)
        held.wait()
        assert not daemon.run(daemon.core.stop(0))
        daemon.run(daemon.daemon.stop())
        assert code(asked.result(STOP_SECONDS)) == DRAINING
    held.free.set()
