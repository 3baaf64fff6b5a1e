"""The tables of a fleet are created once, by one process at a time; a node serves no others (M1 to M4)."""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest

from kit import postgres
from kit.catching import catch_error
from kit.fleet.homes import KEY, OWNER_ROLE, change_role, create_database
from kit.threads import run_together
from muniment.errors import ConfigInvalid, LedgerUnreachable, ManagedMemoryUnavailable, NotFound, StateTooNew
from muniment.fleet import homes, schema
from muniment.fleet.postgres import LedgerPool
from muniment.fleet.schema import ROLE, check_database, get_newest_version, migrate
from muniment.kernel.names import Trust
from muniment.server.tokens import Tokens
from muniment.store.state import SharedLedger, State

OTHER_KEY = b"o" * 32


@pytest.fixture(scope="module")
def base(fleet):
    """Create a database for these tests on the shared server; every test restores it."""
    with create_database(fleet.superuser) as made:
        yield made


@pytest.fixture
def empty_database_url(fleet):
    """Return the URL of a new database that contains only its roles."""
    with postgres.create_database(fleet.superuser) as url:
        execute(url, f'GRANT CREATE ON DATABASE "{url.rpartition("/")[2]}" TO {OWNER_ROLE}')
        yield url


def execute(url, statement):
    with psycopg.connect(url, autocommit=True, options="-c search_path=muniment") as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else found.rowcount


def check_url(url, key=KEY):
    with closing(LedgerPool(url, 1)) as pool:
        check_database(pool, key)


def list_tables(base):
    query = (
        "SELECT relname::text, relkind::text, relacl::text FROM pg_class "
        "WHERE relnamespace = 'muniment'::regnamespace"
    )
    return sorted(execute(base.superuser, query))


def test_second_migration_changes_nothing_and_node_can_serve(fleet):
    before, done = list_tables(fleet), execute(fleet.superuser, "SELECT * FROM migration ORDER BY 1, 2")
    check_url(fleet.node)
    assert migrate(fleet.owner, KEY) == ()
    assert (list_tables(fleet), execute(fleet.superuser, "SELECT * FROM migration ORDER BY 1, 2")) == (
        before,
        done,
    )


def test_concurrent_migrations_create_each_table_once(empty_database_url):
    url = change_role(empty_database_url, OWNER_ROLE)
    made = run_together(4, lambda _: migrate(url, KEY))
    assert sorted(map(len, made))[:3] == [0, 0, 0]
    (first,) = filter(None, made)
    assert first == (
        "procrastinate schema",
        *(f"muniment {n:04}" for n in range(1, get_newest_version() + 1)),
    )
    check_url(change_role(empty_database_url, ROLE))


def test_interrupted_migration_is_repeated_completely(empty_database_url, monkeypatch):
    url, real = change_role(empty_database_url, OWNER_ROLE), schema.load_migrations("muniment.fleet")
    number, script = max(real.items())
    monkeypatch.setattr(schema, "load_migrations", lambda _: {**real, number: f"{script}; SELECT 1 / 0"})
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(url, KEY)
    monkeypatch.undo()
    catch_error(ConfigInvalid, check_url, change_role(empty_database_url, ROLE), match="fleet migrate")
    assert migrate(url, KEY) == (f"muniment {number:04}",)
    check_url(change_role(empty_database_url, ROLE))


@pytest.mark.threat("T-FLT-10", control="known_tables")
def test_newer_tables_are_neither_served_nor_migrated(base):
    execute(base.superuser, "INSERT INTO migration (of, name) VALUES ('muniment', '9999')")
    for act in (lambda: check_url(base.node), lambda: migrate(base.owner, KEY)):
        assert "9999" in str(catch_error(StateTooNew, act))
    execute(base.superuser, "DELETE FROM migration WHERE of = 'muniment'")
    catch_error(
        ConfigInvalid, check_url, base.node, match="version 0, this node needs .*muniment fleet migrate"
    )
    for number in range(1, get_newest_version() + 1):
        execute(base.superuser, f"INSERT INTO migration (of, name) VALUES ('muniment', '{number:04}')")
    check_url(base.node)


def test_database_without_tables_names_migrate_command(empty_database_url):
    catch_error(
        ConfigInvalid,
        check_url,
        change_role(empty_database_url, ROLE),
        match="no ledger for this role yet; run: muniment fleet migrate",
    )


@pytest.mark.threat("T-FLT-10", control="fleet_keys")
def test_wrong_fleet_key_is_rejected_by_node_and_migration(base):
    catch_error(ConfigInvalid, check_url, base.node, OTHER_KEY, match="not the key of this fleet")
    catch_error(ConfigInvalid, migrate, base.owner, OTHER_KEY, match="not the key of this fleet")
    check_url(base.node)
    assert KEY not in bytes(execute(base.superuser, "SELECT mark FROM fleet")[0][0])
    execute(base.superuser, "DELETE FROM fleet")
    catch_error(ConfigInvalid, check_url, base.node, match="not the key of this fleet")
    assert migrate(base.owner, KEY) == ()
    check_url(base.node)


