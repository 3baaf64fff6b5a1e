"""A fleet node: it separates homes, and keeps running while its database does not respond."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from kit.catching import catch_error
from kit.fleet.homes import KEY
from kit.fleet.local_nodes import wait_until
from kit.server.lanes import make_new_task
from muniment.agent.filing import RuleWriter
from muniment.errors import QueueFull
from muniment.fleet import homes
from muniment.fleet import node as at_node
from muniment.fleet.home import HomeCore
from muniment.fleet.node import FleetNode, NodeOptions
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Trust
from muniment.server.contract import HttpProblem
from muniment.server.lane import MAX_PENDING, Lane
from muniment.server.tokens import TOKEN_NAME, Principal, SlotShares
from muniment.settings import Settings
from muniment.store.state import LedgerState
from muniment.store.tasks import Originator

UNKNOWN = "u" * 43


@asynccontextmanager
async def open_node(fleet, directory, left=None, lease=15.0):
    """Yield an open node; `left` is a directory of an earlier run."""
    state = directory / "state"
    state.mkdir(mode=0o700)
    if left is not None:
        left.mkdir(mode=0o700, parents=True)
    (state / "audit.key").write_bytes(KEY)
    (state / "audit.key").chmod(0o600)
    node = FleetNode(Settings(directory), RuleWriter(), NodeOptions(fleet.node, "one", lease=lease))
    await node.open(())
    try:
        yield node
        await node.stop(0)
    finally:
        await node.close()


@pytest.fixture
def run(fleet, tmp_path):
    """Return a function that runs a coroutine with an open node."""

    def run_act(act, **more):
        async def run_at_node():
            async with open_node(fleet, tmp_path, **more) as node:
                await act(node)

        asyncio.run(run_at_node())

    return run_act


@pytest.mark.threat("T-FLT-06", control="served_homes")
def test_token_maps_to_one_home_and_operator_token_to_node(fleet, run, tmp_path):
    names = [fleet.create_home() for _ in range(2)]
    tokens = [homes.add_token(fleet.owner, KEY, name) for name in names]
    editor = homes.add_token(fleet.owner, KEY, names[0], "editor", ["editor-1"], Trust.AGENT)

    async def act(node):
        for name, token in zip(names, tokens, strict=True):
            principal = await node.find_principal(token)
            assert (principal.home, principal.name) == (name, "owner")
            assert node.get_core(principal) is not node
            assert node.get_core(principal).name == name
        editor_principal = await node.find_principal(editor)
        assert (editor_principal.home, editor_principal.name, editor_principal.trust) == (
            names[0],
            "editor",
            Trust.AGENT,
        )
        assert node.get_core(editor_principal) is node.get_core(await node.find_principal(tokens[0]))
        operator = await node.find_principal((tmp_path / "state" / TOKEN_NAME).read_text("ascii").strip())
        assert (operator.home, node.get_core(operator)) == ("", node)
        assert await node.find_principal(UNKNOWN) is None
        homes.revoke_token(fleet.owner, KEY, names[0], "editor")
        assert await node.find_principal(editor) is None

    run(act)


@pytest.mark.threat("T-FLT-15", control="threaded_queries")
def test_database_is_never_queried_on_event_loop(fleet, run, monkeypatch):
    name, threads, real = fleet.create_home(), set(), ConnectionPool.getconn
    token = homes.add_token(fleet.owner, KEY, name)

    def record_thread(pool, timeout=None):
        threads.add(threading.get_ident())
        return real(pool, timeout)

    async def act(node):
        monkeypatch.setattr(ConnectionPool, "getconn", record_thread)
        principal = await node.find_principal(token)
        home = node.get_core(principal)
        task = (await home.submit(home, make_new_task(text="The user likes tea."))).task
        assert (await home.find(home, task.id)).id == task.id
        assert await home.tasks(home, before=None)
        assert [each.name for each in await home.list_principals()] == ["owner"]
        assert await home.is_still_valid(principal)
        assert (await home.cancel(home, task.id, Originator("owner"))).is_finished
        assert await home.run_in_context(home, lambda context, _: set(context.roots), can_write=False)
        assert await node.list_problems() == {"one": None}
        assert threads
        assert threading.get_ident() not in threads

    run(act)


def test_event_loop_runs_while_a_home_waits_for_database(fleet, run):
    name, other = (fleet.create_home() for _ in range(2))

    async def act(node):
        with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as owner:
            owner.execute("SELECT FROM home WHERE home = %s FOR UPDATE", (name,))
            waiting = asyncio.ensure_future(
                node.home(name).submit(node.home(name), make_new_task(text="Tea."))
            )
            await asyncio.sleep(0)  # It has started.
            result = await node.home(other).submit(node.home(other), make_new_task(text="Tea."))
            assert not result.is_repeated
            assert not waiting.done()
            owner.rollback()
        assert not (await waiting).is_repeated

    run(act)


def test_home_with_locked_row_does_not_block_others(fleet, run):
    name, other = (fleet.create_home() for _ in range(2))

    async def act(node):
        with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as owner:
            owner.execute("SELECT FROM home WHERE home = %s FOR UPDATE", (name,))
            home = node.home(name)
            waiting = [
                asyncio.ensure_future(home.submit(home, make_new_task(text=f"{n} cups.")))
                for n in range(MAX_PENDING)
            ]
            await asyncio.sleep(0)  # They have started.
            result = await asyncio.wait_for(
                node.home(other).submit(node.home(other), make_new_task(text="Tea.")), 20
            )
            assert not result.is_repeated
            owner.rollback()
        assert not any([(await each).is_repeated for each in waiting])

    run(act)


@pytest.mark.threat("T-FLT-13", control="lane_caps")
def test_pending_tasks_are_limited_for_each_home(fleet):
    one, other = (fleet.create_home() for _ in range(2))
    full, free = (Lane(LedgerState(fleet.pool.home(name), KEY), name) for name in (one, other))
    for number in range(MAX_PENDING):
        full.submit(make_new_task(text=f"{number} cups of tea."))
    catch_error(QueueFull, full.submit, make_new_task(text="One more."))
    assert free.submit(make_new_task(text="Tea.")).task.status == "queued"


@pytest.mark.threat("T-FLT-07", control="home_shares")
@pytest.mark.parametrize("name", ["owner", "editor"])
def test_home_cannot_use_all_request_slots(name):
    shares, share = SlotShares(64, 1), Principal(name, Trust.OWNER, None, home="ana").share
    while len(shares) < 32:
        try:
            shares.acquire(share)
        except HttpProblem:
            break
    assert len(shares) > 0
    catch_error(HttpProblem, shares.acquire, share)
    shares.acquire(Principal(name, Trust.OWNER, None, home="bob").share)
    shares.acquire(Principal("owner", Trust.OWNER, None).share)


def test_home_in_use_gets_no_second_copy(fleet, run, monkeypatch):
    names = [fleet.create_home() for _ in range(2)]
    monkeypatch.setattr(at_node, "MAX_HOMES", 1)
    monkeypatch.setattr(at_node, "TIDY_SECONDS", 0.01)

    async def act(node):
        used, other = (node.home(name) for name in names)
        await used.run_in_context(used, lambda context, _: set(context.roots), can_write=False)
        await asyncio.to_thread(used.copy.close, Deadline(time.monotonic() + 30))
        await asyncio.to_thread(wait_until, lambda: len(node._homes) == 1)
        assert node.home(used.name) is used
        assert node.home(other.name) is other

    run(act)


def test_stale_nodes_and_copies_of_earlier_runs_are_removed(fleet, tmp_path):
    left = tmp_path / "state" / "copies" / "left"
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as owner:
        owner.execute("INSERT INTO node (name, version, slots, seen) VALUES ('old', '0', 1, '2000-01-01')")

    async def act():
        async with open_node(fleet, tmp_path, left):
            await asyncio.to_thread(wait_until, lambda: not left.exists() and list_nodes(fleet) == {"one"})

    asyncio.run(act())


def list_nodes(fleet):
    with fleet.pool.connection() as connection:
        return {name for (name,) in connection.execute("SELECT name FROM node").fetchall()} & {"one", "old"}


def test_failed_background_work_does_not_end_node(fleet, run, monkeypatch):
    name, times = fleet.create_home(), []

    def fail(home):
        times.append(home)
        raise RuntimeError("broken")

    async def act(node):
        monkeypatch.setattr(HomeCore, "renew_lease", fail)
        node.home(name)
        await asyncio.to_thread(wait_until, lambda: len(times) > 1)

    run(act, lease=0.05)


def test_stale_copy_is_deleted_after_lost_lease(fleet, run, monkeypatch):
    name = fleet.create_home()
    monkeypatch.setattr(at_node, "TIDY_SECONDS", 0.01)

    async def act(node):
        copy = node.home(name).copy

        def lose_lease():
            with (
                copy.open_for_writing(Deadline(time.monotonic() + 30)),
                fleet.pool.home(name).transaction() as home,
            ):
                home.execute("UPDATE home SET epoch = epoch + 1, until = '-infinity'")

        await asyncio.to_thread(lose_lease)
        await asyncio.to_thread(wait_until, lambda: not copy.directory.exists())

    run(act)
