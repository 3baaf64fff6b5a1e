"""Homes are isolated: names, ids, keys, tokens and numbers of another home read and write nothing.

Both homes have rows in every table. The reading home also has the key of the other one, so only the
server separates them, and no different digest hides a row that could be read.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import sql

from kit.catching import catch_error
from kit.fleet.engines import read_rows
from kit.fleet.homes import KEY
from kit.server.lanes import DONE, OWNER, make_new_task, submit_task
from kit.store.bench import (
    STRICT,
    Claim,
    StoreBench,
    assign_trust,
    create_store_bench,
    make_change_set,
    make_deadline,
    make_run,
    propose_new,
)
from muniment.errors import ManagedMemoryUnavailable, NotFound
from muniment.fleet import homes, schema
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.tokens import Tokens
from muniment.store import audit, erase, injected, ledger, review, tasks
from muniment.store.injected import HookSession
from muniment.store.passages import read_text_trust
from muniment.store.state import SharedLedger, State
from muniment.store.tasks import QueuedTask
from muniment.store.trust import build_constant_rule
from muniment.types.keys import EntryKey

ERASED_TEXT = b"What nobody remembers any more"
NOW = datetime(2026, 11, 26, tzinfo=UTC)
SHARED_TABLES = {"node", "door", "migration", "fleet"}
"""Tables of all homes, in addition to the tables of the queue; a node reads no `door` and writes only `node`.
"""

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


CREATE_TOKEN_TRIGGER = """
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
    ground: StoreBench
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
        """Return all rows of the home, as its own nodes see them."""
        return sorted(read_rows(self.state))


@contextmanager
def create_home(fleet, base, own):
    """Create a home with its own files and rows in every table."""
    name = fleet.create_home()

    @contextmanager
    def open_state(directory):
        with State(
            directory, shared=SharedLedger(fleet.pool.home(name), homes.derive_home_key(KEY, name), base)
        ) as state:
            yield state

    base.mkdir()
    with create_store_bench(base, open_state) as ground:
        ground.commit(propose_new("user/gone.md", ERASED_TEXT), run=make_run("task-0", fact="f" * 64))
        erase.erase("user/gone.md", erase.EraseContext(ground.state, ground.roots, STRICT, make_deadline()))
        ground.commit(propose_new("user/n.md", own.encode()), run=make_run("task-1"))
        low, trust = f"{own} again and again".encode(), build_constant_rule(Trust.AGENT)
        ground.commit(propose_new("user/low.md", low), run=make_run("task-1b"), trust=trust)
        lane = Lane(ground.state, "w")
        submit_task(lane, text=own, repeat="key")
        ((repeat,),) = ground.state.ledger.rows("SELECT repeat FROM task")
        lane.finish(lane.claim(), DONE)
        submit_task(lane, text=own)
        running = lane.claim()
        whole = assign_trust(
            make_change_set((propose_new("user/w.md"),), (Claim("user/a.md", None),)),
            {"user/w.md": Trust.AGENT},
        )
        review_id = review.queue_for_review(
            ground.state, make_run("task-2"), whole, ("why",), policy="a" * 64, roots=ground.roots
        )
        token = Tokens(ground.state).add("editor", ["editor-1"], Trust.AGENT)
        HookSession(ground.state, "host").record_injected([EntryKey("root", "n.md", "d")], NOW)
        yield Home(name, ground, running, repeat, review_id, token)


@pytest.fixture(scope="module")
def two_homes(fleet, tmp_path_factory):
    base = tmp_path_factory.mktemp("homes")
    with (
        create_home(fleet, base / "one", "the one drinks green tea") as one,
        create_home(fleet, base / "two", "other") as two,
    ):
        yield one, two


@pytest.fixture
def other_home(two_homes):
    """Yield the other home; check that its rows stay unchanged."""
    one, _ = two_homes
    before = one.rows()
    yield one
    assert one.rows() == before
    assert audit.verify(one.state).problems == ()


