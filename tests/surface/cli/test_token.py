"""`muniment token`: made once, honoured and revoked at once, also while a daemon runs."""

from __future__ import annotations

import re

import pytest

from kit.daemon.process import serving

TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def test_a_token_is_made_listed_and_revoked(muniment):
    (made,) = muniment.lines("token", "add", "editor", "--client-id", "ide-2", "--client-id", "ide-1")
    assert TOKEN.fullmatch(made)
    muniment("token", "add", "script", "--trust", "owner")
    assert muniment.lines("token", "list") == [
        "editor: trust agent, client ids ide-1, ide-2",
        "script: trust owner, client ids none",
    ]
    for name in ("editor", "script"):
        assert muniment.lines("token", "revoke", name) == [f"revoked: {name}"]
    told = "no tokens but the owner's; to make one: muniment token add NAME"
    assert muniment.lines("token", "list") == [told]
    made = muniment.document("token", "add", "editor", "--client-id", "ide", "--trust", "external")
    assert TOKEN.fullmatch(made.pop("token"))
    assert made == {"name": "editor", "clients": ["ide"], "trust": "external"}
    assert muniment.document("token", "list") == {"tokens": [made]}
    assert muniment.document("token", "revoke", "editor")["status"] == "revoked"
    assert muniment.failure("token", "revoke", "editor") == "not_found"


def test_a_token_that_cannot_be_is_refused_with_what_to_do(muniment):
    muniment("token", "add", "editor", "--client-id", "ide")
    for name, flags, why in (
        ("editor", [], "there is a token 'editor' already; revoke it first, or take another name"),
        ("other", ["--client-id=ide"], "the client id 'ide' belongs to the token 'editor'"),
        ("owner", [], "'owner' cannot name a token"),
        ("", [], "'' cannot name a token"),
        ("a\nb", [], "'a\\nb' cannot name a token"),
        ("other", ["--client-id=a b"], "'a b' cannot be a client id"),
        ("other", ["--trust=boss"], "there is no trust 'boss'; there are owner, workspace, agent, external"),
    ):
        done = muniment("token", "add", name, *flags)
        assert (done.exit_code, done.stdout) == (1, "")
        assert re.fullmatch(rf"no token was made: {re.escape(why)}.* \[config_invalid\]\n", done.stderr)
    assert len(muniment.document("token", "list")["tokens"]) == 1


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
