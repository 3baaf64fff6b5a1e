"""The examples of a fleet's deployment are what their README says was tried."""

import re
import shutil
import subprocess
from configparser import ConfigParser
from contextlib import closing

import psycopg
import pytest
import yaml

from kit import postgres
from kit.shell import run, text_of
from kit.where import REPOSITORY
from muniment.errors import ConfigInvalid
from muniment.fleet import homes, schema
from muniment.fleet.address import VARIABLE
from muniment.fleet.postgres import LedgerPool

FLEET = REPOSITORY / "examples" / "deploy" / "fleet"
KEY = b"k" * 32
ROLES = ("muniment_owner", "muniment_node", "muniment_backup")


def carried_out(program, *arguments):
    """A program of the server's, which has nothing to object to."""
    command = [postgres.binaries() / program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def psql(url, *arguments):
    return carried_out("psql", "--no-psqlrc", "-q", "-v", "ON_ERROR_STOP=1", url, *arguments)


def urls_on(server):
    """Of the database that the file of roles makes on a server: the URL by role."""
    psql(server.url, "-f", FLEET / "roles.sql")
    start, _, _ = server.url.rpartition("/")
    return {role: f"{start.replace('//root@', f'//{role}@')}/muniment" for role in (*ROLES, "root")}


@pytest.fixture(scope="module")
def urls():
    """A server on which the file of roles was run, and that the owner migrated."""
    # One of its own: the file makes roles, and a database of a certain name.
    with postgres.server() as server:
        of = urls_on(server)
        assert schema.migrate(of["muniment_owner"], KEY)
        homes.add_home(of["muniment_owner"], "ana")
        homes.add_token(of["muniment_owner"], KEY, "ana")
        yield of


def asked(url, statement):
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


def test_the_owner_migrates_and_a_node_may_serve_and_no_other_role_may(urls):
    with closing(LedgerPool(urls["muniment_node"], 1)) as pool:
        schema.check(pool, KEY)
    for role in ("muniment_owner", "muniment_backup", "root"):
        with closing(LedgerPool(urls[role], 1)) as pool, pytest.raises(ConfigInvalid, match="every home"):
            schema.check(pool, KEY)


def test_a_nodes_role_does_what_a_node_does_in_a_home(urls):
    homes.add_token(urls["muniment_owner"], KEY, "ana", "editor")
    assert asked(urls["muniment_node"], "SELECT muniment.home_of('of no token')") == [(None,)]


def test_a_nodes_role_sees_no_home_unasked_and_makes_and_owns_nothing(urls):
    node = urls["muniment_node"]
    assert asked(node, "SELECT 1 FROM muniment.token") == []
    assert asked(node, "SELECT 1 FROM pg_class WHERE pg_has_role(relowner, 'MEMBER')") == []
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
            asked(node, statement)
    other = f"{node.rpartition('/')[0]}/postgres"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        asked(other, "CREATE TABLE mine ()")


def test_connections_of_roles_are_limited_and_strangers_have_no_right_to_one(urls):
    limits = dict(
        asked(urls["root"], "SELECT rolname, rolconnlimit FROM pg_roles WHERE rolname ~ '^muniment'")
    )
    assert set(limits) == set(ROLES)
    assert min(limits.values()) > 0
    psql(urls["root"], "-c", "CREATE ROLE stranger LOGIN")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(urls["muniment_node"].replace("muniment_node", "stranger"))


def test_the_role_for_backups_reads_every_home_and_writes_nothing_and_the_owner_cannot_dump(urls):
    url = urls["muniment_backup"]
    assert ("ana",) in asked(url, "SELECT home FROM muniment.token")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        asked(url, "SET TRANSACTION READ WRITE; DELETE FROM muniment.token")
    with pytest.raises(AssertionError, match="row-level security"):
        carried_out("pg_dump", urls["muniment_owner"])


@pytest.mark.slow
def test_a_dump_is_put_back_as_the_page_says_and_serves_with_the_same_key_and_no_other(urls, tmp_path):
    file = tmp_path / "fleet.dump"
    carried_out("pg_dump", "--format=custom", f"--file={file}", urls["muniment_backup"])
    with postgres.server() as server:
        of = urls_on(server)
        carried_out("pg_restore", "--exit-on-error", f"--dbname={of['root']}", file)
        assert schema.migrate(of["muniment_owner"], KEY) == ()
        assert homes.homes(of["muniment_owner"]) == ("ana",)
        homes.add_token(of["muniment_owner"], KEY, "ana", "after")
        with closing(LedgerPool(of["muniment_node"], 1)) as pool:
            schema.check(pool, KEY)
            with pytest.raises(ConfigInvalid, match="key"):
                schema.check(pool, b"o" * 32)


def test_the_tables_that_the_page_has_vacuumed_after_an_erasure_are_there(urls):
    (named,) = re.findall(r"`VACUUM FULL` of (.*?) \(", text_of("docs/fleet.md"))
    for name in re.findall(r"`(?:muniment\.)?(\w+)`", named):
        assert asked(urls["root"], f"SELECT to_regclass('muniment.{name}') IS NOT NULL") == [(True,)]


def test_the_file_of_passwords_takes_them_from_secrets_alone(urls, tmp_path):
    for name in ("owner", "node"):
        (tmp_path / f"{name}_password").write_text(f"of the {name}'s\n")
    text = (FLEET / "passwords.sql").read_text()
    (tmp_path / "passwords.sql").write_text(text.replace("/run/secrets", str(tmp_path)))
    psql(urls["root"], "-f", tmp_path / "passwords.sql")
    found = dict(
        asked(urls["root"], "SELECT rolname, rolpassword FROM pg_authid WHERE rolname ~ '^muniment'")
    )
    assert found.pop("muniment_backup") is None
    assert all(each.startswith("SCRAM-SHA-256$") for each in found.values())


COMPOSE = yaml.safe_load((FLEET / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_what_services_refer_to_is_there_and_images_have_a_version():
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


def test_nodes_have_the_url_of_their_role_alone_and_no_port_is_open_to_other_machines():
    for name, service in SERVICES.items():
        assert ("ledger_owner" in service.get("secrets", ())) == (name == "migrate")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    nodes = [service for name, service in SERVICES.items() if name.startswith("node-")]
    assert len({service["command"][2] for service in nodes}) == len(nodes) == 2
    for service in nodes:
        assert service["environment"] == {VARIABLE: "/run/secrets/ledger_node"}
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_the_key_is_put_into_the_state_of_a_node_for_its_user_alone_and_then_the_command_runs(tmp_path):
    (tmp_path / "audit.key").write_bytes(KEY)
    shell, option, script, name = SERVICES["node-1"]["entrypoint"]
    script = script.replace("$$", "$").replace("/run/secrets", str(tmp_path)).replace("exec muniment", "echo")
    command = [shell, option, script, name, "serve", "--node", "a b"]
    done = run(*command, home=tmp_path, MUNIMENT_HOME=str(tmp_path / "home"))
    assert (done.stdout, done.stderr) == ("serve --node a b\n", "")
    key = tmp_path / "home" / "state" / "audit.key"
    assert (key.read_bytes(), key.stat().st_mode & 0o77) == (KEY, 0)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    # It looks for the program; everything else is as it is shipped.
    unit = FLEET / "muniment-node.service"
    (tmp_path / unit.name).write_text(
        unit.read_text().replace("/opt/muniment/bin/muniment", shutil.which("true"))
    )
    done = run("systemd-analyze", "--man=no", "verify", tmp_path / unit.name, home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_stops_a_node_alone_holds_its_fence_and_names_no_password():
    parser = ConfigParser(interpolation=None, comment_prefixes=("#",), delimiters=("=",), strict=True)
    parser.optionxform = str
    parser.read_string((FLEET / "muniment-node.service").read_text())
    service = dict(parser["Service"])
    assert (service["KillMode"], service["UMask"]) == ("mixed", "0077")
    assert not {"SystemCallFilter", "MemoryDenyWriteExecute", "ProtectProc", "ProtectKernelTunables"} & set(
        service
    )
    assert "postgresql://" not in " ".join(service.values())


def test_no_file_but_the_secrets_holds_a_password_and_the_readme_is_short():
    for path in FLEET.iterdir():
        text = path.read_text()
        assert not re.search(r"postgres(ql)?://[^\s:]+:(?!PASSWORD)[^\s@]+@", text), path
        assert not re.search(r"PASSWORD\s+'", text), path
    assert len((FLEET / "README.md").read_text().splitlines()) <= 30
