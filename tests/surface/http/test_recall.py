"""What is recalled over HTTP, by whom, and what is answered where it cannot be."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest

from kit.daemon.embedded import embedded
from kit.daemon.process import BASE, serving
from muniment.daemon import contract
from muniment.daemon.contract import RECALL, recall_code
from muniment.errors import (
    ConfigInvalid,
    DeadlineExceeded,
    InvalidScope,
    ManagedMemoryUnavailable,
    NotText,
    PathEscape,
    PolicyInvalid,
    RecallFailed,
)
from muniment.names import MAX_FACT_BYTES, MAX_PATH_BYTES, Digest
from muniment.recall.recaller import MAX_ENTRIES
from muniment.store.audit import append

RECALL_PATH = f"{BASE}/recall"
FACT = "The user prefers the harpsichord to the piano"
QUERY = "Does the user prefer a harpsichord?"
EMPTY = {"entries": [], "text": "", "tokens": 0, "abstained": False}


def recalled(daemon, query=QUERY, **more):
    """What a recall is answered with; `token` and `client` say who asks."""
    whose = {name: more.pop(name) for name in ("token", "client") if name in more}
    answer = daemon.post(RECALL_PATH, {"query": query, **more}, **whose)
    assert answer.status_code == 200, answer.text
    return answer.json()


def paths(found):
    return [each["path"] for each in found["entries"]]


def remembered(daemon, *facts, **body):
    """Have facts remembered; their paths."""
    found = []
    for fact in facts:
        task = daemon.wait(daemon.remember(fact, scope="user", **body))
        assert task["status"] == "completed", task
        found += task["result"]["filesTouched"]
    return found


@pytest.fixture(scope="module")
def harpsichord(tmp_path_factory):
    """A daemon that knows one fact."""
    with serving(tmp_path_factory.mktemp("recall")) as served:
        (served.path,) = remembered(served, FACT)
        served.client = served.new_token("reader", "reader-1", trust="external")
        yield served


@pytest.fixture
def alone(tmp_path):
    """A daemon of the test's own, that knows it too."""
    with embedded(tmp_path) as served:
        (served.path,) = remembered(served, FACT)
        yield served


# -- what is found ---------------------------------------------------------------------------------------


