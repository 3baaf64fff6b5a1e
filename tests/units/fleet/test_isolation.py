"""Homes are apart: with another one's name, ids, keys, tokens, numbers nothing is read and nothing written.

Of two homes each has rows in every table. The one who asks has the other's key, too: so nothing but the
server keeps them apart, and no digest that differs hides a row that could be read.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import sql

from kit.fleet.engines import rows_of
from kit.fleet.homes import KEY
from kit.raising import raised
from kit.server.ledgered import DONE, OWNER, asked, submit
from kit.store.ground import STRICT, Claim, Ground, by, change_set, laid_out, new, patience, trusted
from muniment.errors import ManagedMemoryUnavailable, NotFound
from muniment.fleet import homes, schema
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.tokens import Tokens
from muniment.store import audit, erase, ledger, review, tasks, told
from muniment.store.passages import read_authorship
from muniment.store.state import Shared, State
from muniment.store.tasks import QueuedTask
from muniment.store.told import HookSession
from muniment.store.trust import constant
from muniment.types.keys import EntryKey

GONE = b"What nobody remembers any more"
NOW = datetime(2026, 11, 26, tzinfo=UTC)
OF_NO_HOME = {"node", "door", "migration", "fleet"}
"""Tables of all homes, beside the queue's: of them a node reads no `door`, and writes `node` alone."""

DEFINERS = {
    "home_of",
    "follow_token",
    "waiting_homes",
    "count_tasks",
    "count_homes",
    "hello_of",
    "stale_copies",
}
"""Functions that act as the owner of the tables."""


ON_TOKENS = """
    CREATE TEMP TABLE mine (digest TEXT, home TEXT);
    CREATE TRIGGER mine AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION muniment.follow_token();
"""


@dataclass(frozen=True)
class Home:
    """A home with rows in every table.

    Attributes:
        running: its task that runs.
        token: of a client.
    """

    name: str
    ground: Ground
    running: QueuedTask
    repeat: str
    review: str
    token: str

    @property
    def state(self):
        return self.ground.state

    @property
    def lane(self):
        return Lane(self.state, "w")

    def rows(self):
        """All that stands in its rows, as its own nodes see it."""
        return sorted(rows_of(self.state))


@contextmanager
def filled(fleet, base, own):
    """A home of a fleet with files of its own, and rows in every table."""
    name = fleet.new_home()

    @contextmanager
    def opening(directory):
        with State(directory, shared=Shared(fleet.pool.home(name), homes.key_of(KEY, name), base)) as state:
            yield state

    base.mkdir()
    with laid_out(base, opening) as ground:
        ground.commit(new("user/gone.md", GONE), run=by("task-0", fact="f" * 64))
        erase.erase("user/gone.md", erase.EraseGround(ground.state, ground.roots, STRICT, patience()))
        ground.commit(new("user/n.md", own.encode()), run=by("task-1"))
        low, trust = f"{own} again and again".encode(), constant(Trust.AGENT)
        ground.commit(new("user/low.md", low), run=by("task-1b"), trust=trust)
        lane = Lane(ground.state, "w")
        submit(lane, text=own, repeat="key")
        ((repeat,),) = ground.state.ledger.rows("SELECT repeat FROM task")
        lane.finish(lane.claim(), DONE)
        submit(lane, text=own)
        running = lane.claim()
        whole = trusted(
            change_set((new("user/w.md"),), (Claim("user/a.md", None),)), {"user/w.md": Trust.AGENT}
        )
        held = review.hold(ground.state, by("task-2"), whole, ("why",), policy="a" * 64, roots=ground.roots)
        token = Tokens(ground.state).add("editor", ["editor-1"], Trust.AGENT)
        HookSession(ground.state, "host").tell([EntryKey("root", "n.md", "d")], NOW)
        yield Home(name, ground, running, repeat, held, token)


@pytest.fixture(scope="module")
def both(fleet, tmp_path_factory):
    base = tmp_path_factory.mktemp("homes")
    with (
        filled(fleet, base / "one", "the one drinks green tea") as one,
        filled(fleet, base / "two", "other") as two,
    ):
        yield one, two


@pytest.fixture
def theirs(both):
    """The other's home: as it was before, whatever the test does."""
    one, _ = both
    before = one.rows()
    yield one
    assert one.rows() == before
    assert audit.verify(one.state).problems == ()


