"""A recall never raises for any defect of the question, the catalog, the ledger, the disk or the tree.

It is correct or empty. If it fails, `memory_retrieval_failed` reports a code, and no event contains text of
the question or of the memory. Changes of a tree between search and reading are made by a hook around one of
them, never by a race.
"""

import errno
import math
import os
import shutil
import sqlite3
import time
from contextlib import closing
from itertools import product
from unittest.mock import Mock

import pytest

from kit.recall.contexts import CANARY, format_entry, list_paths, open_bench
from muniment import api
from muniment.cancelling import Cancel
from muniment.content.words import STOP_WORDS
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import MAX_FILE_BYTES
from muniment.recall.recaller import Recaller
from muniment.recall.root_reader import RootReader
from muniment.recall.search import Search
from muniment.store.audit import verify
from muniment.store.database import Database, convert_errors
from muniment.store.state import State

WINE = "which riesling of the mosel?"
ENTRY = format_entry("Bottle", f"Riesling from the Mosel. {CANARY}")
OTHER = format_entry("Another bottle", "A Mosel, a Riesling, and a glass of water.")


@pytest.fixture
def recall_bench(tmp_path):
    with open_bench(tmp_path, entries={"user/wine.md": ENTRY, "user/other.md": OTHER}) as recall_bench:
        yield recall_bench


def read_failures(events):
    """Return the codes and problems of the logged failures, and require that no event contains content."""
    assert CANARY not in str(events())
    assert "iesling" not in str(events())
    failed = [each for each in events() if each["event"] == "memory_retrieval_failed"]
    return [each.get("code") or each["problem"] for each in failed]


def is_complete(recalled):
    return sorted(list_paths(recalled)) == ["user/other.md", "user/wine.md"] and CANARY in recalled.text


def is_empty(recalled):
    return (recalled.entries, recalled.text, recalled.tokens) == ((), "", 0) and recalled.error is not None


QUESTIONS = [
    *("", " \n\t\u3000\u2028 ", "?!…—()[]{}<>", "x", "\0" * 100, "\ud800 \udfff\ud800", "\x1b]0;x\x07"),
    *("\u202eleser\u202c \u2066x\u2069", "e" + "\u0301" * 10_000, "x" * 1_000_000, "word " * 200_000),
    *(" ".join(sorted(STOP_WORDS)), "".join(map(chr, range(32))), "".join(map(chr, range(1, 0x3000))) * 40),
    *("\u6c49\u5b57" * 170_000, 'NEAR("a" "b", 5) AND NOT OR ^x* {name} : - + "', "body : riesling", "*"),
    *('"', '"' * 1_001, "'; DROP TABLE entry; --", "%_%%"),
]


def test_any_question_is_answered_without_a_failure(recaller, logged_events):
    for question in QUESTIONS:
        assert recaller.recall(question).error is None, question[:40]
        assert is_complete(recaller.recall(WINE))
    assert read_failures(logged_events) == []


def test_expired_deadline_and_cancellation_give_an_empty_result(recaller, logged_events):
    with Cancel() as cancel:
        cancel.set()
        ended = {DeadlineExceeded: Deadline(time.monotonic()), Cancelled: Deadline(math.inf, cancel)}
        for kind, patience in ended.items():
            recalled = recaller.recall(WINE, deadline=patience)
            assert is_empty(recalled)
            assert type(recalled.error) is kind
            assert read_failures(logged_events) == ["deadline"]


# -- the catalog