def test_what_was_remembered_is_recalled(harpsichord):
    found = recalled(harpsichord)
    (entry,) = found["entries"]
    assert (entry["path"], entry["trust"]) == (harpsichord.path, "owner")
    assert re.fullmatch(re.escape(harpsichord.path) + "@[0-9a-f]{64}", entry["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["at"])
    assert FACT in entry["text"]
    assert found["text"].startswith("## Relevant Memory\n")
    assert entry["text"] in found["text"]
    assert entry["path"] in found["text"]
    assert found["tokens"] > 0
    assert (found["abstained"], found["error"]) == (False, None)


def test_what_nothing_is_about_is_answered_with_nothing(harpsichord):
    for query in ("Where do penguins sleep?", "hello", "…"):
        assert recalled(harpsichord, query) == {**EMPTY, "abstained": True, "error": None}


def test_what_was_shown_is_not_shown_again(harpsichord):
    (entry,) = recalled(harpsichord)["entries"]
    again = recalled(harpsichord, exclude=[entry["id"], entry["id"]])
    assert again == {**EMPTY, "abstained": True, "error": None}


@pytest.mark.parametrize(
    "unsafe_id", ["", "@", "user/", "user/x.md@", "\0", "galaxy/x.md@0", "' OR 1=1 --", "x" * 1200]
)
def test_what_is_the_id_of_no_entry_excludes_none(harpsichord, unsafe_id):
    digest = recalled(harpsichord)["entries"][0]["id"].partition("@")[2]
    exclude = [unsafe_id, harpsichord.path, f"@{digest}", f"{harpsichord.path}@{'0' * 64}"]
    assert paths(recalled(harpsichord, exclude=exclude)) == [harpsichord.path]


def test_an_entry_that_was_edited_since_comes_again(alone):
    (before,) = recalled(alone)["entries"]
    file = alone.root() / alone.path.removeprefix("user/")
    file.write_text(
        file.read_text(encoding="utf-8") + "\nBy hand: a harpsichord with two manuals.\n", encoding="utf-8"
    )
    (after,) = recalled(alone, exclude=[before["id"]])["entries"]
    assert (after["path"], after["id"] != before["id"]) == (before["path"], True)
    assert "two manuals" in after["text"]


@pytest.mark.slow
def test_a_limit_is_kept_and_what_is_left_out_makes_room_for_others(alone):
    remembered(alone, *(f"The user tunes harpsichord number {word}" for word in ("seven", "eight", "nine")))
    seen, rounds = [], []
    while entries := recalled(alone, "tunes harpsichord number", limit=2, exclude=seen)["entries"]:
        rounds.append(len(entries))
        seen += [each["id"] for each in entries]
    assert len(set(seen)) == len(seen) >= 3
    assert max(rounds) == 2


@pytest.mark.slow
def test_another_workspace_tells_of_its_own_project_alone(tmp_path):
    (tmp_path / "other" / ".git").mkdir(parents=True)
    flags = ("--workspace", str(tmp_path / "other"))
    with serving(tmp_path, *flags) as daemon:
        done = daemon.wait(daemon.remember("This project ships harpsichords on Mondays", scope="project"))
        path = done["result"]["filesTouched"]
        told = [
            daemon.post(f"/workspaces/{key}/memory/recall", {"query": "ships harpsichords"}).json()
            for key in daemon.get("/readyz").json()["workspaces"]
        ]
        assert [paths(each) for each in told] == [path, []]
        assert daemon.post("/workspaces/nowhere/memory/recall", {"query": "x"}).status_code == 403


# -- who may, and what is no recall ----------------------------------------------------------------------


def test_every_token_recalls(harpsichord):
    for whose in ({"token": harpsichord.client}, {"token": harpsichord.client, "client": "reader-1"}, {}):
        assert paths(recalled(harpsichord, **whose)) == [harpsichord.path]
    stranger = harpsichord.post(RECALL_PATH, {"query": QUERY}, token=harpsichord.client, client="other-1")
    assert (stranger.status_code, stranger.json()["code"]) == (400, "invalid_client_id")
    assert harpsichord.post(RECALL_PATH, {"query": QUERY}, token="x" * 43).status_code == 401


WRONG = [
    {},
    *(
        {"query": value}
        for value in (None, 7, "", " \n\t", ["a"], "a\0b", "x" * (MAX_FACT_BYTES + 1), "é" * 32_769)
    ),
    *(
        {"query": "a", "exclude": value}
        for value in (None, "a", [7], [None], {"a": 1}, ["a"] * 501, ["x" * 1201])
    ),
    {"query": "a", "exclude": [0] * 150_000},
    *({"query": "a", "limit": value} for value in (None, 0, 21, -1, 5.0, "5", True, [], 10**30)),
    {"query": "a", "budget": 1},
    {"query": "a", "scope": "user"},
    {"Query": "a"},
    [],
    "a",
    None,
]


@pytest.mark.parametrize("body", WRONG, ids=lambda body: json.dumps(body)[:30])
def test_a_body_that_is_none_is_refused(harpsichord, body):
    answer = harpsichord.post(RECALL_PATH, json.dumps(body).encode())
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_a_body_is_taken_up_to_its_limits(harpsichord):
    words = " ".join(f"harpsichord{number}" for number in range(80))
    for body in (
        {"query": f"harpsichord suits {words}"},
        {"query": f"harpsichord {'é' * ((MAX_FACT_BYTES - 12) // 2)}"},
        {"query": f"   {'x' * MAX_FACT_BYTES}\n"},
        {"query": "half of \ud83d\ude00 a pair is none, two are one"},
        {"query": QUERY, "exclude": [f"user/{number}.md@{'0' * 64}" for number in range(500)], "limit": 20},
        {"query": QUERY, "exclude": [], "limit": 1},
    ):
        assert recalled(harpsichord, **body)["error"] is None
    assert harpsichord.post(RECALL_PATH, b'{"query": "\\ud83d"}').json()["code"] == "invalid_json"
    assert MAX_PATH_BYTES + len("@") + 64 <= contract.MAX_ID_CHARS
    assert contract.RecallBody.model_fields["limit"].default == MAX_ENTRIES


# -- what goes wrong -------------------------------------------------------------------------------------


def test_the_codes_of_recalls_are_those_that_the_contract_names():
    named = get_args(get_args(contract.Recalled.model_fields["error"].annotation)[0])
    assert set(named) == set(RECALL)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ManagedMemoryUnavailable("ledger.db", "is full"), "managed_memory_unavailable"),
        (PolicyInvalid("E101", "p.toml", "unknown"), "managed_memory_unavailable"),
        (ConfigInvalid("no such directory"), "managed_memory_unavailable"),
        (InvalidScope("there is no scope"), "managed_memory_unavailable"),
        (PathEscape("root", "user", "was replaced"), "managed_memory_unavailable"),
        (DeadlineExceeded("late"), "deadline"),
        (RecallFailed("TypeError"), "recall_failed"),
        (NotText("user/a.md"), "recall_failed"),
    ],
)
def test_whatever_goes_wrong_has_one_of_these(error, code):
    assert recall_code(error) == code