@pytest.fixture
def mine(both, theirs):
    """The home of who asks."""
    del theirs
    return both[1]


@pytest.fixture(scope="module")
def tables(fleet):
    """The tables that belong to homes, by what the server itself says."""
    with psycopg.connect(fleet.superuser) as connection:
        found = connection.execute(
            "SELECT table_name::text, bool_or(column_name = 'home') FROM information_schema.columns "
            "JOIN information_schema.tables USING (table_schema, table_name) "
            "WHERE table_schema = 'muniment' AND table_type = 'BASE TABLE' GROUP BY table_name"
        ).fetchall()
    return {table: has_home for table, has_home in found if not table.startswith("procrastinate")}


# -- What the server itself says -----------------------------------------------------------------------


def test_every_table_of_the_schema_is_kept_apart_by_home_or_is_known_to_belong_to_none(fleet, tables):
    """A table that comes later belongs to homes, and is forced to be kept apart, or is named above."""
    with psycopg.connect(fleet.superuser) as connection:
        forced = {
            table
            for (table,) in connection.execute(
                "SELECT relname::text FROM pg_class WHERE relnamespace = 'muniment'::regnamespace "
                "AND relkind IN ('r', 'p') AND relrowsecurity AND relforcerowsecurity"
            )
        }
        own = "(home = current_setting('muniment.home'::text, true))"
        policies = set(
            connection.execute(
                "SELECT tablename::text, qual, with_check FROM pg_policies "
                "WHERE schemaname = 'muniment' AND 'public' = ANY(roles) AND cmd = 'ALL'"
            )
        )
        others = connection.execute(
            "SELECT count(*) FROM pg_policies WHERE schemaname = 'muniment' AND policyname <> 'own' "
            "AND (roles && ARRAY['public', %s]::name[])",
            (schema.ROLE,),
        ).fetchone()
    assert set(tables) - forced == OF_NO_HOME
    assert forced == {table for table, has_home in tables.items() if has_home} - OF_NO_HOME
    assert policies == {(table, own, own) for table in forced}
    assert others == (0,)


@pytest.mark.threat("T-FLT-01", control="invokers_views")
def test_every_view_sees_what_who_asks_may_see_and_what_acts_as_the_owner_is_known(fleet):
    with psycopg.connect(fleet.superuser) as connection:
        views = connection.execute(
            "SELECT relname::text, reloptions FROM pg_class WHERE relnamespace = 'muniment'::regnamespace "
            "AND relkind IN ('v', 'm') AND relname NOT LIKE 'procrastinate%'"
        ).fetchall()
        functions = connection.execute(
            "SELECT proname::text, proconfig, has_function_privilege(%s, oid, 'EXECUTE') FROM pg_proc "
            "WHERE pronamespace = 'muniment'::regnamespace AND prosecdef",
            (schema.ROLE,),
        ).fetchall()
    assert {name for name, _ in views} == {"change", "step", "source"}
    assert all("security_invoker=true" in options for _, options in views)
    assert {name for name, _, _ in functions} == DEFINERS
    assert all(config == ["search_path=muniment, pg_temp"] for _, config, _ in functions)
    # A node could have it act on a table of its own, and so upon every home's tokens.
    assert {name for name, _, may in functions if not may} == {"follow_token"}


@pytest.mark.threat("T-FLT-01", control="owners_functions")
def test_what_a_node_may_do_to_tables_of_all_homes_is_to_read_versions_and_to_write_that_it_lives(fleet):
    verbs = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
    may = {"node": verbs[:4], "door": (), "migration": ("SELECT",), "fleet": ("SELECT",), "home": ("SELECT",)}
    with psycopg.connect(fleet.node, options="-c search_path=muniment") as connection:
        for table, expected in may.items():
            asked = "SELECT has_table_privilege(%s, %s)"
            found = [verb for verb in verbs if connection.execute(asked, (table, verb)).fetchone()[0]]
            assert found == list(expected), table
        for statement in (
            "SELECT * FROM door",
            "INSERT INTO home (home) VALUES ('mine')",
            "DELETE FROM home",
            "UPDATE home SET home = 'mine'",
            "INSERT INTO migration VALUES ('muniment', '9999')",
            "UPDATE fleet SET mark = ''",
            "TRUNCATE task",
            "CREATE TABLE mine (number INTEGER)",
            "ALTER TABLE task DISABLE ROW LEVEL SECURITY",
            "DROP POLICY own ON task",
            "SET ROLE muniment_owner",
            ON_TOKENS,
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement)


