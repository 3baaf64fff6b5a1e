"""No statement of a task scans a table of all homes, however many homes exist.

Checked with the plan of every statement, and with the scan counts of the server, which include
triggers and foreign keys.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from datetime import UTC, datetime

import psycopg
import pytest

from kit import postgres
from kit.fleet.homes import KEY, create_database
from kit.server.lanes import BOT, DONE, OWNER, make_new_task, submit_task
from kit.store.bench import (
    STRICT,
    Claim,
    assign_trust,
    create_store_bench,
    make_change_set,
    make_deadline,
    make_run,
    propose_new,
)
from muniment.fleet import copy_files
from muniment.fleet.postgres import LedgerPool
from muniment.kernel.names import Trust
from muniment.kernel.path import canonicalise
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.tokens import Tokens
from muniment.server.writer import Writer
from muniment.store import audit, erase, ledger, review, tasks
from muniment.store.injected import HookSession
from muniment.store.recovery import recover_roots
from muniment.store.state import CopyPosition, SharedLedger, State
from muniment.types.keys import EntryKey

HOMES = 10_000
NOW = datetime(2026, 11, 26, tzinfo=UTC)

SINGLE_ROW_INDEX = "token_digest_key"
"""An index over all homes that finds one row."""

FILL = """
SET session_replication_role = replica; -- Neither triggers nor foreign keys: what goes in is right.
INSERT INTO home (home) SELECT 'filled ' || n FROM generate_series(1, {homes}) AS n;
INSERT INTO series (home, one, epoch, last) SELECT home, 1, 'e', 4 FROM home;
INSERT INTO root SELECT home, md5(home || n), ('root' || n)::bytea FROM home, generate_series(1, 2) AS n;
INSERT INTO change_set (home, task, kind, at, done, trust, decided_by, policy, token, number)
    SELECT home, 'task-' || n, 'remember', '2026', '2026', 'agent', 'rules', 'p', 't', n
    FROM home, generate_series(1, 3) AS n;
INSERT INTO blob SELECT home, md5(home || n), 'content'::bytea FROM home, generate_series(1, 3) AS n;
INSERT INTO change_kept
    SELECT home, id, 0, md5(home || 1), 'user', number || '.md', NULL, NULL, md5(home || number),
        md5(home || number), '[]', 'agent' FROM change_set;
INSERT INTO provenance
    SELECT home, md5(home || 1), number || '.md', md5(home || number), 'agent', task, 'rules', 'p', '2026'
    FROM change_set;
INSERT INTO review SELECT home, 'r' || n, 'task-' || n, 'remember', '2026', 'pending', '[]', 'p', 't', 'd'
    FROM home, generate_series(1, 2) AS n;
INSERT INTO claim SELECT home, id, 0, md5(home || 1), 'user', 'x.md', NULL FROM change_set;
INSERT INTO forgotten SELECT home, md5(home), '2026', 'task-1' FROM home;
INSERT INTO record SELECT home, n, '2026', 'commit', 'task-' || n, '{{}}', 'm', 'm'
    FROM home, generate_series(1, 4) AS n;
INSERT INTO head SELECT home, 1, 4, 'm' FROM home;
INSERT INTO task (home, id, workspace, kind, status, token, trust, shown, repeat, created, updated)
    SELECT home, 'task-' || n, 'w', 'remember', CASE WHEN n < 4 THEN 'completed' ELSE 'queued' END, 'owner',
        'owner', '{{}}', md5(home || n), '2026', '2026' FROM home, generate_series(1, 4) AS n;
INSERT INTO event SELECT home, n, '2026', 'task', 'task-' || n, 'w', '[]', 'owner', NULL, '{{}}'
    FROM home, generate_series(1, 4) AS n;