@pytest.mark.slow
def test_a_catalog_that_is_damaged_is_begun_anew(tmp_path):
    with serving(tmp_path) as daemon:
        path = remembered(daemon, FACT)
        assert paths(recalled(daemon)) == path
        assert daemon.stop() == 0
        catalog = daemon.home / "state" / "catalog.db"
        data = catalog.read_bytes()
        catalog.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
        daemon.start()
        assert paths(recalled(daemon)) == path


def test_a_catalog_that_is_damaged_while_it_is_served_is_begun_anew(alone, monkeypatch):
    state, renewed = alone.core.state, []
    renew = state.renew_catalog
    monkeypatch.setattr(state, "renew_catalog", lambda: (renewed.append(True), renew()))
    assert paths(recalled(alone)) == [alone.path]
    with state.catalog.transaction() as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE text_data SET block = x'a5a5a5a5a5a5'")
    found = recalled(alone)
    assert (paths(found), found["error"], renewed) == ([alone.path], None, [True])


def test_a_root_that_was_replaced_is_told_once_and_then_served_as_it_is(alone):
    assert recalled(alone)["entries"]
    root = alone.root()
    root.rename(root.with_name("before"))
    shutil.copytree(root.with_name("before"), root)
    assert recalled(alone) == {**EMPTY, "error": "managed_memory_unavailable"}
    assert paths(recalled(alone)) == [alone.path]


@pytest.mark.slow
def test_a_policy_that_cannot_be_loaded_leaves_recalls_empty(start_daemon, tmp_path):
    (tmp_path / "policy.toml").write_text("schema = 1\n", encoding="utf-8")
    daemon = start_daemon("--policy", str(tmp_path / "policy.toml"))
    assert daemon.post(f"{BASE}/remember", {"content": FACT}).status_code == 409
    assert recalled(daemon) == {**EMPTY, "error": "managed_memory_unavailable"}
    assert '"code": "policy_invalid", "event": "memory_retrieval_failed"' in daemon.log


# -- the ledger, the metrics, many at once ---------------------------------------------------------------


def injections(daemon):
    rows = daemon.core.state.ledger.rows("SELECT body FROM record WHERE kind = 'injection' ORDER BY seq")
    return [json.loads(body) for (body,) in rows]


def test_what_is_answered_is_on_record_as_put_before_a_model(alone):
    (entry,) = recalled(alone)["entries"]
    recalled(alone, exclude=[entry["id"]])
    recalled(alone, "penguins")
    (body,) = injections(alone)
    path, _, digest = entry["id"].partition("@")
    assert body == {
        "where": "daemon",
        "tokens": recalled(alone)["tokens"],
        "entries": [{"path": path, "digest": Digest(digest)}],
    }
    assert "prefer a harpsichord" not in str(body)


def test_a_record_that_cannot_be_written_takes_nothing_from_the_answer(alone, monkeypatch, caplog):
    caplog.set_level("INFO", "muniment")

    def full(state, at, kind, *rest):
        if kind == "injection":
            raise ManagedMemoryUnavailable("ledger.db", "is full")
        append(state, at, kind, *rest)

    monkeypatch.setattr("muniment.recall.recaller.append", full)
    assert paths(recalled(alone)) == [alone.path]
    assert injections(alone) == []
    assert "injection_not_recorded" in caplog.text


def test_recalls_are_counted_by_how_they_end(alone, monkeypatch):
    recalled(alone)
    recalled(alone, "penguins")
    recalled(alone, "penguins")
    monkeypatch.setattr("muniment.recall.recaller.Recaller.recall", None)
    recalled(alone)
    told = dict(line.rsplit(" ", 1) for line in alone.get("/metrics").text.splitlines())
    assert {
        outcome: float(told[f'muniment_recalls_total{{outcome="{outcome}"}}'])
        for outcome in ("found", "abstained", "failed")
    } == {"found": 1, "abstained": 2, "failed": 1}


@pytest.mark.slow
def test_many_at_once_are_all_answered_while_the_memory_changes(harpsichord):
    def insist(token):
        """Ask, again where there was no place: a slow disk makes each take its time."""
        while (answer := harpsichord.post(RECALL_PATH, {"query": QUERY}, token=token)).status_code == 503:
            assert (answer.json()["code"], answer.headers["retry-after"]) == ("busy", "1")
        return answer.json()

    tasks = [harpsichord.remember(f"The user has the whim number {number}") for number in range(4)]
    whose = [harpsichord.token, harpsichord.client] * 25
    with ThreadPoolExecutor(len(whose)) as threads:
        found = list(threads.map(insist, whose))
    assert {(*paths(each), each["error"]) for each in found} == {(harpsichord.path, None)}
    assert {harpsichord.wait(task)["status"] for task in tasks} == {"completed"}