DAMAGE = [
    lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    lambda path: os.truncate(path, path.stat().st_size // 2),
    lambda path: path.write_bytes(b""),
    # Only the rows: the schema is checked when the file is opened.
    lambda path: path.write_bytes((it := path.read_bytes())[: (at := len(it) // 2)] + os.urandom(at)),
    lambda path: [each.unlink() for each in path.parent.glob(f"{path.name}*")],
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_catalog_is_rebuilt_on_open(recall_bench, recaller, logged_events, damage):
    assert is_complete(recaller.recall(WINE))
    recall_bench.state.catalog.truncate_log()  # So that the damage affects the whole content.
    place, path = recall_bench.context, recall_bench.state.catalog.path
    recall_bench.state.close()
    damage(path)
    with (
        closing(State(path.parent)) as state,
        closing(Recaller(place.policy, place.roots, state)) as reopened,
    ):
        assert is_complete(reopened.recall(WINE))
    assert read_failures(logged_events) == []


@pytest.mark.parametrize("where", [(Search, "find"), (RootReader, "refresh_rows")])
def test_catalog_damaged_during_a_search_is_rebuilt(
    recall_bench, recaller, logged_events, monkeypatch, where
):
    monkeypatch.setattr("muniment.store.visit._RACY_NS", 10**18)  # So that times prove nothing.
    recaller.recall(WINE)
    wine = recall_bench.get_file_path("user/wine.md")
    change_after_search(monkeypatch, lambda: wine.write_text(ENTRY + "More.\n"))  # So that it is read again.
    working, left, damage = getattr(*where), [1], sqlite3.DatabaseError("database disk image is malformed")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT

    def damage_once(self, *args):
        if left:
            left.pop()
            recall_bench.state.catalog.truncate_log()
            DAMAGE[0](recall_bench.state.catalog.path)
            with convert_errors(recall_bench.state.catalog.path):
                raise damage  # The error of the next page read; cached pages may not raise it.
        return working(self, *args)

    monkeypatch.setattr(*where, damage_once)
    assert is_complete(recaller.recall(WINE))
    assert left == []
    assert read_failures(logged_events) == []


@pytest.mark.parametrize("table", ["entry", "text", "total"])
def test_catalog_without_a_table_gives_an_empty_result(recall_bench, recaller, logged_events, table):
    recaller.recall(WINE)
    recall_bench.execute(f"DROP TABLE {table}")
    assert is_empty(recaller.recall(WINE))
    assert read_failures(logged_events) == ["managed_memory_unavailable"]


def test_row_with_a_foreign_path_reveals_nothing(recall_bench, recaller, logged_events, tmp_path):
    secret, rel = format_entry("Bottle", "Riesling from the Mosel, and the number of a safe."), "decoy.md"
    (tmp_path / "secret.md").write_text(secret)
    recall_bench.write_files(f"user/{rel}", secret)
    recaller.recall(WINE)
    recall_bench.get_file_path(f"user/{rel}").unlink()
    for planted in ("../secret.md", f"{tmp_path}/secret.md", "a//b.md", "a\0.md", "x" * 2_000, ""):
        recall_bench.execute("UPDATE entry SET rel = ? WHERE rel = ?", (planted, rel))
        rel, recalled = planted, recaller.recall(WINE)
        assert "number of a safe" not in recalled.text, planted
        assert is_complete(recalled), planted
    assert read_failures(logged_events) == []


# -- the ledger


def test_locked_ledger_delays_only_the_record_of_a_recall(recall_bench, recaller, logged_events):
    recalled = recaller.recall(WINE)
    with recall_bench.state.ledger.open_outside_transaction() as connection:
        connection.execute("PRAGMA busy_timeout = 20")
    with closing(sqlite3.connect(recall_bench.state.ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")  # Connections of one process exclude each other, too.
        assert is_complete(recaller.recall(WINE))
        recaller.record(recalled, "tests")
    assert read_failures(logged_events) == []
    assert [each["event"] for each in logged_events()] == ["injection_not_recorded"]
    recaller.record(recalled, "tests")
    entries = [{"path": path, "digest": recall_bench.read_key(path).digest} for path in list_paths(recalled)]
    assert recall_bench.read_injections() == [
        {"where": "tests", "tokens": recalled.tokens, "entries": entries}
    ]
    assert verify(recall_bench.state).problems == ()
    recall_bench.state.ledger.close()
    recaller.record(recalled, "tests")
    assert [each["event"] for each in logged_events()] == ["injection_not_recorded"] * 2


def test_exclude_with_a_closed_ledger_does_not_raise(tmp_path, logged_events):
    with api.open(tmp_path, home=tmp_path / "home") as memory:
        (memory.context.roots["user"].trusted_path / "wine.md").write_text(ENTRY)
        ids = [each.id for each in memory.recall(WINE).entries]
        memory.context.state.ledger.close()
        assert is_empty(memory.recall(WINE, exclude=ids))
    assert set(read_failures(logged_events)) == {"managed_memory_unavailable"}


# -- the disk

DISK = [
    *(OSError(code, CANARY) for code in (errno.EIO, errno.ENOSPC, errno.EMFILE)),
    *(sqlite3.OperationalError(CANARY), MemoryError(CANARY), RecursionError(CANARY), KeyError(CANARY)),
    ManagedMemoryUnavailable(f"/home/{CANARY}", CANARY),
]
PARTS = [
    *((Search, "find"), (RootReader, "read_entries"), (Database, "rows")),
    *((f"muniment.recall.recaller.{name}",) for name in ("read_query", "build_block")),
    ("muniment.store.watching.open_view_in_time",),
]


def test_disk_failure_gives_an_empty_result_and_recovers(recaller, logged_events, monkeypatch):
    for count, (where, problem) in enumerate(product(PARTS, DISK), 1):
        with monkeypatch.context() as disk:
            disk.setattr(*where, Mock(side_effect=problem))
            assert is_empty(recaller.recall(WINE)), (where, problem)
        assert len(read_failures(logged_events)) == count
        assert is_complete(recaller.recall(WINE))


# -- the tree


@pytest.mark.parametrize("becomes", ["moved", "replaced", "a link", "a file"])
def test_moved_or_replaced_root_leaves_the_others_searchable(
    recall_bench, recaller, logged_events, becomes, tmp_path
):
    recall_bench.write_files("project/wine.md", ENTRY)
    root = recall_bench.context.roots["user"].trusted_path
    root.rename(tmp_path / "elsewhere")
    if becomes == "replaced":
        shutil.copytree(tmp_path / "elsewhere", root)
    elif becomes == "a link":
        root.symlink_to(shutil.copytree(tmp_path / "elsewhere", tmp_path / "copy"))
    elif becomes == "a file":
        root.write_text(ENTRY)
    assert is_empty(recaller.recall(WINE))
    assert len(read_failures(logged_events)) == 1
    assert list_paths(recaller.recall(WINE, scopes=["project"])) == ["project/wine.md"]


def change_after_search(monkeypatch, change):
    """Change the tree after the first search, before any entry is read."""
    find, changes = Search.find, [change]
    monkeypatch.setattr(Search, "find", lambda *it: (find(*it), changes and changes.pop()())[0])


def test_candidate_edited_in_place_is_ranked_by_its_new_text(recall_bench, recaller, monkeypatch):
    monkeypatch.setattr("muniment.store.visit._RACY_NS", -(10**18))  # So that its row is trusted.
    recall_bench.write_files("user/wine.md", "Riesling from the Mosel, Riesling\n")
    recall_bench.write_files("user/second.md", "Riesling\n")
    text = "Mosel Riesling, which Riesling of the Mosel? " * 3
    change_after_search(
        monkeypatch,
        lambda: recall_bench.get_file_path("user/second.md").write_text(f"# Mosel Riesling\n\n{text}\n"),
    )
    assert list_paths(recaller.recall("Riesling of the Mosel", limit=1)) == ["user/second.md"]


REPLACED = {
    "a link": lambda file, base: file.symlink_to(base / "outside" / "secret.md"),
    "a link inside": lambda file, base: file.symlink_to(base / "user" / "other.md"),
    "a hard link": lambda file, base: os.link(base / "outside" / "same.md", file),
    "a pipe": lambda file, _: os.mkfifo(file),
    "a directory": lambda file, _: file.mkdir(),
    "huge": lambda file, _: os.truncate(file.write_text(OTHER) and file, 1 << 32),
    "a little too large": lambda file, _: file.write_text(OTHER + "x" * MAX_FILE_BYTES),
    "bytes": lambda file, _: file.write_bytes(b"\xff\xfe Riesling Mosel \0"),
    "gone": lambda _file, _base: None,
    "in another directory": lambda file, base: (
        file.parent.rename(base / "taken") and file.parent.symlink_to(base / "outside")
    ),
}


@pytest.mark.parametrize("becomes", REPLACED)
def test_replacement_of_a_found_entry_is_not_shown(
    recall_bench, recaller, logged_events, monkeypatch, tmp_path, becomes
):
    for name, text in {"secret.md": ENTRY, "wine.md": ENTRY, "same.md": OTHER}.items():
        (tmp_path / "outside" / name).write_text(text)
    recall_bench.write_files("user/deep/wine.md", OTHER)
    recall_bench.get_file_path("user/wine.md").unlink()
    file = recall_bench.get_file_path("user/deep/wine.md")
    change_after_search(monkeypatch, lambda: (file.unlink(), REPLACED[becomes](file, tmp_path)))
    recalled = recaller.recall(WINE)
    assert CANARY not in recalled.text
    assert list_paths(recalled) == ["user/other.md"]
    assert read_failures(logged_events) == []
    change_after_search(monkeypatch, lambda: shutil.rmtree(recall_bench.context.roots["user"].trusted_path))
    assert recaller.recall(WINE).entries == ()


def test_entry_edited_after_the_search_is_shown_as_it_is_now(recall_bench, recaller, monkeypatch):
    change_after_search(
        monkeypatch,
        lambda: recall_bench.get_file_path("user/wine.md").write_text(ENTRY.replace("Mosel.", "Mosel, dry.")),
    )
    (found,) = (each for each in recaller.recall(WINE).entries if each.path == "user/wine.md")
    assert found.key == recall_bench.read_key("user/wine.md")
    assert "dry" in found.text
