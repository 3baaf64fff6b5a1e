"""`muniment fleet` and `muniment serve --ledger` during the setup of a first fleet."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import httpx2
import psycopg
import pytest

from kit import postgres
from kit.cli.commands import Commands, run_in_process
from kit.fleet.homes import OWNER_ROLE, change_role
from kit.fleet.nodes import NodeProcess
from muniment.fleet import schema

SECRET = "hunter2-of-the-database"


class FleetCommands(Commands):
    """Runs commands in a temporary home, over an empty database."""

    def __init__(self, home, url):
        self.home, self.owner, self.node = home, change_role(url, OWNER_ROLE), change_role(url, schema.ROLE)

    def __call__(self, *arguments, ledger=None, **environment):
        env = {"MUNIMENT_HOME": str(self.home), "MUNIMENT_LEDGER": ledger or self.owner, **environment}
        return run_in_process(arguments, env)


@pytest.fixture
def commands(fleet, tmp_path):
    with postgres.create_database(fleet.superuser) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            name = url.rpartition("/")[2]
            connection.execute(f'GRANT CREATE ON DATABASE "{name}" TO {OWNER_ROLE}')
        yield FleetCommands(tmp_path / "home", url)


@pytest.fixture
def migrated_fleet(commands):
    assert commands("fleet", "migrate").exit_code == 0
    return commands


def test_migrate_creates_tables_once_and_names_node_role(commands):
    (before,) = commands.run_for_lines("fleet", "status", code=1)
    assert "run: muniment fleet migrate" in before
    *done, last = commands.run_for_lines("fleet", "migrate")
    assert done
    assert all(each.startswith("applied ") for each in done)
    assert last == f"the database has version {schema.get_newest_version()}; nodes connect as muniment_node"
    assert commands.run_for_lines("fleet", "migrate") == [last]
    document = commands.run_for_document("fleet", "migrate")
    assert (document["status"], document["version"], document["done"]) == (
        "migrated",
        schema.get_newest_version(),
        [],
    )


def test_migrate_names_missing_role(commands):
    (message,) = commands.run_for_lines("fleet", "migrate", "--role", "nobody-here", code=1)
    assert "role nobody-here not found; create it first" in message


def test_home_and_its_tokens_are_created_listed_and_removed(migrated_fleet):
    message, token = migrated_fleet.run_for_lines("fleet", "home", "add", "ada")
    assert message == "created the home ada; its token owner, printed only once:"
    assert re.fullmatch(r"[A-Za-z0-9_-]{40,}", token)
    message, second = migrated_fleet.run_for_lines(
        "fleet", "home", "add", "ada", "--token", "editor", "--trust", "agent"
    )
    assert message == "found the home ada; its token editor, printed only once:"
    assert second != token
    migrated_fleet.run_for_lines("fleet", "home", "add", "bob")
    assert migrated_fleet.run_for_lines("fleet", "home", "list") == ["ada", "bob"]
    assert migrated_fleet.run_for_document("fleet", "home", "list") == {"homes": ["ada", "bob"]}
    assert migrated_fleet.run_for_lines("fleet", "home", "revoke", "ada", "editor") == [
        "revoked editor of ada"
    ]
    (message,) = migrated_fleet.run_for_lines("fleet", "home", "revoke", "ada", "editor", code=1)
    assert "editor" in message
    (message,) = migrated_fleet.run_for_lines("fleet", "home", "remove", "ada", code=1)
    assert "this deletes all entries and the history of ada; to confirm, use --yes" in message
    assert migrated_fleet.run_for_lines("fleet", "home", "remove", "ada", "--yes") == ["removed ada"]
    assert migrated_fleet.run_for_lines("fleet", "home", "list") == ["bob"]
    (message,) = migrated_fleet.run_for_lines("fleet", "home", "remove", "ada", "--yes", code=1)
    assert "home 'ada' not found" in message
    assert (
        migrated_fleet.run_for_document("fleet", "home", "remove", "x", "--yes", code=1)["error"]["code"]
        == "not_found"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("add", "../etc"), "invalid home name"),
        (("add", "ada", "--trust", "much"), "unknown trust 'much'; use one of owner, workspace"),
        (("add", "ada", "--trust", "agent"), "to create another token, use --token NAME"),
        (("add", "ada", "--token", "a b"), "token"),
        (("revoke", "nobody", "owner"), "home"),
    ],
)
def test_invalid_home_arguments_print_one_line(migrated_fleet, arguments, reason):
    (message,) = migrated_fleet.run_for_lines("fleet", "home", *arguments, code=1)
    assert reason in message
    assert "ada" not in migrated_fleet.run_for_lines("fleet", "home", "list")


def test_status_lists_homes_tasks_and_nodes(migrated_fleet):
    migrated_fleet.run_for_lines("fleet", "home", "add", "ada")
    assert migrated_fleet.run_for_lines("fleet", "status") == [
        "homes: 1, with a lease now: 0",
        "tasks: none waiting",
    ]
    document = migrated_fleet.run_for_document("fleet", "status")
    assert (document["homes"], document["leases"], document["tasks"], document["nodes"]) == (1, 0, [], [])


COMMANDS = [
    ("fleet", "migrate"),
    ("fleet", "status"),
    ("fleet", "home", "list"),
    ("fleet", "home", "add", "ada"),
    ("serve",),
]


@pytest.mark.parametrize("run_command", COMMANDS, ids=" ".join)
def test_password_in_ledger_option_is_rejected_and_not_shown(commands, run_command, caplog):
    url = commands.owner.replace("@", f":{SECRET}@")
    (message,) = commands.run_for_lines(*run_command, "--ledger", url, code=1)
    assert "could read the password of --ledger in the process list; write the URL to a file" in message
    assert SECRET not in message + caplog.text


@pytest.mark.parametrize("run_command", COMMANDS, ids=" ".join)
def test_missing_fleet_extra_prints_install_command(commands, run_command, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "psycopg" in name else real(name))
    (message,) = commands.run_for_lines(*run_command, code=1)
    assert "needs the extra `fleet`: pip install" in message


@pytest.mark.parametrize("run_command", [each for each in COMMANDS if each != ("serve",)], ids=" ".join)
def test_unreachable_database_is_reported_without_password(commands, run_command, tmp_path):
    file = tmp_path / "url"
    file.write_text(f"postgresql://muniment:{SECRET}@127.0.0.1:1/muniment")
    file.chmod(0o600)
    (message,) = commands.run_for_lines(*run_command, "--ledger", str(file), code=1)
    assert SECRET not in message
    assert "the database" in message
    assert (
        commands.run_for_document(*run_command, "--ledger", str(file), code=1)["error"]["code"]
        == "ledger_away"
    )


def test_home_commands_require_key_of_fleet(migrated_fleet, tmp_path):
    migrated_fleet.home = tmp_path / "another"
    for command in (("add", "ada"), ("add", "ada", "--token", "editor"), ("revoke", "ada", "owner")):
        (message,) = migrated_fleet.run_for_lines("fleet", "home", *command, code=1)
        assert "is not the key of this fleet; copy it from the node" in message


@pytest.mark.parametrize(
    "run_command", [*COMMANDS[1:4], ("fleet", "home", "remove", "ada", "--yes")], ids=" ".join
)
def test_commands_without_tables_name_migrate(commands, run_command):
    (message,) = commands.run_for_lines(*run_command, code=1)
    assert "run: muniment fleet migrate" in message


@pytest.mark.parametrize("run_command", COMMANDS[:4], ids=" ".join)
def test_commands_as_node_role_change_nothing(migrated_fleet, run_command):
    done = migrated_fleet(*run_command, ledger=migrated_fleet.node)
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) == 1 or done.exit_code == 0, lines
    assert "Traceback" not in done.output
    assert migrated_fleet.run_for_document("fleet", "home", "list") == {"homes": []}


def run_serve(commands, *arguments, **environment):
    """Run `muniment serve` until it exits, and return the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "muniment", "serve", *arguments],
        env={**os.environ, "MUNIMENT_HOME": str(commands.home), **environment},
        cwd=commands.home.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_node_prints_address_and_token_of_home_works(migrated_fleet):
    node = subprocess.Popen(
        [sys.executable, "-m", "muniment", "serve", "--ledger", migrated_fleet.node, "--node", "first"],
        env={**os.environ, "MUNIMENT_HOME": str(migrated_fleet.home)},
        cwd=migrated_fleet.home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        serving, _, hint = (node.stdout.readline().rstrip() for _ in range(3))
        assert hint.endswith("for a home: muniment fleet home add HOME"), hint
        _, token = migrated_fleet.run_for_lines("fleet", "home", "add", "ada")
        url = serving.removeprefix("serving ")
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as http:
            assert http.get("/capabilities").json()["workspace"] == "ada"
        _, _, line = migrated_fleet.run_for_lines("fleet", "status")
        assert line.startswith("node first: 0 turns, seen "), line
    finally:
        node.terminate()
        _, log = node.communicate(timeout=60)
    assert node.returncode == 0, log


def read_refusal(commands, *arguments, **environment):
    """Return the line with which a node refuses to start."""
    done = run_serve(commands, "--ledger", commands.node, *arguments, **environment)
    assert (done.returncode, done.stdout) == (1, ""), done
    return [line for line in done.stderr.splitlines() if not line.startswith("{")][-1]


@pytest.mark.slow
def test_node_that_cannot_serve_exits_with_reason(migrated_fleet):
    with psycopg.connect(migrated_fleet.owner, autocommit=True) as owner:
        move = "UPDATE muniment.migration SET name = %s WHERE of = 'muniment' AND name = %s"
        now, newer = f"{schema.get_newest_version():04}", f"{schema.get_newest_version() + 1:04}"
        owner.execute(move, (newer, now))
        message = read_refusal(migrated_fleet)
        assert "not served: " in message
        assert str(schema.get_newest_version() + 1) in message
        assert "state_too_new" in message
        owner.execute(move, ("0000", newer))
        assert "run: muniment fleet migrate" in read_refusal(migrated_fleet)
        owner.execute(move, (now, "0000"))
    assert "is only for a memory of this machine; remove it for a fleet" in read_refusal(
        migrated_fleet, "--workspace=."
    )
    assert "invalid node name" in read_refusal(migrated_fleet, "--node=a b")


@pytest.mark.slow
def test_node_older_than_schema_serves_until_restart(migrated_fleet, tmp_path):
    """An operator migrates while nodes of the older version serve."""
    (tmp_path / "n").mkdir()
    node = NodeProcess(tmp_path / "n", migrated_fleet.node, "old")
    (tmp_path / "n" / "state" / "audit.key").write_bytes(
        (migrated_fleet.home / "state" / "audit.key").read_bytes()
    )
    node.start()
    try:
        node.wait()
        _, token = migrated_fleet.run_for_lines("fleet", "home", "add", "ada")
        with psycopg.connect(migrated_fleet.owner, autocommit=True) as owner:
            owner.execute(
                "INSERT INTO muniment.migration (of, name) VALUES ('muniment', %s)",
                (f"{schema.get_newest_version() + 1:04}",),
            )
        with httpx2.Client(base_url=node.url, headers={"Authorization": f"Bearer {token}"}) as http:
            response = http.post("/workspace/memory/remember", json={"content": "The user prefers tea."})
            assert response.status_code == 202, response.text
        node.stop()
        node.start()
        output, _ = node.process.communicate(timeout=60)
        assert (node.process.returncode, json.loads(output)["error"]["code"]) == (1, "state_too_new")
    finally:
        node.kill()