@contextmanager
def create_role(base, role_options, *grants):
    """Yield the URL of a temporary role."""
    execute(base.superuser, f"CREATE ROLE other_role LOGIN {role_options}")
    try:
        for grant in grants:
            execute(base.superuser, grant.format(superuser=urlsplit(base.superuser).username))
        yield change_role(base.superuser, "other_role")
    finally:
        execute(base.superuser, "DROP OWNED BY other_role")
        execute(base.superuser, "DROP ROLE other_role")


@pytest.mark.threat("T-FLT-09", control="role_rights")
@pytest.mark.parametrize(
    ("role_options", "grants"),
    [
        ("SUPERUSER", ()),
        ("BYPASSRLS", (f"GRANT {ROLE} TO other_role",)),
        ("", (f"GRANT {OWNER_ROLE} TO other_role",)),
        ("NOINHERIT", (f"GRANT {OWNER_ROLE} TO other_role",)),
        ("NOINHERIT", (f"GRANT {ROLE}, {{superuser}} TO other_role",)),
        ("CREATEROLE", (f"GRANT {ROLE} TO other_role",)),  # Before PostgreSQL 16 it could become the owner.
        ("REPLICATION", (f"GRANT {ROLE} TO other_role",)),
        ("", (f"GRANT {ROLE}, pg_read_server_files TO other_role",)),
    ],
)
def test_role_that_sees_every_home_is_rejected(fleet, role_options, grants):
    for url in (fleet.owner, fleet.superuser):
        catch_error(ConfigInvalid, check_url, url, match="could access all homes")
    with create_role(fleet, role_options, *grants) as url:
        catch_error(ConfigInvalid, check_url, url, match="could access all homes")


def test_other_role_with_node_rights_can_serve(fleet):
    with create_role(fleet, "", f"GRANT {ROLE} TO other_role") as url:
        check_url(url)


def test_migration_errors_name_missing_rights_or_role(fleet, empty_database_url):
    catch_error(
        ConfigInvalid, migrate, change_role(empty_database_url, ROLE), KEY, match="may not create the tables"
    )
    catch_error(ConfigInvalid, migrate, fleet.owner, KEY, "no_such_role", match="role no_such_role not found")
    away = "postgresql://muniment@127.0.0.1:1/muniment"
    catch_error(LedgerUnreachable, migrate, away, KEY)
    catch_error(LedgerUnreachable, homes.list_homes, away)


def test_old_server_is_rejected_before_any_change(empty_database_url, monkeypatch):
    monkeypatch.setattr(schema, "MIN_SERVER", 990_000)
    catch_error(
        ConfigInvalid, migrate, change_role(empty_database_url, OWNER_ROLE), KEY, match="is too old; use 15"
    )
    assert execute(empty_database_url, "SELECT 1 FROM pg_namespace WHERE nspname = 'muniment'") == []


# -- homes -----------------------------------------------------------------------------------------------


def test_home_is_added_listed_and_removed_with_its_data(base):
    assert [homes.add_home(base.owner, name) for name in ("ann", "bob", "ann")] == [True, True, False]
    assert homes.list_homes(base.owner) == ("ann", "bob")
    token = homes.add_token(base.owner, KEY, "ann")
    bob_token = homes.add_token(base.owner, KEY, "bob", "phone", ["phone-1"], Trust.AGENT)
    homes.remove_home(base.owner, "ann")
    catch_error(NotFound, homes.remove_home, base.owner, "ann")
    assert homes.list_homes(base.owner) == ("bob",)
    left = execute(
        base.superuser, "SELECT home FROM token UNION SELECT home FROM record UNION SELECT home FROM door"
    )
    assert left == [("bob",)]
    catch_error(ManagedMemoryUnavailable, homes.add_token, base.owner, KEY, "ann", match="home not found")
    with closing(LedgerPool(base.node, 1)) as pool:
        shared = SharedLedger(
            pool.home("bob"), homes.derive_home_key(KEY, "bob"), schema.Path("/nonexistent")
        )
        with State(None, shared=shared) as state:
            known = Tokens(state, compute_digest=partial(homes.compute_keyed_digest, KEY))
            assert known.find_principal(bob_token, "o" * 43).name == "phone"
            assert known.find_principal(token, "o" * 43) is None
    homes.revoke_token(base.owner, KEY, "bob", "phone")
    catch_error(NotFound, homes.revoke_token, base.owner, KEY, "bob", "phone")
    assert execute(base.superuser, "SELECT * FROM door") == []


def test_invalid_home_name_is_rejected_without_connection():
    for name in ("", " ", "a b", "-a", ".a", "a/b", "a\n", "é", "a\x00", "'; --", "a" * 129):
        for act in (homes.add_home, homes.remove_home):
            catch_error(ConfigInvalid, act, "postgresql://127.0.0.1:1/none", name, match="invalid home name")
    assert homes.check_name("a" * 128) == "a" * 128
    assert (
        homes.derive_home_key(KEY, "a")
        != homes.derive_home_key(KEY, "b")
        != homes.derive_home_key(OTHER_KEY, "b")
    )