# -- By raw SQL -----------------------------------------------------------------------------------------


@pytest.mark.threat("T-FLT-01", control="homes_apart")
def test_a_statement_that_names_no_home_is_of_the_home_of_its_transaction_alone(fleet):
    one, other = (fleet.pool.home(fleet.new_home()) for _ in range(2))
    for of in (one, other):
        with of.transaction() as connection:
            connection.execute("INSERT INTO forgotten (fact, at, task) VALUES (?, '2026', ?)", ("f", of.home))
    for of in (one, other):
        assert of.rows("SELECT task FROM forgotten") == [(of.home,)]
        assert of.rows("SELECT home FROM home") == [(of.home,)]
    with other.transaction() as connection:
        assert connection.execute("UPDATE forgotten SET at = '2027'").rowcount == 1
        assert connection.execute("DELETE FROM forgotten WHERE task = ?", (one.home,)).rowcount == 0
    assert one.rows("SELECT at FROM forgotten") == [("2026",)]


@contextmanager
def asking(fleet, home):
    """A connection of the pool, in a transaction of a home, or of none; nothing of it holds."""
    with fleet.pool.pool.connection() as connection, connection.transaction(force_rollback=True):
        if home is not None:
            connection.execute("SELECT set_config('muniment.home', %s, true)", (home.name,))
        yield connection


def refused(connection, statement, values=(), *errors):
    with pytest.raises((psycopg.errors.InsufficientPrivilege, *errors)), connection.transaction():
        connection.execute(statement, values)


