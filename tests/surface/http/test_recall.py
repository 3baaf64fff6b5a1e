"""What is recalled over HTTP, by whom, what is answered where it cannot be, and recalls that hang."""

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

from kit.recall.places import WAIT, EndlessSweep
from kit.server.process import BASE, STOP_SECONDS
from kit.server.raw import running
from muniment import errors
from muniment.kernel.cancel import Patience
from muniment.kernel.names import MAX_PATH_BYTES, Digest
from muniment.names import MAX_FACT_BYTES
from muniment.operations import listing
from muniment.recall.recaller import MAX_ENTRIES, Recaller
from muniment.server import contract, core, service
from muniment.types import EntryList, Recalled

PATH = f"{BASE}/recall"
FACT = "The user prefers the harpsichord to the piano"
QUERY = "Does the user prefer a harpsichord?"
EMPTY = {"entries": [], "text": "", "tokens": 0, "abstained": False}
DRAINING, BUSY = (503, "workspace_draining"), (503, "busy")


def recalled(daemon, query=QUERY, **more):
    """What a recall is answered with; `token` and `client` say who asks."""
    whose = {name: more.pop(name) for name in ("token", "client") if name in more}
    answer = daemon.post(PATH, {"query": query, **more}, **whose)
    assert answer.status_code == 200, answer.text
    return answer.json()


def paths(found):
    return [each["path"] for each in found["entries"]]


@pytest.fixture(scope="module")
def harpsichord(tmp_path_factory):
    """A daemon that knows one fact."""
    with running(tmp_path_factory.mktemp("recall")) as served:
        (served.path,) = served.done("remember", {"content": FACT, "scope": "user"})["result"]["filesTouched"]
        yield served


# -- what is found ---------------------------------------------------------------------------------------


