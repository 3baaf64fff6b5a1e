"""Recall over HTTP: results, identities, errors, and recalls that hang."""

from __future__ import annotations

import json
import math
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import get_type_hints

import pytest

from kit.recall.contexts import WAIT, EndlessSweep
from kit.server.process import BASE, STOP_SECONDS
from kit.server.raw import start_local_daemon
from muniment import errors
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import MAX_PATH_BYTES, Digest
from muniment.names import MAX_FACT_BYTES
from muniment.operations import listing
from muniment.recall.recaller import MAX_ENTRIES, Recaller
from muniment.server import contract, recalls, service
from muniment.types import EntryList, Recalled

PATH = f"{BASE}/recall"
FACT = "The user prefers the harpsichord to the piano"
QUERY = "Does the user prefer a harpsichord?"
EMPTY = {"entries": [], "text": "", "tokens": 0, "abstained": False}
DRAINING, BUSY = (503, "workspace_draining"), (503, "busy")


def recall_entries(daemon, query=QUERY, **more):
    """Recall entries; `token` and `client` identify the caller."""
    identity = {name: more.pop(name) for name in ("token", "client") if name in more}
    answer = daemon.post(PATH, {"query": query, **more}, **identity)
    assert answer.status_code == 200, answer.text
    return answer.json()


def list_paths(found):
    return [each["path"] for each in found["entries"]]


@pytest.fixture(scope="module")
def harpsichord(tmp_path_factory):
    """Start a daemon with one fact."""
    with start_local_daemon(tmp_path_factory.mktemp("recall")) as served:
        (served.path,) = served.run_task("remember", {"content": FACT, "scope": "user"})["result"][
            "filesTouched"
        ]
        yield served


# -- results -------------------------------------------------------------------------------------------