@pytest.mark.threat("T-FLT-01", control="every_table")
def test_another_homes_rows_are_neither_read_nor_changed_nor_made_by_any_statement(
    fleet, mine, theirs, tables
):
    of_homes = sorted(set(tables) - OF_NO_HOME)
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as connection:
        row = "SELECT to_jsonb(it) FROM {} AS it WHERE home = %s LIMIT 1"
        found = {}
        for table in of_homes:
            asked = sql.SQL(row).format(sql.Identifier(table))
            found[table] = connection.execute(asked, (theirs.name,)).fetchone()
    assert [table for table, row in found.items() if row is None] == []
    for who in (mine, None):
        with asking(fleet, who) as connection:
            for table in of_homes:
                for which in (f"{table} WHERE home = %s", f"(SELECT * FROM {table}) AS it WHERE home = %s"):
                    assert connection.execute(f"SELECT * FROM {which}", (theirs.name,)).fetchall() == []
                seen = {home for (home,) in connection.execute(f"SELECT home FROM {table}")}
                assert seen == ({mine.name} if who else set()), table
                insert = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM jsonb_populate_record("
                made = (json.dumps(found[table][0]),)
                refused(connection, f"{insert}NULL::muniment.{table}, %s)", made)
                if table == "home":
                    assert (
                        connection.execute(
                            "UPDATE home SET epoch = 7 WHERE home = %s", (theirs.name,)
                        ).rowcount
                        == 0
                    )
                    continue
                for change in (f"UPDATE {table} SET home = home", f"DELETE FROM {table}"):
                    assert connection.execute(f"{change} WHERE home = %s", (theirs.name,)).rowcount == 0
                if who is not None:  # Nor are one's own put under another name.
                    refused(connection, f"UPDATE {table} SET home = %s", (theirs.name,))


def test_another_homes_rows_are_not_in_the_views_nor_written_by_them(fleet, mine, theirs):
    key, words = ledger.root_key(theirs.state, theirs.ground.roots["user"]), b"the one drinks green tea"
    for who in (mine, None):
        with asking(fleet, who) as connection:
            for view in ("change", "step", "source"):
                assert connection.execute(f"SELECT * FROM {view} WHERE root = %s", (key,)).fetchall() == []
                everything = str(connection.execute(f"SELECT * FROM {view}").fetchall())
                assert key not in everything
                assert words.decode() not in everything
            for statement in (
                "UPDATE change SET rel = 'x' WHERE root = %s",
                "DELETE FROM change WHERE root = %s",
            ):
                assert connection.execute(statement, (key,)).rowcount == 0
            (number,) = theirs.state.ledger.rows("SELECT id FROM change_set WHERE task = 'task-1'")[0]
            insert = (
                "INSERT INTO change (home, change_set, position, root, scope, rel, after, made) "
                "VALUES (%s, %s, 9, %s, 'user', 'x.md', %s, '[]')"
            )
            errors = (
                psycopg.errors.ForeignKeyViolation,
                psycopg.errors.UndefinedObject,
                psycopg.errors.CheckViolation,
            )
            refused(connection, insert, (theirs.name, number, key, words), *errors)


@pytest.mark.threat("T-FLT-06", control="whose_door")
def test_a_token_leads_to_its_home_and_tells_of_no_other(fleet, mine, theirs):
    with asking(fleet, mine) as connection:
        ((known,),) = theirs.state.ledger.rows("SELECT digest FROM token")
        assert connection.execute("SELECT home_of(%s)", (known,)).fetchall() == [(theirs.name,)]
        assert connection.execute("SELECT home_of(%s)", (known[:-1],)).fetchall() == [(None,)]
        assert connection.execute("SELECT * FROM token WHERE digest = %s", (known,)).fetchall() == []
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute("UPDATE token SET digest = %s", (known,))
        taken = connection.execute("UPDATE token SET digest = digest || 'x' RETURNING digest").fetchall()
        assert connection.execute("SELECT home_of(%s)", taken[0]).fetchall() == [(mine.name,)]
        assert connection.execute("SELECT home_of(%s)", (known,)).fetchall() == [(theirs.name,)]


# -- By the functions that take ids -------------------------------------------------------------------


def test_by_another_homes_ids_no_task_is_found_told_of_cancelled_or_ended(mine, theirs):
    ours, their, lane = mine.state.ledger, theirs.running, mine.lane
    assert theirs.lane.get(their.id) == their
    raised(NotFound, lane.get, their.id)
    raised(NotFound, lane.cancel, their.id, OWNER)
    assert (lane.finish(their, DONE), lane.requeue(their), lane.tell(their, {})) == (None, None, None)
    assert theirs.lane.submit(asked(text="the one drinks green tea", repeat="key")).repeated
    assert lane_tasks.find(ours, "w", their.id) is None
    assert [each.id for each in lane_tasks.tasks(ours, "w") if each.id == their.id] == []
    assert {each.id for each in lane_tasks.running(ours, "w")} == {mine.running.id}
    assert lane_tasks.count_pending(ours, "w") == {"remember": 1}
    assert tasks.clearing(mine.state, [their.id]) == ()
    held = [each for each in tasks.all_tasks(theirs.state) if each.id == their.id]
    tasks.clear(mine.state, held, "")
    assert their.id not in {each.id for each in tasks.all_tasks(mine.state)}


def test_a_key_that_another_home_has_used_is_free(mine, theirs):
    assert mine.repeat != theirs.repeat
    assert lane_tasks.find_repeated(mine.state.ledger, theirs.repeat) is None
    assert lane_tasks.find_repeated(theirs.state.ledger, theirs.repeat) is not None


def test_by_another_homes_numbers_no_event_and_no_record_is_read(mine, theirs):
    epoch, _, last = tasks.span(theirs.state.ledger)
    assert tasks.span(mine.state.ledger)[0] != epoch
    assert tasks.of_task(mine.state.ledger, theirs.running.id) == ()
    for number in range(last + 1):
        seen = tasks.read(mine.state.ledger, number, 1)
        assert [each for each in seen if each in tasks.read(theirs.state.ledger, number, 1)] == []
    assert audit.records(mine.state, task=theirs.running.id) == ()
    assert audit.head(mine.state) != audit.head(theirs.state)
    assert audit.verify(mine.state, kept=audit.head(theirs.state)).problems != ()
    assert audit.verify(mine.state).problems == ()


def test_by_another_homes_roots_and_tasks_no_history_is_read_and_no_commit_found_or_ended(mine, theirs):
    key, path = (
        ledger.root_key(theirs.state, theirs.ground.roots["user"]),
        canonicalise("user/n.md", ("user",)),
    )
    (kept,) = ledger.commits(theirs.state, "task = ?", ("task-1",))
    written = kept.changes[0].after_digest
    assert ledger.is_known(theirs.state, key, path.rel, written)
    ours = mine.state
    assert {run.run.task for run in ledger.commits(ours, "id = ?", (kept.id,))} == set()
    assert ledger.of_task(ours, theirs.running.id) is None
    assert (ledger.unfinished(ours, [key]), ledger.history(ours, {key: "user"})) == ((), ())
    assert ledger.count_by_day(ours, {key: "user"}, "2000") == ()
    assert ledger.source_of(ours, key, path.rel, written) is None
    for state, trust in ((ours, Trust.OWNER), (theirs.state, Trust.AGENT)):
        low = b"The one drinks green tea, again and again"
        assert read_authorship(state, key, "m.md", low, Trust.OWNER).trust is trust
    assert not ledger.is_known(ours, key, path.rel, written)
    for read in (ledger.content_at, ledger.content_before):
        raised(NotFound, read, ours, key, path, "task-1")
    raised(NotFound, ledger.why, ours, key, path, None, Trust.OWNER)
    raised(ManagedMemoryUnavailable, ledger.finish, ours, replace(kept, done="2027"))
    change = kept.changes[0]._replace(
        position=9, change=replace(kept.changes[0].change, path=CanonicalPath("user", "z.md"))
    )
    raised(ManagedMemoryUnavailable, ledger.begin, ours, replace(kept, changes=(change,)))
    ledger.abandon(ours, kept.id)


def test_by_another_homes_reviews_nothing_is_decided(mine, theirs):
    ours, key = mine.state, theirs.review
    assert review.load(theirs.state, key).id == key
    raised(NotFound, review.load, ours, key)
    raised(NotFound, review.turn_down, ours, key, mine.ground.roots, patience(), "2027")
    assert key not in {each.id for each in review.pending(ours)}
    assert {each.id for each in (review.waiting_of(ours, "task-2"),)} == {mine.review}
    review.close(ours, key, "approved", "2027")
    assert review.load(theirs.state, key).id == key


def test_what_another_home_erased_or_told_a_session_is_not_known_and_not_let_go(mine, theirs):
    ((fact,),) = mine.state.ledger.rows("SELECT fact FROM forgotten WHERE fact <> ?", ("f" * 64,))
    with mine.state.ledger.transaction() as connection:
        assert connection.execute("DELETE FROM forgotten WHERE fact = ?", (fact,)).rowcount == 1
    assert erase.is_forgotten(theirs.state, GONE.decode())
    assert not erase.is_forgotten(mine.state, GONE.decode())
    where = erase.EraseGround(mine.state, mine.ground.roots, STRICT, patience())
    raised(NotFound, erase.erase, theirs.running.id, where)
    session = HookSession(mine.state, "only theirs")
    HookSession(theirs.state, "only theirs").tell([EntryKey("root", "x.md", "d")], NOW)
    assert session.told(NOW, patience()) == ()
    session.clear()
    assert HookSession(theirs.state, "only theirs").told(NOW, patience()) != ()
    HookSession(theirs.state, "only theirs").clear()
    HookSession(mine.state, "mine").tell([EntryKey("root", "x.md", "d")], NOW)
    assert HookSession(theirs.state, "mine").told(NOW, patience()) == ()


def test_another_homes_token_is_nobodys_here_and_no_name_revokes_it(mine, theirs):
    known, sent = Tokens(mine.state), theirs.token
    assert Tokens(theirs.state).principal(sent, "o" * 43).name == "editor"
    assert known.principal(sent, "o" * 43) is None
    assert [each.digest for each in known.all()] != [each.digest for each in Tokens(theirs.state).all()]
    known.revoke("editor")
    assert Tokens(theirs.state).principal(sent, "o" * 43) is not None
    known.add("editor", ["editor-1"], Trust.AGENT)


@pytest.mark.threat("T-FLT-12", control="home_keys")
def test_records_are_false_by_another_homes_key(fleet, tmp_path):
    name = fleet.new_home()
    keys = homes.key_of(KEY, name), homes.key_of(KEY, f"{name}0")
    found = []
    for key in keys:
        with State(None, shared=Shared(fleet.pool.home(name), key, tmp_path)) as state:
            if key == keys[0]:
                for _ in range(5):
                    audit.append(state, "", "kind", None, {})
            found.append(len(audit.verify(state).problems))
    assert found == [0, 11]


def test_letting_go_of_all_that_sessions_were_told_leaves_those_of_other_homes(mine, theirs):
    told.forget_all(mine.state)
    assert HookSession(theirs.state, "host").told(NOW, patience()) != ()
    HookSession(mine.state, "host").tell([EntryKey("root", "n.md", "d")], NOW)
