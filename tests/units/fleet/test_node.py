"""What a node of a fleet tells apart, and what it goes on with while its database does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from kit.fleet.homes import KEY
from kit.fleet.pair import until
from kit.raising import raised
from kit.server.ledgered import asked
from muniment.agent.filing import RuleWriter
from muniment.errors import QueueFull
from muniment.fleet import homes
from muniment.fleet import node as at_node
from muniment.fleet.home import HomeCore
from muniment.fleet.node import FleetNode, NodeOptions
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Trust
from muniment.server.contract import HttpProblem
from muniment.server.lane import MAX_PENDING, Lane
from muniment.server.tokens import TOKEN_NAME, Principal, Shares
from muniment.settings import Settings
from muniment.store.state import LedgerState
from muniment.store.tasks import Originator

UNKNOWN = "u" * 43


@asynccontextmanager
async def opened(fleet, directory, left=None, lease=15.0):
    """A node over a base; perhaps with what a run before it has left."""
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
    """Carries out what is done at a node."""

    def done(act, **more):
        async def at_a_node():
            async with opened(fleet, tmp_path, **more) as node:
                await act(node)

        asyncio.run(at_a_node())

    return done


@pytest.mark.threat("T-FLT-06", control="served_homes")
def test_a_token_is_of_one_home_and_the_nodes_own_of_the_node_alone(fleet, run, tmp_path):
    names = [fleet.new_home() for _ in range(2)]
    tokens = [homes.add_token(fleet.owner, KEY, name) for name in names]
    editor = homes.add_token(fleet.owner, KEY, names[0], "editor", ["editor-1"], Trust.AGENT)

    async def act(node):
        for name, token in zip(names, tokens, strict=True):
            principal = await node.whose(token)
            assert (principal.home, principal.name) == (name, "owner")
            assert node.of(principal) is not node
            assert node.of(principal).name == name
        of_editor = await node.whose(editor)
        assert (of_editor.home, of_editor.name, of_editor.trust) == (names[0], "editor", Trust.AGENT)
        assert node.of(of_editor) is node.of(await node.whose(tokens[0]))
        operator = await node.whose((tmp_path / "state" / TOKEN_NAME).read_text("ascii").strip())
        assert (operator.home, node.of(operator)) == ("", node)
        assert await node.whose(UNKNOWN) is None
        homes.revoke_token(fleet.owner, KEY, names[0], "editor")
        assert await node.whose(editor) is None

    run(act)


@pytest.mark.threat("T-FLT-15", control="asked_in_threads")
def test_no_question_is_put_to_the_database_on_the_loop(fleet, run, monkeypatch):
    name, threads, real = fleet.new_home(), set(), ConnectionPool.getconn
    token = homes.add_token(fleet.owner, KEY, name)

    def noting(pool, timeout=None):
        threads.add(threading.get_ident())
        return real(pool, timeout)

    async def act(node):
        monkeypatch.setattr(ConnectionPool, "getconn", noting)
        principal = await node.whose(token)
        home = node.of(principal)
        task = (await home.submit(home, asked(text="The user likes tea."))).task
        assert (await home.find(home, task.id)).id == task.id
        assert await home.tasks(home, before=None)
        assert [each.name for each in await home.known()] == ["owner"]
        assert await home.still_knows(principal)
        assert (await home.cancel(home, task.id, Originator("owner"))).is_over
        assert await home.at(home, lambda place, _: set(place.roots), writes=False)
        assert await node.problems() == {"one": None}
        assert threads
        assert threading.get_ident() not in threads

    run(act)


def test_the_loop_goes_on_while_the_database_keeps_a_home_waiting(fleet, run):
    name, other = (fleet.new_home() for _ in range(2))

    async def act(node):
        with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as owner:
            owner.execute("SELECT FROM home WHERE home = %s FOR UPDATE", (name,))
            waiting = asyncio.ensure_future(node.home(name).submit(node.home(name), asked(text="Tea.")))
            await asyncio.sleep(0)  # It has begun.
            told = await node.home(other).submit(node.home(other), asked(text="Tea."))
            assert not told.repeated
            assert not waiting.done()
            owner.rollback()
        assert not (await waiting).repeated

    run(act)


def test_a_home_whose_row_is_kept_busy_keeps_no_other_one_waiting(fleet, run):
    name, other = (fleet.new_home() for _ in range(2))

    async def act(node):
        with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as owner:
            owner.execute("SELECT FROM home WHERE home = %s FOR UPDATE", (name,))
            home = node.home(name)
            waiting = [
                asyncio.ensure_future(home.submit(home, asked(text=f"{n} cups."))) for n in range(MAX_PENDING)
            ]
            await asyncio.sleep(0)  # They have begun.
            told = await asyncio.wait_for(node.home(other).submit(node.home(other), asked(text="Tea.")), 20)
            assert not told.repeated
            owner.rollback()
        assert not any([(await each).repeated for each in waiting])

    run(act)


@pytest.mark.threat("T-FLT-13", control="lane_caps")
def test_a_home_has_so_many_tasks_waiting_and_no_more_and_no_other_has_less_for_it(fleet):
    one, other = (fleet.new_home() for _ in range(2))
    full, free = (Lane(LedgerState(fleet.pool.home(name), KEY), name) for name in (one, other))
    for number in range(MAX_PENDING):
        full.submit(asked(text=f"{number} cups of tea."))
    raised(QueueFull, full.submit, asked(text="One more."))
    assert free.submit(asked(text="Tea.")).task.status == "queued"


@pytest.mark.threat("T-FLT-07", control="home_shares")
@pytest.mark.parametrize("name", ["owner", "editor"])
def test_no_token_of_a_home_takes_all_places_nor_those_of_the_nodes_operator(name):
    shares, share = Shares(64, 1), Principal(name, Trust.OWNER, None, home="ana").share
    while len(shares) < 32:
        try:
            shares.take(share)
        except HttpProblem:
            break
    assert len(shares) > 0
    raised(HttpProblem, shares.take, share)
    shares.take(Principal(name, Trust.OWNER, None, home="bob").share)
    shares.take(Principal("owner", Trust.OWNER, None).share)


def test_a_home_that_is_dropped_while_somebody_uses_it_has_no_second_copy(fleet, run, monkeypatch):
    names = [fleet.new_home() for _ in range(2)]
    monkeypatch.setattr(at_node, "MAX_HOMES", 1)
    monkeypatch.setattr(at_node, "TIDY_SECONDS", 0.01)

    async def act(node):
        used, other = (node.home(name) for name in names)
        await used.at(used, lambda place, _: set(place.roots), writes=False)
        await asyncio.to_thread(used.copy.close, Patience(time.monotonic() + 30))
        await asyncio.to_thread(until, lambda: len(node._homes) == 1)
        assert node.home(used.name) is used
        assert node.home(other.name) is other

    run(act)


def test_nodes_that_are_gone_for_long_are_forgotten_and_copies_of_another_run_deleted(fleet, tmp_path):
    left = tmp_path / "state" / "copies" / "left"
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as owner:
        owner.execute("INSERT INTO node (name, version, slots, seen) VALUES ('old', '0', 1, '2000-01-01')")

    async def act():
        async with opened(fleet, tmp_path, left):
            await asyncio.to_thread(until, lambda: not left.exists() and known_nodes(fleet) == {"one"})

    asyncio.run(act())


def known_nodes(fleet):
    with fleet.pool.connection() as connection:
        return {name for (name,) in connection.execute("SELECT name FROM node").fetchall()} & {"one", "old"}


def test_what_fails_beside_a_node_does_not_end_it(fleet, run, monkeypatch):
    name, times = fleet.new_home(), []

    def broken(home):
        times.append(home)
        raise RuntimeError("broken")

    async def act(node):
        monkeypatch.setattr(HomeCore, "renew", broken)
        node.home(name)
        await asyncio.to_thread(until, lambda: len(times) > 1)

    run(act, lease=0.05)


def test_a_copy_that_may_hold_what_was_erased_meanwhile_is_deleted_unasked(fleet, run, monkeypatch):
    name = fleet.new_home()
    monkeypatch.setattr(at_node, "TIDY_SECONDS", 0.01)

    async def act(node):
        copy = node.home(name).copy

        def lost():
            with copy.holding(Patience(time.monotonic() + 30)), fleet.pool.home(name).transaction() as home:
                home.execute("UPDATE home SET epoch = epoch + 1, until = '-infinity'")

        await asyncio.to_thread(lost)
        await asyncio.to_thread(until, lambda: not copy.directory.exists())

    run(act)
