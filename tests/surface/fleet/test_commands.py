"""`muniment fleet`, and `muniment serve --ledger`, as somebody meets them who makes a first fleet."""

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
from kit.cli.commands import Commands, invoked
from kit.fleet.homes import OWNING, as_role
from kit.fleet.nodes import NodeProcess
from muniment.fleet import schema

SECRET = "hunter2-of-the-database"


class FleetCommands(Commands):
    """Runs commands in a home of their own, over a database in which there is nothing yet."""

    def __init__(self, home, url):
        self.home, self.owner, self.node = home, as_role(url, OWNING), as_role(url, schema.ROLE)

    def __call__(self, *arguments, ledger=None, **environment):
        env = {"MUNIMENT_HOME": str(self.home), "MUNIMENT_LEDGER": ledger or self.owner, **environment}
        return invoked(arguments, env)


@pytest.fixture
def commands(fleet, tmp_path):
    with postgres.database(fleet.superuser) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            name = url.rpartition("/")[2]
            connection.execute(f'GRANT CREATE ON DATABASE "{name}" TO {OWNING}')
        yield FleetCommands(tmp_path / "home", url)


@pytest.fixture
def migrated(commands):
    assert commands("fleet", "migrate").exit_code == 0
    return commands


def test_tables_are_made_once_and_it_is_said_as_whom_nodes_connect(commands):
    (before,) = commands.lines("fleet", "status", code=1)
    assert "run: muniment fleet migrate" in before
    *done, last = commands.lines("fleet", "migrate")
    assert done
    assert all(each.startswith("applied ") for each in done)
    assert last == f"the database has version {schema.newest()}; nodes connect as muniment_node"
    assert commands.lines("fleet", "migrate") == [last]
    told = commands.document("fleet", "migrate")
    assert (told["status"], told["version"], told["done"]) == ("migrated", schema.newest(), [])


def test_a_role_that_is_not_there_is_named(commands):
    (said,) = commands.lines("fleet", "migrate", "--role", "nobody-here", code=1)
    assert "role nobody-here not found; create it first" in said