@pytest.fixture
def own_home(two_homes, other_home):
    """Return the home that reads."""
    del other_home
    return two_homes[1]


@pytest.fixture(scope="module")
def tables(fleet):
    """Return the tables by name; the value is true if the table belongs to homes."""
    with psycopg.connect(fleet.superuser) as connection:
        found = connection.execute(
            "SELECT table_name::text, bool_or(column_name = 'home') FROM information_schema.columns "
            "JOIN information_schema.tables USING (table_schema, table_name) "
            "WHERE table_schema = 'muniment' AND table_type = 'BASE TABLE' GROUP BY table_name"
        ).fetchall()
    return {table: has_home for table, has_home in found if not table.startswith("procrastinate")}


# -- catalog of the server -------------------------------------------------------------------------------


def test_every_table_is_isolated_by_home_or_known_as_shared(fleet, tables):
    """Force every later table to be isolated by home or to be listed above."""
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
    assert set(tables) - forced == SHARED_TABLES
    assert forced == {table for table, has_home in tables.items() if has_home} - SHARED_TABLES
    assert policies == {(table, own, own) for table in forced}
    assert others == (0,)


@pytest.mark.threat("T-FLT-01", control="invokers_views")
def test_views_use_invoker_rights_and_definers_are_known(fleet):
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
    # Otherwise a node could run it on its own table, and so on the tokens of every home.
    assert {name for name, _, may in functions if not may} == {"follow_token"}


@pytest.mark.threat("T-FLT-01", control="owners_functions")
def test_node_role_has_minimal_rights_on_shared_tables(fleet):
    verbs = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
    may = {"node": verbs[:4], "door": (), "migration": ("SELECT",), "fleet": ("SELECT",), "home": ("SELECT",)}
    with psycopg.connect(fleet.node, options="-c search_path=muniment") as connection:
        for table, expected in may.items():
            query = "SELECT has_table_privilege(%s, %s)"
            found = [verb for verb in verbs if connection.execute(query, (table, verb)).fetchone()[0]]
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
            CREATE_TOKEN_TRIGGER,
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement)


# -- raw SQL ---------------------------------------------------------------------------------------------


@pytest.mark.threat("T-FLT-01", control="homes_apart")
def test_statement_affects_only_home_of_its_transaction(fleet):
    one, other = (fleet.pool.home(fleet.create_home()) for _ in range(2))
    for home in (one, other):
        with home.transaction() as connection:
            connection.execute(
                "INSERT INTO forgotten (fact, at, task) VALUES (?, '2026', ?)", ("f", home.home)
            )
    for home in (one, other):
        assert home.rows("SELECT task FROM forgotten") == [(home.home,)]
        assert home.rows("SELECT home FROM home") == [(home.home,)]
    with other.transaction() as connection:
        assert connection.execute("UPDATE forgotten SET at = '2027'").rowcount == 1
        assert connection.execute("DELETE FROM forgotten WHERE task = ?", (one.home,)).rowcount == 0
    assert one.rows("SELECT at FROM forgotten") == [("2026",)]


@contextmanager
def open_transaction(fleet, home):
    """Yield a connection in a transaction of a home, or of no home, which is rolled back."""
    with fleet.pool.pool.connection() as connection, connection.transaction(force_rollback=True):
        if home is not None:
            connection.execute("SELECT set_config('muniment.home', %s, true)", (home.name,))
        yield connection


def assert_denied(connection, statement, values=(), *errors):
    with pytest.raises((psycopg.errors.InsufficientPrivilege, *errors)), connection.transaction():
        connection.execute(statement, values)


