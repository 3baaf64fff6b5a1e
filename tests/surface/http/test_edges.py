"""Promises of the daemon that only show in rare places: one step beside what is usual, or seen by others."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from kit.daemon.embedded import embedded
from muniment.daemon import http, stream
from muniment.daemon.contract import HttpProblem
from muniment.daemon.routes import rendered
from muniment.lane import OWNER, Originator, Task
from muniment.names import Trust

FACT = "The user prefers tea to coffee"


# -- a client's dream ------------------------------------------------------------------------------------


ALL = {"a.md", "b.md", *(f"{number}.md" for number in range(8))}


def plant_twice(daemon):
    """One fact in two files, among so many that a dream may remove one."""
    for name in ALL:
        fact = FACT if name in {"a.md", "b.md"} else f"The user has been to city number {name}"
        (daemon.root() / name).write_text(f"{fact}\n")


def test_what_a_clients_dream_would_remove_waits_for_the_owner(tmp_path):
    with embedded(tmp_path) as daemon:
        client = daemon.new_token("ben", trust="owner")
        plant_twice(daemon)
        task = daemon.wait(daemon.submit("dream", {}, token=client), token=client)
        assert (task["status"], task["error"]["code"]) == ("failed", "pending_review")
        assert task["reviewId"]
        assert set(daemon.files()) == ALL


def test_what_the_owners_dream_removes_is_gone(tmp_path):
    with embedded(tmp_path) as daemon:
        plant_twice(daemon)
        task = daemon.wait(daemon.submit("dream", {}))
        assert (task["status"], task["result"]["dedupedEntries"]) == ("completed", 1)
        assert set(daemon.files()) == ALL - {"b.md"}


# -- a forget of a client is no way to read ----------------------------------------------------------------


def test_a_client_is_told_the_same_of_what_stays_and_of_what_is_not_there(tmp_path):
    with embedded(tmp_path) as daemon:
        client = daemon.new_token("ben", trust="external")
        daemon.wait(daemon.remember(FACT))
        summaries = [
            daemon.wait(daemon.submit("forget", {"query": word}, token=client), token=client)["result"]
            for word in ("coffee", "cocoa")
        ]
    assert [each.pop("summary") for each in summaries] == [
        "nothing that may be removed holds all of: coffee",
        "nothing that may be removed holds all of: cocoa",
    ]
    assert summaries[0] == summaries[1]


# -- events, sockets, scopes, cancels ----------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize("behind", [-1, 0, 1])
def test_nothing_is_missed_where_memory_ends_and_the_ledger_begins(tmp_path, monkeypatch, behind):
    monkeypatch.setattr(stream, "RING", 4)
    with embedded(tmp_path) as daemon:
        accepted = [daemon.submit("forget", {"query": f"nothing {number}"}) for number in range(3)]
        daemon.wait(accepted[-1])
        first, last = daemon.core.stream.last - 4 + behind, daemon.core.stream.last
        with daemon.follow(cursor=daemon.cursor(first)) as follower:
            seen = [next(follower).number for _ in range(last - first)]
    assert seen == list(range(first + 1, last + 1))


def test_every_scope_is_let_through_while_nobody_knows_which_there_are():
    closed = SimpleNamespace(is_open=False, scopes=dict)
    assert http.remember({"content": "x", "scope": "team"}, closed).arguments["scope"] == "team"
    with pytest.raises(HttpProblem, match="invalid_scope"):
        http.remember({"content": "x", "scope": "team"}, SimpleNamespace(is_open=True, scopes=dict))


@pytest.mark.parametrize(
    ("viewer", "status"),
    [
        (Originator("ide", "window-1"), "cancelled"),
        (Originator("ide", "window-2"), "failed"),
        (Originator("ide"), "failed"),
        (Originator(OWNER, "window-1"), "failed"),
    ],
)
def test_only_who_cancelled_by_token_and_id_is_told_so(viewer, status):
    who = Originator("ide", "window-1")
    task = Task(
        seq=1,
        id="forget-1",
        kind="forget",
        status="cancelled",
        originator=who,
        trust=Trust.AGENT,
        attempt=1,
        created="2026-11-22T10:00:00.000Z",
        updated="2026-11-22T10:00:00.000Z",
        shown={},
        arguments=None,
        cancelled_by=who,
    )
    told = json.loads(rendered(task, viewer).model_dump_json(by_alias=True, exclude_none=True))
    assert told["status"] == status
    assert told.get("error", {}).get("code") == (None if status == "cancelled" else "cancelled")