def test_a_home_is_made_listed_given_tokens_and_removed(migrated):
    said, token = migrated.lines("fleet", "home", "add", "ada")
    assert said == "created the home ada; its token owner, printed only once:"
    assert re.fullmatch(r"[A-Za-z0-9_-]{40,}", token)
    said, second = migrated.lines("fleet", "home", "add", "ada", "--token", "editor", "--trust", "agent")
    assert said == "found the home ada; its token editor, printed only once:"
    assert second != token
    migrated.lines("fleet", "home", "add", "bob")
    assert migrated.lines("fleet", "home", "list") == ["ada", "bob"]
    assert migrated.document("fleet", "home", "list") == {"homes": ["ada", "bob"]}
    assert migrated.lines("fleet", "home", "revoke", "ada", "editor") == ["revoked editor of ada"]
    (said,) = migrated.lines("fleet", "home", "revoke", "ada", "editor", code=1)
    assert "editor" in said
    (said,) = migrated.lines("fleet", "home", "remove", "ada", code=1)
    assert "this deletes all entries and the history of ada; to confirm, use --yes" in said
    assert migrated.lines("fleet", "home", "remove", "ada", "--yes") == ["removed ada"]
    assert migrated.lines("fleet", "home", "list") == ["bob"]
    (said,) = migrated.lines("fleet", "home", "remove", "ada", "--yes", code=1)
    assert "home 'ada' not found" in said
    assert migrated.document("fleet", "home", "remove", "x", "--yes", code=1)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "../etc"), "invalid home name"),
        (("add", "ada", "--trust", "much"), "unknown trust 'much'; use one of owner, workspace"),
        (("add", "ada", "--trust", "agent"), "to create another token, use --token NAME"),
        (("add", "ada", "--token", "a b"), "token"),
        (("revoke", "nobody", "owner"), "home"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(migrated, arguments, told):
    (said,) = migrated.lines("fleet", "home", *arguments, code=1)
    assert told in said
    assert "ada" not in migrated.lines("fleet", "home", "list")


def test_the_status_names_what_there_is(migrated):
    migrated.lines("fleet", "home", "add", "ada")
    assert migrated.lines("fleet", "status") == [
        "homes: 1, with a lease now: 0",
        "tasks: none waiting",
    ]
    told = migrated.document("fleet", "status")
    assert (told["homes"], told["leases"], told["tasks"], told["nodes"]) == (1, 0, [], [])


COMMANDS = [
    ("fleet", "migrate"),
    ("fleet", "status"),
    ("fleet", "home", "list"),
    ("fleet", "home", "add", "ada"),
    ("serve",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_password_on_a_command_line_is_refused_and_repeated_nowhere(commands, command, caplog):
    url = commands.owner.replace("@", f":{SECRET}@")
    (said,) = commands.lines(*command, "--ledger", url, code=1)
    assert "could read the password of --ledger in the process list; write the URL to a file" in said
    assert SECRET not in said + caplog.text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_the_extra_it_is_said_in_a_line_what_to_install(commands, command, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "psycopg" in name else real(name))
    (said,) = commands.lines(*command, code=1)
    assert "needs the extra `fleet`: pip install" in said


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != ("serve",)], ids=" ".join)
def test_where_nobody_answers_it_is_said_so_and_no_password_is(commands, command, tmp_path):
    file = tmp_path / "url"
    file.write_text(f"postgresql://muniment:{SECRET}@127.0.0.1:1/muniment")
    file.chmod(0o600)
    (said,) = commands.lines(*command, "--ledger", str(file), code=1)
    assert SECRET not in said
    assert "the database" in said
    assert commands.document(*command, "--ledger", str(file), code=1)["error"]["code"] == "ledger_away"


def test_another_key_than_the_fleets_makes_no_token(migrated, tmp_path):
    migrated.home = tmp_path / "another"
    for command in (("add", "ada"), ("add", "ada", "--token", "editor"), ("revoke", "ada", "owner")):
        (said,) = migrated.lines("fleet", "home", *command, code=1)
        assert "is not the key of this fleet; copy it from the node" in said


@pytest.mark.parametrize(
    "command", [*COMMANDS[1:4], ("fleet", "home", "remove", "ada", "--yes")], ids=" ".join
)
def test_before_there_are_tables_it_is_said_how_to_make_them(commands, command):
    (said,) = commands.lines(*command, code=1)
    assert "run: muniment fleet migrate" in said


@pytest.mark.parametrize("command", COMMANDS[:4], ids=" ".join)
def test_as_the_nodes_role_nothing_is_made_and_it_is_said_so(migrated, command):
    done = migrated(*command, ledger=migrated.node)
    told = (done.stdout + done.stderr).splitlines()
    assert len(told) == 1 or done.exit_code == 0, told
    assert "Traceback" not in done.output
    assert migrated.document("fleet", "home", "list") == {"homes": []}


def served(commands, *arguments, **environment):
    """How `muniment serve` ended, which it has to do by itself."""
    return subprocess.run(
        [sys.executable, "-m", "muniment", "serve", *arguments],
        env={**os.environ, "MUNIMENT_HOME": str(commands.home), **environment},
        cwd=commands.home.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_node_says_where_it_serves_and_how_to_get_a_token_and_that_token_works(migrated):
    node = subprocess.Popen(
        [sys.executable, "-m", "muniment", "serve", "--ledger", migrated.node, "--node", "first"],
        env={**os.environ, "MUNIMENT_HOME": str(migrated.home)},
        cwd=migrated.home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        serving, _, told = (node.stdout.readline().rstrip() for _ in range(3))
        assert told.endswith("for a home: muniment fleet home add HOME"), told
        _, token = migrated.lines("fleet", "home", "add", "ada")
        url = serving.removeprefix("serving ")
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as http:
            assert http.get("/capabilities").json()["workspace"] == "ada"
        _, _, line = migrated.lines("fleet", "status")
        assert line.startswith("node first: 0 turns, seen "), line
    finally:
        node.terminate()
        _, log = node.communicate(timeout=60)
    assert node.returncode == 0, log


def refused(commands, *arguments, **environment):
    """In which line a node says why it does not start."""
    done = served(commands, "--ledger", commands.node, *arguments, **environment)
    assert (done.returncode, done.stdout) == (1, ""), done
    return [line for line in done.stderr.splitlines() if not line.startswith("{")][-1]


@pytest.mark.slow
def test_a_node_that_cannot_serve_says_why_and_ends(migrated):
    with psycopg.connect(migrated.owner, autocommit=True) as owner:
        move = "UPDATE muniment.migration SET name = %s WHERE of = 'muniment' AND name = %s"
        now, newer = f"{schema.newest():04}", f"{schema.newest() + 1:04}"
        owner.execute(move, (newer, now))
        said = refused(migrated)
        assert "not served: " in said
        assert str(schema.newest() + 1) in said
        assert "state_too_new" in said
        owner.execute(move, ("0000", newer))
        assert "run: muniment fleet migrate" in refused(migrated)
        owner.execute(move, (now, "0000"))
    assert "is only for a memory of this machine; remove it for a fleet" in refused(migrated, "--workspace=.")
    assert "invalid node name" in refused(migrated, "--node=a b")


@pytest.mark.slow
def test_a_node_that_was_there_before_an_upgrade_goes_on_and_does_not_start_again(migrated, tmp_path):
    """An operator migrates while nodes of the older version serve."""
    (tmp_path / "n").mkdir()
    node = NodeProcess(tmp_path / "n", migrated.node, "old")
    (tmp_path / "n" / "state" / "audit.key").write_bytes((migrated.home / "state" / "audit.key").read_bytes())
    node.start()
    try:
        node.wait()
        _, token = migrated.lines("fleet", "home", "add", "ada")
        with psycopg.connect(migrated.owner, autocommit=True) as owner:
            owner.execute(
                "INSERT INTO muniment.migration (of, name) VALUES ('muniment', %s)",
                (f"{schema.newest() + 1:04}",),
            )
        with httpx2.Client(base_url=node.url, headers={"Authorization": f"Bearer {token}"}) as http:
            asked = http.post("/workspace/memory/remember", json={"content": "The user prefers tea."})
            assert asked.status_code == 202, asked.text
        node.stop()
        node.start()
        said, _ = node.process.communicate(timeout=60)
        assert (node.process.returncode, json.loads(said)["error"]["code"]) == (1, "state_too_new")
    finally:
        node.kill()