@pytest.mark.threat("T-FLT-01", control="every_table")
def test_other_home_rows_cannot_be_read_changed_or_created(fleet, own_home, other_home, tables):
    home_tables = sorted(set(tables) - SHARED_TABLES)
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as connection:
        row = "SELECT to_jsonb(it) FROM {} AS it WHERE home = %s LIMIT 1"
        found = {}
        for table in home_tables:
            query = sql.SQL(row).format(sql.Identifier(table))
            found[table] = connection.execute(query, (other_home.name,)).fetchone()
    assert [table for table, row in found.items() if row is None] == []
    for home in (own_home, None):
        with open_transaction(fleet, home) as connection:
            for table in home_tables:
                for source in (f"{table} WHERE home = %s", f"(SELECT * FROM {table}) AS it WHERE home = %s"):
                    assert connection.execute(f"SELECT * FROM {source}", (other_home.name,)).fetchall() == []
                seen = {other for (other,) in connection.execute(f"SELECT home FROM {table}")}
                assert seen == ({own_home.name} if home else set()), table
                insert = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM jsonb_populate_record("
                row_values = (json.dumps(found[table][0]),)
                assert_denied(connection, f"{insert}NULL::muniment.{table}, %s)", row_values)
                if table == "home":
                    assert (
                        connection.execute(
                            "UPDATE home SET epoch = 7 WHERE home = %s", (other_home.name,)
                        ).rowcount
                        == 0
                    )
                    continue
                for change in (f"UPDATE {table} SET home = home", f"DELETE FROM {table}"):
                    assert connection.execute(f"{change} WHERE home = %s", (other_home.name,)).rowcount == 0
                if home is not None:  # Rows cannot be moved to another home either.
                    assert_denied(connection, f"UPDATE {table} SET home = %s", (other_home.name,))


def test_other_home_rows_are_not_in_views_nor_writable(fleet, own_home, other_home):
    key, text = (
        ledger.get_root_key(other_home.state, other_home.ground.roots["user"]),
        b"the one drinks green tea",
    )
    for home in (own_home, None):
        with open_transaction(fleet, home) as connection:
            for view in ("change", "step", "source"):
                assert connection.execute(f"SELECT * FROM {view} WHERE root = %s", (key,)).fetchall() == []
                all_rows = str(connection.execute(f"SELECT * FROM {view}").fetchall())
                assert key not in all_rows
                assert text.decode() not in all_rows
            for statement in (
                "UPDATE change SET rel = 'x' WHERE root = %s",
                "DELETE FROM change WHERE root = %s",
            ):
                assert connection.execute(statement, (key,)).rowcount == 0
            (number,) = other_home.state.ledger.rows("SELECT id FROM change_set WHERE task = 'task-1'")[0]
            insert = (
                "INSERT INTO change (home, change_set, position, root, scope, rel, after, made) "
                "VALUES (%s, %s, 9, %s, 'user', 'x.md', %s, '[]')"
            )
            errors = (
                psycopg.errors.ForeignKeyViolation,
                psycopg.errors.UndefinedObject,
                psycopg.errors.CheckViolation,
            )
            assert_denied(connection, insert, (other_home.name, number, key, text), *errors)


@pytest.mark.threat("T-FLT-06", control="token_homes")
def test_token_resolves_only_to_its_own_home(fleet, own_home, other_home):
    with open_transaction(fleet, own_home) as connection:
        ((known,),) = other_home.state.ledger.rows("SELECT digest FROM token")
        assert connection.execute("SELECT home_of(%s)", (known,)).fetchall() == [(other_home.name,)]
        assert connection.execute("SELECT home_of(%s)", (known[:-1],)).fetchall() == [(None,)]
        assert connection.execute("SELECT * FROM token WHERE digest = %s", (known,)).fetchall() == []
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute("UPDATE token SET digest = %s", (known,))
        changed_digests = connection.execute(
            "UPDATE token SET digest = digest || 'x' RETURNING digest"
        ).fetchall()
        assert connection.execute("SELECT home_of(%s)", changed_digests[0]).fetchall() == [(own_home.name,)]
        assert connection.execute("SELECT home_of(%s)", (known,)).fetchall() == [(other_home.name,)]


# -- functions with ids ----------------------------------------------------------------------------------


def test_other_home_task_ids_find_and_change_nothing(own_home, other_home):
    own_ledger, other_task, lane = own_home.state.ledger, other_home.running, own_home.lane
    assert other_home.lane.get(other_task.id) == other_task
    catch_error(NotFound, lane.get, other_task.id)
    catch_error(NotFound, lane.cancel, other_task.id, OWNER)
    assert (lane.finish(other_task, DONE), lane.requeue(other_task), lane.add_event(other_task, {})) == (
        None,
        None,
        None,
    )
    assert other_home.lane.submit(make_new_task(text="the one drinks green tea", repeat="key")).is_repeated
    assert lane_tasks.find_task(own_ledger, "w", other_task.id) is None
    assert [each.id for each in lane_tasks.list_tasks(own_ledger, "w") if each.id == other_task.id] == []
    assert {each.id for each in lane_tasks.list_running(own_ledger, "w")} == {own_home.running.id}
    assert lane_tasks.count_pending(own_ledger, "w") == {"remember": 1}
    assert tasks.select_uncleared(own_home.state, [other_task.id]) == ()
    other_tasks = [each for each in tasks.list_tasks(other_home.state) if each.id == other_task.id]
    tasks.clear_tasks(own_home.state, other_tasks, "")
    assert other_task.id not in {each.id for each in tasks.list_tasks(own_home.state)}


def test_repeat_key_of_other_home_is_unused_here(own_home, other_home):
    assert own_home.repeat != other_home.repeat
    assert lane_tasks.find_by_key(own_home.state.ledger, other_home.repeat) is None
    assert lane_tasks.find_by_key(other_home.state.ledger, other_home.repeat) is not None


def test_other_home_event_and_record_numbers_read_nothing(own_home, other_home):
    epoch, _, last = tasks.read_range(other_home.state.ledger)
    assert tasks.read_range(own_home.state.ledger)[0] != epoch
    assert tasks.read_task_events(own_home.state.ledger, other_home.running.id) == ()
    for number in range(last + 1):
        seen = tasks.read_events(own_home.state.ledger, number, 1)
        assert [each for each in seen if each in tasks.read_events(other_home.state.ledger, number, 1)] == []
    assert audit.read_records(own_home.state, task=other_home.running.id) == ()
    assert audit.read_head(own_home.state) != audit.read_head(other_home.state)
    assert audit.verify(own_home.state, expected_head=audit.read_head(other_home.state)).problems != ()
    assert audit.verify(own_home.state).problems == ()


def test_other_home_roots_and_commits_find_and_end_nothing(own_home, other_home):
    key, path = (
        ledger.get_root_key(other_home.state, other_home.ground.roots["user"]),
        canonicalise("user/n.md", ("user",)),
    )
    (other_commit,) = ledger.read_commits(other_home.state, "task = ?", ("task-1",))
    written = other_commit.changes[0].after_digest
    assert ledger.is_known(other_home.state, key, path.rel, written)
    own_state = own_home.state
    assert {run.run.task for run in ledger.read_commits(own_state, "id = ?", (other_commit.id,))} == set()
    assert ledger.find_commit(own_state, other_home.running.id) is None
    assert (ledger.list_unfinished(own_state, [key]), ledger.read_history(own_state, {key: "user"})) == (
        (),
        (),
    )
    assert ledger.count_by_day(own_state, {key: "user"}, "2000") == ()
    assert ledger.find_source(own_state, key, path.rel, written) is None
    for state, trust in ((own_state, Trust.OWNER), (other_home.state, Trust.AGENT)):
        low = b"The one drinks green tea, again and again"
        assert read_text_trust(state, key, "m.md", low, Trust.OWNER).trust is trust
    assert not ledger.is_known(own_state, key, path.rel, written)
    for read in (ledger.read_content_after, ledger.read_content_before):
        catch_error(NotFound, read, own_state, key, path, "task-1")
    catch_error(NotFound, ledger.explain_origin, own_state, key, path, None, Trust.OWNER)
    catch_error(ManagedMemoryUnavailable, ledger.finish, own_state, replace(other_commit, done="2027"))
    change = other_commit.changes[0]._replace(
        position=9, change=replace(other_commit.changes[0].change, path=CanonicalPath("user", "z.md"))
    )
    catch_error(ManagedMemoryUnavailable, ledger.begin, own_state, replace(other_commit, changes=(change,)))
    ledger.abandon(own_state, other_commit.id)


def test_other_home_review_cannot_be_decided(own_home, other_home):
    own_state, key = own_home.state, other_home.review
    assert review.load_pending(other_home.state, key).id == key
    catch_error(NotFound, review.load_pending, own_state, key)
    catch_error(
        NotFound, review.reject_pending, own_state, key, own_home.ground.roots, make_deadline(), "2027"
    )
    assert key not in {each.id for each in review.read_pending(own_state)}
    assert {each.id for each in (review.find_pending(own_state, "task-2"),)} == {own_home.review}
    review.record_decision(own_state, key, "approved", "2027")
    assert review.load_pending(other_home.state, key).id == key


def test_erased_and_injected_entries_are_separate_by_home(own_home, other_home):
    ((fact,),) = own_home.state.ledger.rows("SELECT fact FROM forgotten WHERE fact <> ?", ("f" * 64,))
    with own_home.state.ledger.transaction() as connection:
        assert connection.execute("DELETE FROM forgotten WHERE fact = ?", (fact,)).rowcount == 1
    assert erase.is_erased_text(other_home.state, ERASED_TEXT.decode())
    assert not erase.is_erased_text(own_home.state, ERASED_TEXT.decode())
    where = erase.EraseContext(own_home.state, own_home.ground.roots, STRICT, make_deadline())
    catch_error(NotFound, erase.erase, other_home.running.id, where)
    session = HookSession(own_home.state, "only theirs")
    HookSession(other_home.state, "only theirs").record_injected([EntryKey("root", "x.md", "d")], NOW)
    assert session.read_injected(NOW, make_deadline()) == ()
    session.clear()
    assert HookSession(other_home.state, "only theirs").read_injected(NOW, make_deadline()) != ()
    HookSession(other_home.state, "only theirs").clear()
    HookSession(own_home.state, "mine").record_injected([EntryKey("root", "x.md", "d")], NOW)
    assert HookSession(other_home.state, "mine").read_injected(NOW, make_deadline()) == ()


def test_other_home_token_is_invalid_and_not_revoked_here(own_home, other_home):
    known, sent = Tokens(own_home.state), other_home.token
    assert Tokens(other_home.state).find_principal(sent, "o" * 43).name == "editor"
    assert known.find_principal(sent, "o" * 43) is None
    assert [each.digest for each in known.list_principals()] != [
        each.digest for each in Tokens(other_home.state).list_principals()
    ]
    known.revoke("editor")
    assert Tokens(other_home.state).find_principal(sent, "o" * 43) is not None
    known.add("editor", ["editor-1"], Trust.AGENT)


@pytest.mark.threat("T-FLT-12", control="home_keys")
def test_audit_records_do_not_verify_with_other_home_key(fleet, tmp_path):
    name = fleet.create_home()
    keys = homes.derive_home_key(KEY, name), homes.derive_home_key(KEY, f"{name}0")
    found = []
    for key in keys:
        with State(None, shared=SharedLedger(fleet.pool.home(name), key, tmp_path)) as state:
            if key == keys[0]:
                for _ in range(5):
                    audit.append(state, "", "kind", None, {})
            found.append(len(audit.verify(state).problems))
    assert found == [0, 11]


def test_clearing_sessions_keeps_those_of_other_homes(own_home, other_home):
    injected.delete_all_sessions(own_home.state)
    assert HookSession(other_home.state, "host").read_injected(NOW, make_deadline()) != ()
    HookSession(own_home.state, "host").record_injected([EntryKey("root", "n.md", "d")], NOW)
