"""The deployment examples of a fleet work as their README describes."""

import re
import shutil
import subprocess
from configparser import ConfigParser
from contextlib import closing

import psycopg
import pytest
import yaml

from kit import postgres
from kit.locations import REPOSITORY
from kit.shell import read_page, run_command
from muniment.errors import ConfigInvalid
from muniment.fleet import homes, schema
from muniment.fleet.address import VARIABLE
from muniment.fleet.postgres import LedgerPool

FLEET = REPOSITORY / "examples" / "deploy" / "fleet"
KEY = b"k" * 32
ROLES = ("muniment_owner", "muniment_node", "muniment_backup")


def run_program(program, *arguments):
    """Run a program of the server and check that it reports no problem."""
    command = [postgres.find_binaries() / program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def psql(url, *arguments):
    return run_program("psql", "--no-psqlrc", "-q", "-v", "ON_ERROR_STOP=1", url, *arguments)


def create_urls(server):
    """Run the roles file on a server; return the URL of its database for each role."""
    psql(server.url, "-f", FLEET / "roles.sql")
    start, _, _ = server.url.rpartition("/")
    return {role: f"{start.replace('//root@', f'//{role}@')}/muniment" for role in (*ROLES, "root")}


@pytest.fixture(scope="module")
def urls():
    """Create a server with the roles file applied and the tables migrated."""
    # A separate server, since the file creates roles and a database with a fixed name.
    with postgres.start_server() as server:
        urls_by_role = create_urls(server)
        assert schema.migrate(urls_by_role["muniment_owner"], KEY)
        homes.add_home(urls_by_role["muniment_owner"], "ana")
        homes.add_token(urls_by_role["muniment_owner"], KEY, "ana")
        yield urls_by_role


def query(url, statement):
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


def test_only_node_role_can_serve_after_migration(urls):
    with closing(LedgerPool(urls["muniment_node"], 1)) as pool:
        schema.check_database(pool, KEY)
    for role in ("muniment_owner", "muniment_backup", "root"):
        with closing(LedgerPool(urls[role], 1)) as pool, pytest.raises(ConfigInvalid, match="all homes"):
            schema.check_database(pool, KEY)


def test_node_role_can_work_in_a_home(urls):
    homes.add_token(urls["muniment_owner"], KEY, "ana", "editor")
    assert query(urls["muniment_node"], "SELECT muniment.home_of('of no token')") == [(None,)]


def test_node_role_sees_no_home_and_owns_nothing(urls):
    node = urls["muniment_node"]
    assert query(node, "SELECT 1 FROM muniment.token") == []
    assert query(node, "SELECT 1 FROM pg_class WHERE pg_has_role(relowner, 'MEMBER')") == []
    for statement in (
        "SELECT 1 FROM muniment.door",
        "CREATE TABLE public.mine ()",
        "CREATE TABLE muniment.mine ()",
        "CREATE TEMPORARY TABLE mine ()",
        "CREATE SCHEMA mine",
        "ALTER TABLE muniment.token DISABLE ROW LEVEL SECURITY",
        "SET ROLE muniment_owner",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(node, statement)
    other = f"{node.rpartition('/')[0]}/postgres"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(other, "CREATE TABLE mine ()")


def test_role_connections_are_limited_and_others_denied(urls):
    limits = dict(
        query(urls["root"], "SELECT rolname, rolconnlimit FROM pg_roles WHERE rolname ~ '^muniment'")
    )
    assert set(limits) == set(ROLES)
    assert min(limits.values()) > 0
    psql(urls["root"], "-c", "CREATE ROLE outsider LOGIN")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(urls["muniment_node"].replace("muniment_node", "outsider"))


def test_backup_role_only_reads_and_owner_cannot_dump(urls):
    url = urls["muniment_backup"]
    assert ("ana",) in query(url, "SELECT home FROM muniment.token")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(url, "SET TRANSACTION READ WRITE; DELETE FROM muniment.token")
    with pytest.raises(AssertionError, match="row-level security"):
        run_program("pg_dump", urls["muniment_owner"])


@pytest.mark.slow
def test_restored_dump_serves_only_with_same_key(urls, tmp_path):
    file = tmp_path / "fleet.dump"
    run_program("pg_dump", "--format=custom", f"--file={file}", urls["muniment_backup"])
    with postgres.start_server() as server:
        urls_by_role = create_urls(server)
        run_program("pg_restore", "--exit-on-error", f"--dbname={urls_by_role['root']}", file)
        assert schema.migrate(urls_by_role["muniment_owner"], KEY) == ()
        assert homes.list_homes(urls_by_role["muniment_owner"]) == ("ana",)
        homes.add_token(urls_by_role["muniment_owner"], KEY, "ana", "after")
        with closing(LedgerPool(urls_by_role["muniment_node"], 1)) as pool:
            schema.check_database(pool, KEY)
            with pytest.raises(ConfigInvalid, match="key"):
                schema.check_database(pool, b"o" * 32)


def test_documented_vacuum_tables_exist(urls):
    (named,) = re.findall(r"`VACUUM FULL` of (.*?) \(", read_page("docs/fleet.md"))
    for name in re.findall(r"`(?:muniment\.)?(\w+)`", named):
        assert query(urls["root"], f"SELECT to_regclass('muniment.{name}') IS NOT NULL") == [(True,)]


def test_password_file_reads_passwords_from_secrets(urls, tmp_path):
    for name in ("owner", "node"):
        (tmp_path / f"{name}_password").write_text(f"of the {name}'s\n")
    text = (FLEET / "passwords.sql").read_text()
    (tmp_path / "passwords.sql").write_text(text.replace("/run/secrets", str(tmp_path)))
    psql(urls["root"], "-f", tmp_path / "passwords.sql")
    found = dict(
        query(urls["root"], "SELECT rolname, rolpassword FROM pg_authid WHERE rolname ~ '^muniment'")
    )
    assert found.pop("muniment_backup") is None
    assert all(each.startswith("SCRAM-SHA-256$") for each in found.values())


COMPOSE = yaml.safe_load((FLEET / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_compose_references_exist_and_images_are_versioned():
    for service in SERVICES.values():
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        for source, _, _ in (each.partition(":") for each in service.get("volumes", ())):
            assert (FLEET / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]
        assert re.fullmatch(r"muniment:fleet|docker\.io/library/\w+:\d+\.[\d.]+-\w+", service["image"])
    build = SERVICES["migrate"]["build"]
    assert (FLEET / build["context"] / build["dockerfile"]).is_file()
    readme = (FLEET / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in COMPOSE["secrets"])


def test_nodes_get_only_their_url_and_ports_are_local():
    for name, service in SERVICES.items():
        assert ("ledger_owner" in service.get("secrets", ())) == (name == "migrate")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    nodes = [service for name, service in SERVICES.items() if name.startswith("node-")]
    assert len({service["command"][2] for service in nodes}) == len(nodes) == 2
    for service in nodes:
        assert service["environment"] == {VARIABLE: "/run/secrets/ledger_node"}
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_entrypoint_copies_key_privately_then_runs_command(tmp_path):
    (tmp_path / "audit.key").write_bytes(KEY)
    shell, option, script, name = SERVICES["node-1"]["entrypoint"]
    script = script.replace("$$", "$").replace("/run/secrets", str(tmp_path)).replace("exec muniment", "echo")
    command = [shell, option, script, name, "serve", "--node", "a b"]
    done = run_command(*command, home=tmp_path, MUNIMENT_HOME=str(tmp_path / "home"))
    assert (done.stdout, done.stderr) == ("serve --node a b\n", "")
    key = tmp_path / "home" / "state" / "audit.key"
    assert (key.read_bytes(), key.stat().st_mode & 0o77) == (KEY, 0)


def test_systemd_accepts_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # It checks that the program exists; the rest of the unit is unchanged.
    unit = FLEET / "muniment-node.service"
    (tmp_path / unit.name).write_text(
        unit.read_text().replace("/opt/muniment/bin/muniment", shutil.which("true"))
    )
    done = run_command("systemd-analyze", "--man=no", "verify", tmp_path / unit.name, home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_unit_stops_only_node_and_contains_no_password():
    parser = ConfigParser(interpolation=None, comment_prefixes=("#",), delimiters=("=",), strict=True)
    parser.optionxform = str
    parser.read_string((FLEET / "muniment-node.service").read_text())
    service = dict(parser["Service"])
    assert (service["KillMode"], service["UMask"]) == ("mixed", "0077")
    assert not {"SystemCallFilter", "MemoryDenyWriteExecute", "ProtectProc", "ProtectKernelTunables"} & set(
        service
    )
    assert "postgresql://" not in " ".join(service.values())


def test_deploy_files_contain_no_password_and_short_readme():
    for path in FLEET.iterdir():
        text = path.read_text()
        assert not re.search(r"postgres(ql)?://[^\s:]+:(?!PASSWORD)[^\s@]+@", text), path
        assert not re.search(r"PASSWORD\s+'", text), path
    assert len((FLEET / "README.md").read_text().splitlines()) <= 30
