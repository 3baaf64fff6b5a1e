"""The stream of events by itself: who reads slowly, who is told nothing, and a ledger that goes away."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import wraps

import pytest

from muniment.daemon import stream as subject
from muniment.daemon.stream import BATCH, Stream, StreamView
from muniment.lane import Originator
from muniment.store import tasks
from muniment.store.database import Database
from muniment.store.state import State

AT = "2026-01-01T00:00:00Z"
HERE, THERE = "here", "there"


@pytest.fixture
def state(tmp_path):
    with State(tmp_path / "state") as made:
        yield made


@pytest.fixture
def logged(monkeypatch):
    seen = []
    monkeypatch.setattr(subject.events, "emit", lambda event, **fields: seen.append((event, fields)))
    return seen


def in_a_loop(test):
    """Have an `async def` run as a test."""

    @wraps(test)
    def run(**fixtures):
        asyncio.run(test(**fixtures))

    return run


def add(state, count, workspace=HERE):
    with state.ledger.transaction():
        for number in range(count):
            event = tasks.Event("task", AT, f"task-{number}", {"status": "queued"}, workspace, token="owner")
            tasks.append(state, event)


def view(workspace=HERE, scopes=None):
    return StreamView(workspace, lambda: scopes or {}, Originator("owner", None))


@asynccontextmanager
async def opened(state):
    reads = Database(state.ledger.path, synchronous="FULL")
    try:
        yield Stream(reads)
    finally:
        reads.close()


def ids(chunk):
    return [int(line.rpartition("-")[2]) for line in chunk.decode().splitlines() if line.startswith("id:")]


@in_a_loop
async def test_who_pauses_until_what_is_next_is_no_longer_kept_is_told_to_look_again(state):
    async with opened(state) as stream:
        add(state, 2)
        following = stream.follow(view(), f"{stream.epoch}-0")
        await anext(following)
        assert ids(await anext(following)) == [1, 2]
        add(state, tasks.MAX_EVENTS + 1_000)
        stream._look()
        told = await anext(following)
        assert b"event: resync" in told
        assert ids(told) == [tasks.MAX_EVENTS + 1_002]
        add(state, 1)
        stream._look()
        assert ids(await anext(following)) == [tasks.MAX_EVENTS + 1_003]
        await following.aclose()


@in_a_loop
async def test_what_was_added_and_swept_between_two_looks_is_told_as_missing(state, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_EVENTS", 8)
    monkeypatch.setattr(tasks, "_SWEEP", 1)
    async with opened(state) as stream:
        add(state, 2)
        following = stream.follow(view(), f"{stream.epoch}-0")
        await anext(following)
        add(state, 20)
        stream._look()
        told = await anext(following)
        assert b"event: resync" in told
        assert ids(told) == [22]
        await following.aclose()


@in_a_loop
async def test_who_is_as_far_behind_as_events_are_kept_misses_nothing(state, monkeypatch):
    monkeypatch.setattr(subject, "RING", 4)
    monkeypatch.setattr(tasks, "MAX_EVENTS", 8)
    monkeypatch.setattr(tasks, "_SWEEP", 1)
    async with opened(state) as stream:
        add(state, 2)
        following = stream.follow(view(), f"{stream.epoch}-0")
        await anext(following)
        await anext(following)
        add(state, 8)
        stream._look()
        assert ids(await anext(following)) == list(range(3, 11))
        await following.aclose()


@in_a_loop
async def test_others_have_their_turn_while_somebody_catches_up_with_what_is_none_of_its_business(state):
    add(state, 20 * BATCH, THERE)
    async with opened(state) as stream:
        turns, done = 0, asyncio.Event()

        async def others():
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        add(state, 1)
        following = stream.follow(view(), f"{stream.epoch}-0")
        await anext(following)
        assert ids(await anext(following)) == [20 * BATCH + 1]
        done.set()
        await task
        assert turns >= 20
        await following.aclose()


@in_a_loop
async def test_a_follower_is_told_of_scopes_that_were_opened_after_it_came(state):
    scopes = {}
    async with opened(state) as stream:
        following = stream.follow(view(scopes=scopes), None)
        await anext(following)
        scopes["root-1"] = "user"
        tasks.append(state, tasks.Event("memory_changed", AT, "task-1", {}, roots=("root-1",)))
        stream._look()
        assert b'"touchedScopes": ["user"]' in await anext(following)
        await following.aclose()


@in_a_loop
async def test_a_ledger_that_goes_away_and_comes_back_is_known_and_logged_once(state, logged, monkeypatch):
    looked = asyncio.Event()
    real = asyncio.sleep

    async def soon(_):
        looked.set()
        await real(0)

    monkeypatch.setattr(subject.asyncio, "sleep", soon)

    async def looks(count):
        for _ in range(count):
            looked.clear()
            await looked.wait()

    path = state.ledger.path
    async with opened(state) as stream:
        watching = asyncio.create_task(stream.watch())
        await looks(2)
        assert not stream.is_lost
        assert logged == []
        path.rename(path.with_name("away"))
        assert stream.is_lost
        await looks(4)
        assert logged == [("ledger_gone", {})]
        path.touch()
        assert stream.is_lost
        await looks(4)
        assert logged == [("ledger_gone", {})]
        path.with_name("away").rename(path)
        assert not stream.is_lost
        await looks(4)
        assert logged == [("ledger_gone", {}), ("ledger_back", {})]
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
