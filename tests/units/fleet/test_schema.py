"""The tables of a fleet are made once, by one process at a time; a node serves from no others (M1 to M4)."""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest

from kit import postgres
from kit.fleet.homes import KEY, OWNING, as_role, base_on
from kit.raising import raised
from kit.threads import together
from muniment.errors import ConfigInvalid, LedgerAway, ManagedMemoryUnavailable, NotFound, StateTooNew
from muniment.fleet import homes, schema
from muniment.fleet.postgres import LedgerPool
from muniment.fleet.schema import ROLE, check, migrate, newest
from muniment.kernel.names import Trust
from muniment.server.tokens import Tokens
from muniment.store.state import Shared, State

OTHER_KEY = b"o" * 32


@pytest.fixture(scope="module")
def base(fleet):
    """A database of these tests' own, on the server that all share; each leaves it as it was."""
    with base_on(fleet.superuser) as made:
        yield made


@pytest.fixture
def empty(fleet):
    """The URL of a new database's superuser, in which its roles are and nothing else."""
    with postgres.database(fleet.superuser) as url:
        execute(url, f'GRANT CREATE ON DATABASE "{url.rpartition("/")[2]}" TO {OWNING}')
        yield url


def execute(url, statement):
    with psycopg.connect(url, autocommit=True, options="-c search_path=muniment") as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else found.rowcount


def checked(url, key=KEY):
    with closing(LedgerPool(url, 1)) as pool:
        check(pool, key)


def tables_of(base):
    asked = (
        "SELECT relname::text, relkind::text, relacl::text FROM pg_class "
        "WHERE relnamespace = 'muniment'::regnamespace"
    )
    return sorted(execute(base.superuser, asked))


def test_who_migrates_twice_changes_nothing_the_second_time_and_a_node_may_serve(fleet):
    before, done = tables_of(fleet), execute(fleet.superuser, "SELECT * FROM migration ORDER BY 1, 2")
    checked(fleet.node)
    assert migrate(fleet.owner, KEY) == ()
    assert (tables_of(fleet), execute(fleet.superuser, "SELECT * FROM migration ORDER BY 1, 2")) == (
        before,
        done,
    )


def test_of_many_who_migrate_at_once_one_makes_each_table(empty):
    url = as_role(empty, OWNING)
    made = together(4, lambda _: migrate(url, KEY))
    assert sorted(map(len, made))[:3] == [0, 0, 0]
    (first,) = filter(None, made)
    assert first == ("procrastinate schema", *(f"muniment {n:04}" for n in range(1, newest() + 1)))
    checked(as_role(empty, ROLE))


def test_a_migration_that_is_cut_off_is_carried_out_whole_the_next_time(empty, monkeypatch):
    url, real = as_role(empty, OWNING), schema.migrations("muniment.fleet")
    number, script = max(real.items())
    monkeypatch.setattr(schema, "migrations", lambda _: {**real, number: f"{script}; SELECT 1 / 0"})
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(url, KEY)
    monkeypatch.undo()
    raised(ConfigInvalid, checked, as_role(empty, ROLE), match="fleet migrate")
    assert migrate(url, KEY) == (f"muniment {number:04}",)
    checked(as_role(empty, ROLE))


@pytest.mark.threat("T-FLT-10", control="known_tables")
def test_tables_of_another_version_are_neither_served_from_nor_migrated_back(base):
    execute(base.superuser, "INSERT INTO migration (of, name) VALUES ('muniment', '9999')")
    for act in (lambda: checked(base.node), lambda: migrate(base.owner, KEY)):
        assert "9999" in str(raised(StateTooNew, act))
    execute(base.superuser, "DELETE FROM migration WHERE of = 'muniment'")
    raised(ConfigInvalid, checked, base.node, match="version 0, this node needs .*muniment fleet migrate")
    for number in range(1, newest() + 1):
        execute(base.superuser, f"INSERT INTO migration (of, name) VALUES ('muniment', '{number:04}')")
    checked(base.node)


def test_a_database_without_tables_says_what_to_run(empty):
    raised(
        ConfigInvalid,
        checked,
        as_role(empty, ROLE),
        match="no ledger for this role yet; run: muniment fleet migrate",
    )


@pytest.mark.threat("T-FLT-10", control="fleet_keys")
def test_another_key_than_the_fleets_is_refused_by_nodes_and_by_who_migrates(base):
    raised(ConfigInvalid, checked, base.node, OTHER_KEY, match="not the key of this fleet")
    raised(ConfigInvalid, migrate, base.owner, OTHER_KEY, match="not the key of this fleet")
    checked(base.node)
    assert KEY not in bytes(execute(base.superuser, "SELECT mark FROM fleet")[0][0])
    execute(base.superuser, "DELETE FROM fleet")
    raised(ConfigInvalid, checked, base.node, match="not the key of this fleet")
    assert migrate(base.owner, KEY) == ()
    checked(base.node)