def test_recall_finds_fact_for_every_token_unless_excluded(harpsichord):
    found, client = recalled(harpsichord), harpsichord.client
    (entry,) = found["entries"]
    assert (entry["path"], entry["trust"]) == (harpsichord.path, "owner")
    assert re.fullmatch(re.escape(harpsichord.path) + "@[0-9a-f]{64}", entry["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["at"])
    assert FACT in entry["text"]
    told = f"## Relevant Memory\n(?s:.*){entry['path']}(?s:.*){re.escape(entry['text'])}"
    assert re.match(told, found["text"])
    assert (found["tokens"] > 0, found["abstained"], "error" in found) == (True, False, False)
    for whose in {"token": client}, {"token": client, "client": "client-1"}:
        assert paths(recalled(harpsichord, **whose)) == [harpsichord.path]
    for more in {"query": "Where do penguins sleep?"}, {"query": "…"}, {"exclude": [entry["id"]] * 2}:
        assert recalled(harpsichord, **more) == {**EMPTY, "abstained": True}
    wrong = ["", "@", "user/x.md@", "\0", "galaxy/x.md@0", "' OR 1=1 --", "x" * 1200, entry["path"]]
    wrong += [f"@{entry['id'].partition('@')[2]}", f"{harpsichord.path}@{'0' * 64}"]
    assert paths(recalled(harpsichord, exclude=wrong)) == [harpsichord.path]


def test_sweep_ends_before_daemon_closes_its_roots(tmp_path, monkeypatch):
    sweep = EndlessSweep(monkeypatch)
    with running(tmp_path) as daemon:
        for _ in range(2):
            recalled(daemon)
        assert sweep.begun.wait(WAIT)
    assert set(sweep.held) == {True}


def test_recall_finds_append_of_another_process(alone):
    (path,) = alone.done("remember", {"content": FACT, "scope": "user"})["result"]["filesTouched"]
    file, found = alone.base / "home" / path, [recalled(alone)]
    inode = file.stat().st_ino
    for number in range(3):
        said = f"On day{number} the theremin was tuned to pitch{number}"
        subprocess.run(
            ["/bin/sh", "-c", 'echo "$1" >> "$0"', str(file), said], check=True, timeout=STOP_SECONDS
        )
        (entry,) = recalled(alone, f"theremin of day{number}, pitch{number}?")["entries"]
        assert (entry["path"], said in entry["text"]) == (path, True)
        again = recalled(alone, QUERY, exclude=[each["id"] for each in found[-1]["entries"]])
        assert paths(again) == [path]  # What was told was another text.
        found.append(again)
    assert file.stat().st_ino == inode


# -- what is no recall -----------------------------------------------------------------------------------


def test_invalid_recall_body_is_rejected_and_limits_accepted(harpsichord):
    texts = (None, 7, "", " \n\t", ["a"], "a\0b", "x" * (MAX_FACT_BYTES + 1), "é" * 32_769)
    lists = ("a", [7], {"a": 1}, ["a"] * 501, ["x" * 1201], [0] * 150_000)
    for body in (
        *([], "a", None, {"Query": "a"}, {"query": "a", "budget": 1}, *({"query": each} for each in texts)),
        *({"query": "a", "exclude": each} for each in lists),
        *({"query": "a", "limit": each} for each in (0, 21, 5.5, "5", True, 10**30)),
    ):
        sent = harpsichord.problem("POST", PATH, json.dumps(body).encode())
        assert sent == (400, "invalid_request"), str(body)[:40]
    words = " ".join(f"harpsichord{number}" for number in range(80))
    long = f"harpsichord {'é' * ((MAX_FACT_BYTES - 12) // 2)}"
    for query in words, long, f"   {'x' * MAX_FACT_BYTES}\n", "half of \ud83d\ude00 is none, two are one":
        assert "error" not in recalled(harpsichord, query)
    for exclude, limit in ([f"user/{number}.md@{'0' * 64}" for number in range(500)], 20), ([], 1):
        assert paths(recalled(harpsichord, exclude=exclude, limit=limit)) == [harpsichord.path]
    assert MAX_PATH_BYTES + len("@") + 64 <= contract.MAX_ID_CHARS
    assert contract.RecallBody.model_fields["limit"].default == MAX_ENTRIES


# -- what goes wrong -------------------------------------------------------------------------------------


def test_recall_errors_use_codes_of_contract():
    named = get_type_hints(Recalled, include_extras=True)["error"].__metadata__[1].codes
    assert set(named) == {code for code, each in errors.CODES.items() if each.recall}
    gone = errors.ManagedMemoryUnavailable("ledger.db", "?"), errors.PolicyInvalid("E101", "p.toml", "?")
    gone += errors.ConfigInvalid("?"), errors.InvalidScope("?"), errors.PathEscape("root", "user", "?")
    failed = errors.recall_failed("TypeError"), errors.ToolError("user/a.md", code="not_text")
    assert {contract.recall_code(error) for error in gone} == {"managed_memory_unavailable"}
    assert {contract.recall_code(error) for error in failed} == {"recall_failed"}
    assert contract.recall_code(errors.DeadlineExceeded("late")) == "deadline"


# -- the ledger and the metrics --------------------------------------------------------------------------


def test_recall_is_recorded_and_counted_by_outcome(alone, monkeypatch):
    alone.done("remember", {"content": FACT})
    found = recalled(alone)
    (entry,) = found["entries"]
    for more in {"exclude": [entry["id"]]}, {"query": "penguins"}:
        assert recalled(alone, **more)["abstained"]
    rows = alone.core.state.ledger.rows("SELECT body FROM record WHERE kind = 'injection' ORDER BY seq")
    path, _, digest = entry["id"].partition("@")
    shown = {"path": path, "digest": Digest(digest)}
    expected = {"where": "daemon", "tokens": found["tokens"], "entries": [shown]}
    assert [json.loads(body) for (body,) in rows] == [expected]
    monkeypatch.setattr("muniment.recall.recaller.Recaller.recall", None)
    recalled(alone)
    told = dict(line.rsplit(" ", 1) for line in alone.get("/metrics").text.splitlines())
    for outcome, count in {"found": 1, "abstained": 2, "failed": 1}.items():
        assert float(told[f'muniment_recalls_total{{outcome="{outcome}"}}']) == count


# -- recalls that hang, and whom they hold up, which is nobody ---------------------------------------------


@pytest.fixture
def hold(monkeypatch):
    """Holds recalls from the call on, `hold(heeds=True)` unless their patience ends; lets them go at the end.

    Each releases `begun` once it has begun, and goes on when `free` is set.
    """
    made = []

    def held(*, heeds=False):
        begun, free = threading.Semaphore(0), threading.Event()
        made.append(SimpleNamespace(begun=begun, free=free))

        def recall(_self, _query, *, patience, **_terms):
            begun.release()
            try:
                while not free.wait(0.005):
                    if heeds:
                        patience.check()
            except errors.MunimentError as error:
                return Recalled(error=error)
            return Recalled(abstained=True)

        monkeypatch.setattr(Recaller, "recall", recall)
        return made[-1]

    yield held
    for each in made:
        each.free.set()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4 * core.MAX_RECALLS) as pool:
        yield pool


def ask(daemon, token=None):
    return daemon.problem("POST", PATH, {"query": QUERY}, token=token)


@contextmanager
def hanging(daemon, held, threads, *tokens):
    """As many recalls as there are tokens, under way; lets them go, and checks that they were answered."""
    asked = [threads.submit(ask, daemon, token) for token in tokens]
    for _ in asked:
        assert held.begun.acquire(timeout=STOP_SECONDS)
    yield
    held.free.set()
    assert {each.result(STOP_SECONDS)[0] for each in asked} == {200}


def test_hanging_recalls_of_one_token_block_no_one_else(alone, hold, threads, monkeypatch):
    monkeypatch.setattr(core, "RECALL_SECONDS", STOP_SECONDS)
    monkeypatch.setattr(core, "PLACE_SECONDS", 0.05)
    one, two = alone.client, alone.add("two")
    held, half = hold(), core.MAX_RECALLS // 2
    with hanging(alone, held, threads, *[one] * half):
        busy = alone.post(PATH, {"query": QUERY}, token=one)
        assert (busy.status_code, busy.json()["code"], busy.headers["retry-after"]) == (*BUSY, "1")
        with hanging(alone, held, threads, *[two] * (half - core.RESERVE)):
            assert ask(alone, two) == BUSY
            with hanging(alone, held, threads, *[None] * core.RESERVE):
                assert ask(alone) == BUSY
                for path in "/healthz", "/readyz", f"{BASE}/review":
                    assert alone.get(path).status_code == 200
                assert alone.done("remember", {"content": "We deploy on Thursdays"})["status"] == "completed"
                served = alone.guard  # A request is counted until its answer has left.
                alone.until(lambda: (len(served.answering), len(served.waiting)) == (0, core.MAX_RECALLS))
    assert ask(alone, one)[0] == 200
    alone.until(lambda: not alone.core.recalls._running)


def test_recall_past_deadline_is_empty_and_keeps_its_place(alone, hold, monkeypatch):
    monkeypatch.setattr(core, "RECALL_SECONDS", 0.05)
    monkeypatch.setattr(core, "_LATE_SECONDS", 0.05)
    running_ones = alone.core.recalls._running
    for heeds in True, False:
        held = hold(heeds=heeds)
        assert recalled(alone) == {**EMPTY, "error": "deadline"}
        if heeds:
            alone.until(lambda: not running_ones)
    assert len(running_ones) == 1
    held.free.set()
    alone.until(lambda: not running_ones)
    assert len(alone.core.recalls._places) == 0


def test_recall_ends_with_error_on_revoked_token_or_stop(alone, hold, threads):
    token, held = alone.add("passing"), hold()
    asked = threads.submit(alone.post, PATH, {"query": QUERY}, token=token)
    assert held.begun.acquire(timeout=STOP_SECONDS)
    alone.core.tokens.revoke("passing")
    held.free.set()
    answer = asked.result(STOP_SECONDS)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    held, asked = hold(heeds=True), threads.submit(ask, alone)
    assert held.begun.acquire(timeout=STOP_SECONDS)
    assert alone.run(alone.core.stop(0))
    assert asked.result(STOP_SECONDS) == DRAINING
    alone.core._is_draining = False
    assert ask(alone) == DRAINING  # It came before the stop, and begins after it.


@pytest.mark.slow
def test_hanging_recall_or_disk_does_not_block_stop(tmp_path, hold, threads, monkeypatch):
    for module, name in (core, "_END_SECONDS"), (core, "_LATE_SECONDS"), (service, "_LINGER_SECONDS"):
        monkeypatch.setattr(module, name, 0.1)
    held = hold()
    with running(tmp_path, grace=0, broken=True) as daemon:
        asked = threads.submit(ask, daemon)
        assert held.begun.acquire(timeout=STOP_SECONDS)
        workspace = daemon.core.workspaces[daemon.key]
        monkeypatch.setattr(workspace, "problem", lambda: (held.begun.release(), held.free.wait()))
        looks = threads.submit(daemon.get, "/readyz")
        assert held.begun.acquire(timeout=STOP_SECONDS)
        assert not daemon.run(daemon.core.stop(0))
        daemon.run(daemon.daemon.stop())
        assert (asked.result(STOP_SECONDS), looks.result(STOP_SECONDS).status_code) == (DRAINING, 503)
    held.free.set()


# -- reads of entries ------------------------------------------------------------------------------------


def held_reads(monkeypatch):
    """Hold reads of an entry from now on, until `free` is set or whoever asked has gone."""
    made = SimpleNamespace(begun=threading.Semaphore(0), free=threading.Event(), ended=threading.Event())

    def listed(_place, _reader, *, cancel, **_terms):
        made.begun.release()
        try:
            while not made.free.wait(0.005):
                Patience(math.inf, cancel).check()
        finally:
            made.ended.set()
        return EntryList(entries=(), expired=0, skipped=(), complete=True)

    monkeypatch.setattr(listing, "list_entries", listed)
    return made


@pytest.mark.threat("T-API-03", control="shares")
def test_reads_of_one_token_leave_places_to_the_owner(alone, threads, monkeypatch):
    monkeypatch.setattr(core, "PLACE_SECONDS", 0.05)
    one, two, path = alone.add("reader"), alone.add("second"), f"{BASE}/entries"
    held = held_reads(monkeypatch)
    asked = []
    try:
        for token in (one, one, two):
            asked.append(threads.submit(alone.get, path, token=token))
            assert held.begun.acquire(timeout=STOP_SECONDS)
        for token in (one, two):
            busy = alone.get(path, token=token)
            assert (busy.status_code, busy.json()["code"]) == BUSY
        asked.append(threads.submit(alone.get, path))
        assert held.begun.acquire(timeout=STOP_SECONDS)
    finally:
        held.free.set()
    assert {each.result(STOP_SECONDS).status_code for each in asked} == {200}
    assert len(alone.core.reads) == 0


def test_read_stops_when_connection_closes(alone, monkeypatch):
    held = held_reads(monkeypatch)
    request = alone.request("GET", f"{BASE}/entries")
    with alone.line() as line:
        assert line.send(request)
        assert held.begun.acquire(timeout=STOP_SECONDS)
    assert held.ended.wait(STOP_SECONDS)
    alone.until(lambda: len(alone.core.reads) == 0)