def test_recall_finds_fact_for_every_token_unless_excluded(harpsichord):
    found, client = recall_entries(harpsichord), harpsichord.client
    (entry,) = found["entries"]
    assert (entry["path"], entry["trust"]) == (harpsichord.path, "owner")
    assert re.fullmatch(re.escape(harpsichord.path) + "@[0-9a-f]{64}", entry["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["at"])
    assert FACT in entry["text"]
    pattern = f"## Memory\n(?s:.*)<<memory (?s:.*){re.escape(entry['text'])}"
    assert re.match(pattern, found["text"])
    assert (found["tokens"] > 0, found["abstained"], "error" in found) == (True, False, False)
    for identity in {"token": client}, {"token": client, "client": "client-1"}:
        assert list_paths(recall_entries(harpsichord, **identity)) == [harpsichord.path]
    for more in {"query": "Where do penguins sleep?"}, {"query": "…"}, {"exclude": [entry["id"]] * 2}:
        assert recall_entries(harpsichord, **more) == {**EMPTY, "abstained": True}
    unknown_ids = ["", "@", "user/x.md@", "\0", "galaxy/x.md@0", "' OR 1=1 --", "x" * 1200, entry["path"]]
    unknown_ids += [f"@{entry['id'].partition('@')[2]}", f"{harpsichord.path}@{'0' * 64}"]
    assert list_paths(recall_entries(harpsichord, exclude=unknown_ids)) == [harpsichord.path]


def test_standing_context_is_returned_to_every_token(harpsichord):
    external = harpsichord.add_client("outsider", trust="external")
    for token in None, harpsichord.client, external:
        answer = harpsichord.get(f"{BASE}/context", token=token)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["text"].startswith("## Memory\n")
        assert f"\n- {FACT}" in found["text"]
        assert list_paths(found) == [harpsichord.path]
        assert 0 < found["tokens"] <= 1_500
    assert list_paths(harpsichord.get(f"{BASE}/context?budget={found['tokens'] - 1}").json()) == []
    assert harpsichord.get(f"{BASE}/context?budget=0").json() == EMPTY


@pytest.mark.parametrize(
    ("query", "field"),
    [("budget=-1", "budget"), ("budget=x", "budget"), ("budget=", "budget"), ("b=1", None)],
)
def test_invalid_query_of_standing_context_is_rejected(harpsichord, query, field):
    answer = harpsichord.get(f"{BASE}/context?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json().get("field") == field


def test_sweep_ends_before_daemon_closes_its_roots(tmp_path, monkeypatch):
    sweep = EndlessSweep(monkeypatch)
    with start_local_daemon(tmp_path) as daemon:
        for _ in range(2):
            recall_entries(daemon)
        assert sweep.started.wait(WAIT)
    assert set(sweep.root_was_open) == {True}


def test_recall_finds_append_of_another_process(separate_daemon):
    (path,) = separate_daemon.run_task("remember", {"content": FACT, "scope": "user"})["result"][
        "filesTouched"
    ]
    file, found = separate_daemon.base / "home" / path, [recall_entries(separate_daemon)]
    inode = file.stat().st_ino
    for number in range(3):
        text = f"On day{number} the theremin was tuned to pitch{number}"
        subprocess.run(
            ["/bin/sh", "-c", 'echo "$1" >> "$0"', str(file), text], check=True, timeout=STOP_SECONDS
        )
        (entry,) = recall_entries(separate_daemon, f"theremin of day{number}, pitch{number}?")["entries"]
        assert (entry["path"], text in entry["text"]) == (path, True)
        second = recall_entries(separate_daemon, QUERY, exclude=[each["id"] for each in found[-1]["entries"]])
        assert list_paths(second) == [path]  # The injected text was different.
        found.append(second)
    assert file.stat().st_ino == inode


# -- invalid recalls -----------------------------------------------------------------------------------


def test_invalid_recall_body_is_rejected_and_limits_accepted(harpsichord):
    texts = (None, 7, "", " \n\t", ["a"], "a\0b", "x" * (MAX_FACT_BYTES + 1), "é" * 32_769)
    lists = ("a", [7], {"a": 1}, ["a"] * 501, ["x" * 1201], [0] * 150_000)
    for body in (
        *([], "a", None, {"Query": "a"}, {"query": "a", "budget": 1}, *({"query": each} for each in texts)),
        *({"query": "a", "exclude": each} for each in lists),
        *({"query": "a", "limit": each} for each in (0, 21, 5.5, "5", True, 10**30)),
    ):
        sent = harpsichord.request_problem("POST", PATH, json.dumps(body).encode())
        assert sent == (400, "invalid_request"), str(body)[:40]
    words = " ".join(f"harpsichord{number}" for number in range(80))
    long = f"harpsichord {'é' * ((MAX_FACT_BYTES - 12) // 2)}"
    for query in words, long, f"   {'x' * MAX_FACT_BYTES}\n", "half of \ud83d\ude00 is none, two are one":
        assert "error" not in recall_entries(harpsichord, query)
    for exclude, limit in ([f"user/{number}.md@{'0' * 64}" for number in range(500)], 20), ([], 1):
        assert list_paths(recall_entries(harpsichord, exclude=exclude, limit=limit)) == [harpsichord.path]
    assert MAX_PATH_BYTES + len("@") + 64 <= contract.MAX_ID_CHARS
    assert contract.RecallBody.model_fields["limit"].default == MAX_ENTRIES


# -- errors --------------------------------------------------------------------------------------------


def test_recall_errors_use_codes_of_contract():
    named = get_type_hints(Recalled, include_extras=True)["error"].__metadata__[1].codes
    assert set(named) == {code for code, each in errors.CODES.items() if each.recall_sentence}
    unavailable = (
        errors.ManagedMemoryUnavailable("ledger.db", "?"),
        errors.PolicyInvalid("E101", "p.toml", "?"),
    )
    unavailable += errors.ConfigInvalid("?"), errors.InvalidScope("?"), errors.PathEscape("root", "user", "?")
    failures = errors.build_recall_failure("TypeError"), errors.ToolError("user/a.md", code="not_text")
    assert {contract.choose_recall_code(error) for error in unavailable} == {"managed_memory_unavailable"}
    assert {contract.choose_recall_code(error) for error in failures} == {"recall_failed"}
    assert contract.choose_recall_code(errors.DeadlineExceeded("late")) == "deadline"


# -- the ledger and the metrics ------------------------------------------------------------------------


def test_recall_is_recorded_and_counted_by_outcome(separate_daemon, monkeypatch):
    separate_daemon.run_task("remember", {"content": FACT})
    found = recall_entries(separate_daemon)
    (entry,) = found["entries"]
    for more in {"exclude": [entry["id"]]}, {"query": "penguins"}:
        assert recall_entries(separate_daemon, **more)["abstained"]
    rows = separate_daemon.core.state.ledger.rows(
        "SELECT body FROM record WHERE kind = 'injection' ORDER BY seq"
    )
    path, _, digest = entry["id"].partition("@")
    expected_entry = {"path": path, "digest": Digest(digest)}
    expected = {"where": "daemon", "tokens": found["tokens"], "entries": [expected_entry]}
    assert [json.loads(body) for (body,) in rows] == [expected]
    monkeypatch.setattr("muniment.recall.recaller.Recaller.recall", None)
    recall_entries(separate_daemon)
    metrics = dict(line.rsplit(" ", 1) for line in separate_daemon.get("/metrics").text.splitlines())
    for outcome, count in {"found": 1, "abstained": 2, "failed": 1}.items():
        assert float(metrics[f'muniment_recalls_total{{outcome="{outcome}"}}']) == count


# -- recalls that hang block no one else ---------------------------------------------------------------


@pytest.fixture
def block_recalls(monkeypatch):
    """Return a function that blocks later recalls, with `heeds=True` only until their deadline.

    Each recall releases `begun` when it starts, and continues when `free` is set.
    """
    blocks = []

    def block(*, heeds=False):
        started, free = threading.Semaphore(0), threading.Event()
        blocks.append(SimpleNamespace(begun=started, free=free))

        def recall(_self, _query, *, deadline, **_terms):
            started.release()
            try:
                while not free.wait(0.005):
                    if heeds:
                        deadline.check()
            except errors.MunimentError as error:
                return Recalled(error=error)
            return Recalled(abstained=True)

        monkeypatch.setattr(Recaller, "recall", recall)
        return blocks[-1]

    yield block
    for each in blocks:
        each.free.set()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4 * recalls.MAX_RECALLS) as pool:
        yield pool


def send_recall(daemon, token=None):
    return daemon.request_problem("POST", PATH, {"query": QUERY}, token=token)


@contextmanager
def run_blocked_recalls(daemon, block, threads, *tokens):
    """Run one blocked recall per token, then release them and check that they were answered."""
    requests = [threads.submit(send_recall, daemon, token) for token in tokens]
    for _ in requests:
        assert block.begun.acquire(timeout=STOP_SECONDS)
    yield
    block.free.set()
    assert {each.result(STOP_SECONDS)[0] for each in requests} == {200}


def test_hanging_recalls_of_one_token_block_no_one_else(separate_daemon, block_recalls, threads, monkeypatch):
    monkeypatch.setattr(recalls, "RECALL_SECONDS", STOP_SECONDS)
    monkeypatch.setattr(recalls, "SLOT_WAIT_SECONDS", 0.05)
    one, two = separate_daemon.client, separate_daemon.add_client("two")
    block, half = block_recalls(), recalls.MAX_RECALLS // 2
    with run_blocked_recalls(separate_daemon, block, threads, *[one] * half):
        busy = separate_daemon.post(PATH, {"query": QUERY}, token=one)
        assert (busy.status_code, busy.json()["code"], busy.headers["retry-after"]) == (*BUSY, "1")
        with run_blocked_recalls(separate_daemon, block, threads, *[two] * (half - recalls.RECALL_RESERVE)):
            assert send_recall(separate_daemon, two) == BUSY
            with run_blocked_recalls(separate_daemon, block, threads, *[None] * recalls.RECALL_RESERVE):
                assert send_recall(separate_daemon) == BUSY
                for path in "/healthz", "/readyz", f"{BASE}/review":
                    assert separate_daemon.get(path).status_code == 200
                assert (
                    separate_daemon.run_task("remember", {"content": "We deploy on Thursdays"})["status"]
                    == "completed"
                )
                served = separate_daemon.guard  # A request is counted until its answer has been sent.
                separate_daemon.wait_until(
                    lambda: (len(served.in_progress), len(served.waiting)) == (0, recalls.MAX_RECALLS)
                )
    assert send_recall(separate_daemon, one)[0] == 200
    separate_daemon.wait_until(lambda: not separate_daemon.core.recalls._running)


def test_recall_past_deadline_is_empty_and_keeps_its_place(separate_daemon, block_recalls, monkeypatch):
    monkeypatch.setattr(recalls, "RECALL_SECONDS", 0.05)
    monkeypatch.setattr(recalls, "_LATE_SECONDS", 0.05)
    running_recalls = separate_daemon.core.recalls._running
    for heeds in True, False:
        block = block_recalls(heeds=heeds)
        assert recall_entries(separate_daemon) == {**EMPTY, "error": "deadline"}
        if heeds:
            separate_daemon.wait_until(lambda: not running_recalls)
    assert len(running_recalls) == 1
    block.free.set()
    separate_daemon.wait_until(lambda: not running_recalls)
    assert len(separate_daemon.core.recalls._slots) == 0


def test_recall_ends_with_error_on_revoked_token_or_stop(separate_daemon, block_recalls, threads):
    token, block = separate_daemon.add_client("passing"), block_recalls()
    request = threads.submit(separate_daemon.post, PATH, {"query": QUERY}, token=token)
    assert block.begun.acquire(timeout=STOP_SECONDS)
    separate_daemon.core.tokens.revoke("passing")
    block.free.set()
    answer = request.result(STOP_SECONDS)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    block, request = block_recalls(heeds=True), threads.submit(send_recall, separate_daemon)
    assert block.begun.acquire(timeout=STOP_SECONDS)
    assert separate_daemon.run_coroutine(separate_daemon.core.stop(0))
    assert request.result(STOP_SECONDS) == DRAINING
    separate_daemon.core._is_draining = False
    assert send_recall(separate_daemon) == DRAINING  # It arrived before the stop and starts after it.


@pytest.mark.slow
def test_hanging_recall_or_disk_does_not_block_stop(tmp_path, block_recalls, threads, monkeypatch):
    for module, name in (
        (recalls, "_RECALL_END_SECONDS"),
        (recalls, "_LATE_SECONDS"),
        (service, "_LINGER_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.1)
    block = block_recalls()
    with start_local_daemon(tmp_path, grace=0, expects_defects=True) as daemon:
        request = threads.submit(send_recall, daemon)
        assert block.begun.acquire(timeout=STOP_SECONDS)
        workspace = daemon.core.workspaces[daemon.key]
        monkeypatch.setattr(workspace, "problem", lambda: (block.begun.release(), block.free.wait()))
        readiness = threads.submit(daemon.get, "/readyz")
        assert block.begun.acquire(timeout=STOP_SECONDS)
        assert not daemon.run_coroutine(daemon.core.stop(0))
        daemon.run_coroutine(daemon.daemon.stop())
        assert (request.result(STOP_SECONDS), readiness.result(STOP_SECONDS).status_code) == (DRAINING, 503)
    block.free.set()


# -- reads of entries ----------------------------------------------------------------------------------


def block_reads(monkeypatch):
    """Block reads of entries until `free` is set or the caller has disconnected."""
    block = SimpleNamespace(begun=threading.Semaphore(0), free=threading.Event(), ended=threading.Event())

    def list_blocked(_place, _reader, *, cancel, **_terms):
        block.begun.release()
        try:
            while not block.free.wait(0.005):
                Deadline(math.inf, cancel).check()
        finally:
            block.ended.set()
        return EntryList(entries=(), expired=0, skipped=(), complete=True)

    monkeypatch.setattr(listing, "list_entries", list_blocked)
    return block


@pytest.mark.threat("T-API-03", control="shares")
def test_reads_of_one_token_leave_places_to_the_owner(separate_daemon, threads, monkeypatch):
    monkeypatch.setattr(recalls, "SLOT_WAIT_SECONDS", 0.05)
    one, two, path = (
        separate_daemon.add_client("reader"),
        separate_daemon.add_client("second"),
        f"{BASE}/entries",
    )
    block = block_reads(monkeypatch)
    requests = []
    try:
        for token in (one, one, two):
            requests.append(threads.submit(separate_daemon.get, path, token=token))
            assert block.begun.acquire(timeout=STOP_SECONDS)
        for token in (one, two):
            busy = separate_daemon.get(path, token=token)
            assert (busy.status_code, busy.json()["code"]) == BUSY
        requests.append(threads.submit(separate_daemon.get, path))
        assert block.begun.acquire(timeout=STOP_SECONDS)
    finally:
        block.free.set()
    assert {each.result(STOP_SECONDS).status_code for each in requests} == {200}
    assert len(separate_daemon.core.read_slots) == 0


def test_read_stops_when_connection_closes(separate_daemon, monkeypatch):
    block = block_reads(monkeypatch)
    request = separate_daemon.build_request("GET", f"{BASE}/entries")
    with separate_daemon.open_connection() as line:
        assert line.send(request)
        assert block.begun.acquire(timeout=STOP_SECONDS)
    assert block.ended.wait(STOP_SECONDS)
    separate_daemon.wait_until(lambda: len(separate_daemon.core.read_slots) == 0)