INSERT INTO token SELECT home, 'editor', md5(home), '[]', 'agent', '2026' FROM home;
INSERT INTO door SELECT digest, home FROM token;
INSERT INTO session SELECT home, md5(home), '2026' FROM home;
INSERT INTO told (home, session, root, rel, digest) SELECT home, md5(home), 'r', n || '.md', 'd'
    FROM home, generate_series(1, 2) AS n;
ANALYZE;
"""


def fill(base, homes):
    with psycopg.connect(base.superuser, autocommit=True, options="-c search_path=muniment") as superuser:
        superuser.execute(FILL.format(homes=homes))


def run_typical_day(ground, repetitions):
    """Run the operations of a typical day in a home."""
    state, lane = ground.state, Lane(ground.state, "w")
    for _ in range(repetitions):
        lane.cancel(submit_task(lane, by=BOT).id, BOT)
    first = lane.submit(make_new_task(repeat="key")).task
    lane.submit(make_new_task(repeat="key"))
    with closing(Writer(state.ledger)) as writer:
        running = writer.run(lane.claim)
        lane.add_event(running, {"turn": 1})
        for number in range(1, 3):
            ground.commit(
                propose_new(f"user/{number}.md", b"%d" % number),
                run=make_run(f"task-{number}", fact="f" * 64),
            )
        ground.commit(ground.propose_edit("user/1.md"), run=make_run(running.id))
        lane.cancel(running.id, OWNER)
        writer.run(lambda: lane.finish(running, DONE))
    lane.requeue(lane.claim() or running)
    lane.recover()
    lane_tasks.list_tasks(state.ledger, "w")
    lane_tasks.list_running(state.ledger, "w")
    lane_tasks.count_pending(state.ledger, "w")
    lane.get(first.id)
    _, after, _ = tasks.read_range(state.ledger)
    tasks.read_events(state.ledger, after, 100)
    tasks.read_task_events(state.ledger, first.id)
    whole = assign_trust(
        make_change_set((propose_new("user/w.md"),), (Claim("user/a.md", None),)), {"user/w.md": Trust.AGENT}
    )
    review_id = review.queue_for_review(
        state, make_run("task-w"), whole, ("why",), policy="a" * 64, roots=ground.roots
    )
    review.load_pending(state, review_id)
    review.read_pending(state)
    review.find_pending(state, "task-w")
    review.reject_pending(state, review_id, ground.roots, make_deadline(), "2026")
    recover_roots(state, ground.roots, STRICT, make_deadline())
    key, path = ledger.get_root_key(state, ground.roots["user"]), canonicalise("user/1.md", ("user",))
    ledger.read_history(state, {key: "user"})
    ledger.read_history(state, {key: "user"}, path)
    ledger.count_by_day(state, {key: "user"}, "2026")
    ledger.read_content_after(state, key, path, running.id)
    copy_files.count_growth(state.ledger, 0, 3, {"user"})
    ledger.is_current(state, key, "1.md", "d")
    ledger.explain_origin(state, key, path, None, Trust.OWNER)
    ledger.find_undoing_task(state, "task-1")
    token = Tokens(state).add("editor", [], Trust.AGENT)
    Tokens(state).find_principal(token, "o" * 43)
    Tokens(state).revoke("editor")
    session = HookSession(state, "host")
    session.record_injected([EntryKey(key, "1.md", "d")], NOW)
    session.read_injected(NOW, make_deadline())
    session.clear()
    audit.read_records(state, latest=10)
    audit.read_records(state, task="task-1")
    audit.read_head(state)
    audit.verify(state)
    erase.is_erased_text(state, "x")
    erase.erase("user/2.md", erase.EraseContext(state, ground.roots, STRICT, make_deadline()))


@contextmanager
def record_statements(pool, home, base, monkeypatch, repetitions=1):
    """Yield the statements of a day, each once, with values."""
    found, one, many = {}, psycopg.RawCursor.execute, psycopg.RawCursor.executemany

    def execute(cursor, statement, *values):
        found.setdefault(statement, values[0] if values else ())
        return one(cursor, statement, *values)

    def executemany(cursor, statement, rows):
        found.setdefault(statement, rows[0])
        return many(cursor, statement, rows)

    @contextmanager
    def open_state(directory):
        with State(
            directory, shared=SharedLedger(pool.home(home), KEY, base, CopyPosition(0, 0, 0))
        ) as state:
            yield state

    with create_store_bench(base, open_state) as ground, monkeypatch.context() as patched:
        patched.setattr(psycopg.RawCursor, "execute", execute)
        patched.setattr(psycopg.RawCursor, "executemany", executemany)
        run_typical_day(ground, repetitions)
        patched.undo()
        yield {each: of for each, of in found.items() if each.split()[0] in VERBS}


VERBS = {"SELECT", "INSERT", "UPDATE", "DELETE"}


def find_scans(pool, home, statements):
    """Return statements whose plan scans a whole table, with the tables."""
    found = {}
    with pool.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute("SELECT set_config('muniment.home', %s, true)", (home,))
        for statement, values in statements.items():
            explained = psycopg.RawCursor(connection).execute(f"EXPLAIN (FORMAT JSON) {statement}", values)
            ((plan,),) = explained.fetchall()
            if tables := set(_iterate_scans(plan)):
                found[statement] = tables
    return found


def _iterate_scans(plan):
    if isinstance(plan, list):
        for each in plan:
            yield from _iterate_scans(each)
    elif isinstance(plan, dict):
        kind = plan.get("Node Type", "")
        if kind == "Seq Scan":
            yield plan["Relation Name"]
        is_of_home = "home" in plan.get("Index Cond", "") or plan.get("Index Name") == SINGLE_ROW_INDEX
        if "Index" in kind and not is_of_home:  # Such an index covers all homes, too.
            yield plan["Index Name"]
        yield from _iterate_scans(list(plan.values()))


def test_every_statement_of_task_can_use_home_index(fleet, tmp_path, monkeypatch):
    """Disable sequential scans: with few homes the server may prefer them."""
    home = fleet.create_home()
    with closing(LedgerPool(fleet.node, 4)) as pool:
        pool.pool.kwargs["options"] += " -c enable_seqscan=off"
        with record_statements(pool, home, tmp_path, monkeypatch) as statements:
            assert len(statements) > 60
            assert find_scans(pool, home, statements) == {}


@pytest.fixture(scope="module")
def large_database():
    """Create a database of many homes."""
    with create_database(postgres.get_server_url()) as base:
        fill(base, HOMES)
        yield base


@pytest.mark.slow
@pytest.mark.parametrize("plans", ["auto", "force_generic_plan"])
def test_statements_scan_no_table_among_ten_thousand_homes(large_database, tmp_path, monkeypatch, plans):
    home, before = large_database.create_home(), count_scans(large_database)
    with closing(LedgerPool(large_database.node, 4)) as pool:
        pool.pool.kwargs["options"] += f" -c plan_cache_mode={plans}"
        # After this many executions the server uses one generic plan for all values.
        with record_statements(pool, home, tmp_path, monkeypatch, repetitions=12) as statements:
            assert find_scans(pool, home, statements) == {}
    after = count_scans(large_database)
    assert {table: after[table] - before[table] for table in after if after[table] != before[table]} == {}


def count_scans(base):
    """Return the number of scans of each table, after all nodes have disconnected."""
    here = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE usename = 'muniment_node' AND datname = current_database()"
    )
    with psycopg.connect(base.superuser, autocommit=True) as superuser:
        while superuser.execute(here).fetchone() != (0,):
            pass
        counts = "SELECT relname::text, seq_scan FROM pg_stat_user_tables WHERE schemaname = 'muniment'"
        return {
            table: count
            for table, count in superuser.execute(counts).fetchall()
            if not table.startswith(("procrastinate", "migration", "fleet"))
        }