@contextmanager
def a_role(base, words, *grants):
    """The URL of a role of its own, gone afterwards."""
    execute(base.superuser, f"CREATE ROLE somebody LOGIN {words}")
    try:
        for grant in grants:
            execute(base.superuser, grant.format(superuser=urlsplit(base.superuser).username))
        yield as_role(base.superuser, "somebody")
    finally:
        execute(base.superuser, "DROP OWNED BY somebody")
        execute(base.superuser, "DROP ROLE somebody")


@pytest.mark.threat("T-FLT-09", control="seeing_roles")
@pytest.mark.parametrize(
    ("words", "grants"),
    [
        ("SUPERUSER", ()),
        ("BYPASSRLS", (f"GRANT {ROLE} TO somebody",)),
        ("", (f"GRANT {OWNING} TO somebody",)),
        ("NOINHERIT", (f"GRANT {OWNING} TO somebody",)),
        ("NOINHERIT", (f"GRANT {ROLE}, {{superuser}} TO somebody",)),
        ("CREATEROLE", (f"GRANT {ROLE} TO somebody",)),  # Before PostgreSQL 16 it could become the owner.
        ("REPLICATION", (f"GRANT {ROLE} TO somebody",)),
        ("", (f"GRANT {ROLE}, pg_read_server_files TO somebody",)),
    ],
)
def test_a_role_that_could_see_every_home_at_once_serves_none(fleet, words, grants):
    for url in (fleet.owner, fleet.superuser):
        raised(ConfigInvalid, checked, url, match="could see every home at once")
    with a_role(fleet, words, *grants) as url:
        raised(ConfigInvalid, checked, url, match="could see every home at once")


def test_a_role_of_another_name_serves_if_it_may_no_more_than_the_nodes(fleet):
    with a_role(fleet, "", f"GRANT {ROLE} TO somebody") as url:
        checked(url)


def test_one_who_may_not_make_tables_or_names_no_role_or_finds_nobody_is_told_so(fleet, empty):
    raised(ConfigInvalid, migrate, as_role(empty, ROLE), KEY, match="may not create the tables")
    raised(ConfigInvalid, migrate, fleet.owner, KEY, "no_such_role", match="role no_such_role does not exist")
    away = "postgresql://muniment@127.0.0.1:1/muniment"
    raised(LedgerAway, migrate, away, KEY)
    raised(LedgerAway, homes.homes, away)


def test_an_old_server_is_refused_before_anything_is_made(empty, monkeypatch):
    monkeypatch.setattr(schema, "MIN_SERVER", 990_000)
    raised(ConfigInvalid, migrate, as_role(empty, OWNING), KEY, match="is too old; use 15")
    assert execute(empty, "SELECT 1 FROM pg_namespace WHERE nspname = 'muniment'") == []


# -- Homes ----------------------------------------------------------------------------------------------


def test_a_home_is_made_once_listed_and_removed_with_all_that_is_in_it(base):
    assert [homes.add_home(base.owner, name) for name in ("ann", "bob", "ann")] == [True, True, False]
    assert homes.homes(base.owner) == ("ann", "bob")
    token = homes.add_token(base.owner, KEY, "ann")
    kept = homes.add_token(base.owner, KEY, "bob", "phone", ["phone-1"], Trust.AGENT)
    homes.remove_home(base.owner, "ann")
    raised(NotFound, homes.remove_home, base.owner, "ann")
    assert homes.homes(base.owner) == ("bob",)
    left = execute(
        base.superuser, "SELECT home FROM token UNION SELECT home FROM record UNION SELECT home FROM door"
    )
    assert left == [("bob",)]
    raised(ManagedMemoryUnavailable, homes.add_token, base.owner, KEY, "ann", match="the home does not exist")
    with closing(LedgerPool(base.node, 1)) as pool:
        shared = Shared(pool.home("bob"), homes.key_of(KEY, "bob"), schema.Path("/nonexistent"))
        with State(None, shared=shared) as state:
            known = Tokens(state, keyed=partial(homes.keyed, KEY))
            assert known.principal(kept, "o" * 43).name == "phone"
            assert known.principal(token, "o" * 43) is None
    homes.revoke_token(base.owner, KEY, "bob", "phone")
    raised(NotFound, homes.revoke_token, base.owner, KEY, "bob", "phone")
    assert execute(base.superuser, "SELECT * FROM door") == []


def test_what_cannot_name_a_home_is_refused_before_anybody_is_asked():
    for name in ("", " ", "a b", "-a", ".a", "a/b", "a\n", "é", "a\x00", "'; --", "a" * 129):
        for act in (homes.add_home, homes.remove_home):
            raised(ConfigInvalid, act, "postgresql://127.0.0.1:1/none", name, match="invalid home name")
    assert homes.check_name("a" * 128) == "a" * 128
    assert homes.key_of(KEY, "a") != homes.key_of(KEY, "b") != homes.key_of(OTHER_KEY, "b")
