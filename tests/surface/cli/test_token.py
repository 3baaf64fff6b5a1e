"""`muniment token`: made once, honoured and revoked at once, also while a daemon runs."""

from __future__ import annotations

import json
import re

import pytest

from kit.cli.launched import run
from kit.daemon.process import serving
from muniment.cli import daemon as commands

TOKEN = re.compile(r"[A-Za-z0-9_-]{43}\n")


@pytest.fixture
def token(tmp_path, monkeypatch, capsys):
    """Runs a command of this process over a home of its own: exit code, output, errors."""
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path / "home"))

    def token(command, *arguments, as_json=False, **more):
        code = getattr(commands, f"{command}_token{'s' if command == 'list' else ''}")(
            *arguments, as_json=as_json, **more
        )
        return code, *capsys.readouterr()

    return token


def test_a_token_is_made_listed_and_revoked(tmp_path):
    code, out, err = run(tmp_path, "token", "add", "editor", "--client-id", "ide-2", "--client-id", "ide-1")
    assert (code, err) == (0, "")
    assert TOKEN.fullmatch(out)
    listed = run(tmp_path, "token", "list")
    assert listed == (0, "editor: trust agent, client ids ide-1, ide-2\n", "")
    assert run(tmp_path, "token", "revoke", "editor") == (0, "revoked: editor\n", "")
    told = "no tokens but the owner's; to make one: muniment token add NAME\n"
    assert run(tmp_path, "token", "list") == (0, told, "")


def test_what_scripts_read_of_tokens(token):
    code, out, _ = token("add", "editor", ["ide"], "external", as_json=True)
    made = json.loads(out)
    assert code == 0
    assert TOKEN.fullmatch(made.pop("token") + "\n")
    assert made == {"name": "editor", "clients": ["ide"], "trust": "external"}
    assert json.loads(token("list", as_json=True)[1]) == {"tokens": [made]}
    assert json.loads(token("revoke", "editor", as_json=True)[1])["status"] == "revoked"
    code, out, err = token("revoke", "editor", as_json=True)
    assert (code, json.loads(out)["error"]["code"], err) == (1, "not_found", "")


@pytest.mark.parametrize(
    ("name", "clients", "trust", "why"),
    [
        ("editor", [], "agent", "there is a token 'editor' already; revoke it first, or take another name"),
        ("other", ["ide"], "agent", "the client id 'ide' belongs to the token 'editor'"),
        ("owner", [], "agent", "'owner' cannot name a token"),
        ("", [], "agent", "'' cannot name a token"),
        ("a\nb", [], "agent", "'a\\nb' cannot name a token"),
        ("other", ["a b"], "agent", "'a b' cannot be a client id"),
        ("other", [], "boss", "there is no trust 'boss'; there are owner, workspace, agent, external"),
    ],
)
def test_a_token_that_cannot_be_is_refused_with_what_to_do(token, name, clients, trust, why):
    token("add", "editor", ["ide"], "agent")
    code, out, err = token("add", name, clients, trust)
    assert (code, out) == (1, "")
    assert err.startswith(f"no token was made: {why}")
    assert err.endswith(" [config_invalid]\n")
    assert err.count("\n") == 1
    assert len(json.loads(token("list", as_json=True)[1])["tokens"]) == 1


def test_a_token_without_client_ids_says_so(token):
    token("add", "script", [], "owner")
    assert token("list")[1] == "script: trust owner, client ids none\n"


@pytest.mark.slow
def test_a_running_daemon_honours_a_new_token_and_its_end_at_once(tmp_path):
    with serving(tmp_path) as daemon:
        made = daemon.muniment("token", "add", "editor", "--client-id", "ide")["token"]
        assert daemon.get("/healthz", token=made).status_code == 200
        assert daemon.get("/workspace/memory/tasks", token=made, client="ide").status_code == 200
        daemon.muniment("token", "revoke", "editor")
        refused = daemon.get("/healthz", token=made)
        assert (refused.status_code, refused.json()["code"]) == (401, "token_required")
        assert daemon.get("/healthz").status_code == 200
