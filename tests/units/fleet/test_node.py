"""What a node of a fleet tells apart, and what it goes on with while its database does not answer."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from kit.fleet.homes import KEY
from kit.lane.ledgered import asked
from kit.raising import raised
from muniment.agent.filing import RuleWriter
from muniment.daemon.contract import HttpProblem
from muniment.daemon.tokens import TOKEN_NAME, Principal, Shares
from muniment.errors import QueueFull
from muniment.fleet import homes
from muniment.fleet.node import FleetNode, NodeOptions
from muniment.kernel.names import Trust
from muniment.lane import MAX_PENDING, Lane, Originator
from muniment.settings import Settings
from muniment.store.state import LedgerState

UNKNOWN = "u" * 43


@asynccontextmanager
async def opened(fleet, directory):
    """A node over a base."""
    state = directory / "state"
    state.mkdir(mode=0o700)
    (state / "audit.key").write_bytes(KEY)
    (state / "audit.key").chmod(0o600)
    node = FleetNode(Settings(directory), RuleWriter(), NodeOptions(fleet.node, "one"))
    await node.open(())
    try:
        yield node
        await node.stop(0)
    finally:
        await node.close()


@pytest.fixture
def run(fleet, tmp_path):
    """Carries out what is done at a node."""

    def done(act):
        async def at_a_node():
            async with opened(fleet, tmp_path) as node:
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
