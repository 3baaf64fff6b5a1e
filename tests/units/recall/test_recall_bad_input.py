"""Whatever is wrong with the question, the catalog, the ledger, the disk or the tree: a recall never raises.

It is right, or empty; where it failed `memory_retrieval_failed` says so by a code, and no event holds
anything of what was asked or what stands in the memory. What is done to a tree between search and reading is
done by a hook around the one or the other, never by a race that might be lost.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from kit.recall.places import CANARY, entry, ground, paths, telling
from muniment import api
from muniment.confine.cancel import Cancel, Patience
from muniment.content.words import STOP_WORDS
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable
from muniment.recall.recaller import Recaller, Shelf
from muniment.recall.search import Search
from muniment.store.database import Database, reporting
from muniment.store.state import State

WINE = "which riesling of the mosel?"
ENTRY = entry("Bottle", f"Riesling from the Mosel. {CANARY}")
OTHER = entry("Another bottle", "A Mosel, a Riesling, and a glass of water.")


@pytest.fixture
def made(tmp_path):
    with ground(tmp_path, entries={"user/wine.md": ENTRY, "user/other.md": OTHER}) as made:
        yield made


@pytest.fixture
def recaller(made):
    with made.recaller() as recaller:
        yield recaller


@pytest.fixture
def told(caplog):
    return telling(caplog)


def failures(told):
    """The codes and problems of the failures so far; no event holds content."""
    assert CANARY not in str(told())
    assert "iesling" not in str(told())
    return [
        each.get("code") or each["problem"] for each in told() if each["event"] == "memory_retrieval_failed"
    ]


def is_right(recalled):
    return sorted(paths(recalled)) == ["user/other.md", "user/wine.md"] and CANARY in recalled.text


def is_empty(recalled):
    return (recalled.entries, recalled.text, recalled.tokens) == ((), "", 0) and recalled.error is not None


# Questions


QUESTIONS = {
    "nothing": "",
    "white space": " \n\t\u3000\u2028 ",
    "punctuation": "?!…—()[]{}<>",
    "one letter": "x",
    "stop words": " ".join(sorted(STOP_WORDS)),
    "NUL": "\0" * 100,
    "control characters": "".join(map(chr, range(32))),
    "halves of pairs": "\ud800 \udfff\ud800",
    "escapes of a terminal": "\x1b[2J\x1b]0;x\x07",
    "right to left": "\u202eleser\u202c \u2066x\u2069",
    "marks without end": "e" + "\u0301" * 10_000,
    "one word without end": "x" * 1_000_000,
    "one megabyte of words": "word " * 200_000,
    "one megabyte of bytes": "".join(map(chr, range(1, 0x3000))) * 40,
    "one megabyte of Han": "\u6c49\u5b57" * 170_000,
    "syntax": 'NEAR("a" "b", 5) AND NOT OR ^x* {name} : - + "',
    "a column": "body : riesling",
    "a quote": '"',
    "many quotes": '"' * 1_001,
    "a wildcard": "*",
    "an injection": "'; DROP TABLE entry; --",
    "a percent sign": "%_%%",
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_whatever_is_asked_nothing_is_raised_and_nothing_fails(recaller, told, question):
    recalled = recaller.recall(question)
    assert recalled.error is None
    assert failures(told) == []
    assert is_right(recaller.recall(WINE))


# Patience


def test_a_patience_that_has_ended_makes_it_empty_and_a_cancellation_is_no_failure(recaller, told):
    late = recaller.recall(WINE, patience=Patience(time.monotonic()))
    assert is_empty(late)
    assert isinstance(late.error, DeadlineExceeded)
    assert failures(told) == ["deadline"]
    with Cancel() as cancel:
        cancel.set()
        cancelled = recaller.recall(WINE, patience=Patience(math.inf, cancel))
    assert is_empty(cancelled)
    assert isinstance(cancelled.error, Cancelled)
    assert failures(told) == ["deadline"]


# The catalog


def corrupt():
    """What SQLite raises where it finds damage."""
    damage = sqlite3.DatabaseError("database disk image is malformed")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return damage


def flushed(made):
    """So that what is done to the file of the catalog is done to all of it."""
    made.state.catalog.drain()
    return made.state.catalog.path


def garbage(path):
    path.write_bytes(os.urandom(path.stat().st_size))


def half(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def emptied(path):
    path.write_bytes(b"")


def flipped(path):
    """Bits of the rows; those of the schema are looked at when it is opened."""
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 2, len(data), 97):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def removed(path):
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


DAMAGES = [garbage, half, emptied, flipped, removed]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_catalog_that_was_damaged_before_is_made_anew(made, recaller, told, damage):
    assert is_right(recaller.recall(WINE))
    path = flushed(made)
    made.state.close()
    damage(path)
    with closing(State(path.parent)) as state, closing(_over(made.place, state)) as again:
        assert is_right(again.recall(WINE))
    assert failures(told) == []


def _over(place, state):
    return Recaller(place.policy, place.roots, state)


@pytest.mark.parametrize("where", [(Search, "find"), (Shelf, "look_again")])
def test_a_catalog_that_turns_out_to_be_damaged_while_it_is_searched_is_made_anew_once(
    made, recaller, told, monkeypatch, where
):
    recaller.recall(WINE)
    with made.state.catalog.transaction() as connection:
        connection.execute("UPDATE directory SET racy = 0")
    in_place(made.file("user/wine.md"), ENTRY + "More.\n")  # So that it is looked at again.
    working, left = getattr(*where), [1]

    def damaged(self, *given):
        if left[0]:
            left[0] -= 1
            garbage(flushed(made))
            with reporting(made.state.catalog.path):
                raise corrupt()  # What the next page that is read tells; those that are kept may not.
        return working(self, *given)

    monkeypatch.setattr(*where, damaged)
    assert is_right(recaller.recall(WINE))
    assert left == [0]
    assert failures(told) == []


@pytest.mark.parametrize("table", ["entry", "text", "total"])
def test_a_catalog_without_a_table_makes_it_empty_with_the_reason(made, recaller, told, table):
    recaller.recall(WINE)
    with made.state.catalog.transaction() as connection:
        connection.execute(f"DROP TABLE {table}")
    assert is_empty(recaller.recall(WINE))
    assert failures(told) == ["managed_memory_unavailable"]


def test_a_row_that_names_what_is_not_there_shows_nothing_of_it(made, recaller, told):
    secret = entry("Bottle", "Riesling from the Mosel, and the number of a safe.")
    (made.place.roots["user"].trusted_path.parent / "secret.md").write_text(secret)
    made.put("user/decoy.md", secret)
    recaller.recall(WINE)
    made.file("user/decoy.md").unlink()
    with made.state.catalog.transaction() as connection:
        connection.execute("UPDATE entry SET rel = '../secret.md' WHERE rel = 'decoy.md'")
    recalled = recaller.recall(WINE)
    assert "number of a safe" not in recalled.text
    assert is_right(recalled)
    assert failures(told) == []


# The ledger


def test_a_ledger_that_another_process_writes_holds_up_no_recall(made, recaller, told):
    code = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('BEGIN EXCLUSIVE')\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    recalled = recaller.recall(WINE)
    with made.state.ledger.bare() as connection:
        connection.execute("PRAGMA busy_timeout = 20")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(made.state.ledger.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "locked\n"
        assert is_right(recaller.recall(WINE))
        recaller.record(recalled, "tests")
        other.stdin.close()
    assert failures(told) == []
    assert [each["event"] for each in told()] == ["injection_not_recorded"]
    recaller.record(recalled, "tests")
    assert len(made.injections()) == 1


def test_ids_are_read_without_raising_where_the_ledger_is_gone(tmp_path, told):
    with api.open(tmp_path, home=tmp_path / "home") as memory:
        made = memory.place.roots["user"].trusted_path
        (made / "wine.md").write_text(ENTRY)
        first = memory.recall(WINE)
        memory.place.state.ledger.close()
        assert is_empty(memory.recall(WINE, exclude=[each.id for each in first.entries]))
        assert set(failures(told)) == {"managed_memory_unavailable"}


# The disk


DISK = {
    "an error of the disk": OSError(errno.EIO, CANARY),
    "a full disk": OSError(errno.ENOSPC, CANARY),
    "no descriptor left": OSError(errno.EMFILE, CANARY),
    "an error of the database": sqlite3.OperationalError(CANARY),
    "no memory left": MemoryError(CANARY),
    "too deep a text": RecursionError(CANARY),
    "a defect": KeyError(CANARY),
    "not there": ManagedMemoryUnavailable(f"/home/{CANARY}", CANARY),
}


@pytest.mark.sweep(20)
@pytest.mark.parametrize("problem", DISK.values(), ids=DISK)
@pytest.mark.parametrize(
    "where",
    [
        (Search, "find"),
        (Shelf, "read"),
        (Database, "rows"),
        ("muniment.recall.recaller.view_in_time", None),
        ("muniment.recall.recaller.read_query", None),
        ("muniment.recall.recaller.block_of", None),
    ],
    ids=lambda where: str(where[1] or where[0].rpartition(".")[2]),
)
def test_whatever_the_disk_does_it_is_empty_with_a_reason_and_works_again(
    recaller, told, monkeypatch, where, problem
):
    def broken(*_args, **_more):
        raise problem

    with monkeypatch.context() as disk:
        if where[1] is None:
            disk.setattr(where[0], broken)
        else:
            disk.setattr(*where, broken)
        recalled = recaller.recall(WINE)
    assert is_empty(recalled)
    assert len(failures(told)) == 1
    assert is_right(recaller.recall(WINE))


# The tree


@pytest.mark.parametrize("becomes", ["moved", "removed", "replaced", "a link", "a file"])
def test_a_root_that_is_not_where_it_was_makes_it_empty(made, recaller, told, becomes, tmp_path):
    assert is_right(recaller.recall(WINE))
    root = made.place.roots["user"].trusted_path
    if becomes == "removed":
        shutil.rmtree(root)
    else:
        root.rename(tmp_path / "elsewhere")
    if becomes == "replaced":
        root.mkdir(mode=0o700)
        (root / "wine.md").write_text(ENTRY)
    elif becomes == "a link":
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "copy")
        root.symlink_to(tmp_path / "copy")
    elif becomes == "a file":
        root.write_text(ENTRY)
    recalled = recaller.recall(WINE)
    assert is_empty(recalled)
    assert len(failures(told)) == 1


def between(monkeypatch, change, *, times=1):
    """Have a tree changed behind each of the first searches, before anything is read."""
    find, left = Search.find, [times]

    def and_change(self, *given):
        found = find(self, *given)
        if left[0]:
            left[0] -= 1
            change()
        return found

    monkeypatch.setattr(Search, "find", and_change)


def in_place(file, text):
    """Its directory does not show that it was edited."""
    status = file.stat()
    file.write_text(text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_entries_that_are_deleted_behind_the_search_do_not_come(made, recaller, told, monkeypatch):
    between(monkeypatch, lambda: made.file("user/wine.md").unlink())
    assert paths(recaller.recall(WINE)) == ["user/other.md"]
    between(monkeypatch, lambda: made.file("user/other.md").unlink())
    assert recaller.recall(WINE).entries == ()
    assert failures(told) == []


def becomes_link(file, base):
    file.unlink()
    file.symlink_to(base / "outside" / "secret.md")


def becomes_hard_link(file, base):
    file.unlink()
    os.link(base / "outside" / "secret.md", file)


def becomes_fifo(file, _base):
    file.unlink()
    os.mkfifo(file)


def becomes_directory(file, _base):
    file.unlink()
    file.mkdir()


def becomes_huge(file, _base):
    with file.open("r+b") as opened:
        opened.truncate(1 << 32)


def becomes_bytes(file, _base):
    file.write_bytes(b"\xff\xfe Riesling Mosel \0")


def loses_its_directory(file, base):
    file.parent.rename(base / "taken")
    file.parent.symlink_to(base / "outside")
    (base / "outside" / file.name).write_text(ENTRY)


@pytest.mark.parametrize(
    "change",
    [
        becomes_link,
        becomes_hard_link,
        becomes_fifo,
        becomes_directory,
        becomes_huge,
        becomes_bytes,
        loses_its_directory,
    ],
)
def test_what_takes_the_place_of_an_entry_behind_the_search_is_not_shown(
    made, recaller, told, monkeypatch, tmp_path, change
):
    (tmp_path / "outside" / "secret.md").write_text(ENTRY)
    made.put("user/deep/wine.md", OTHER)
    made.file("user/wine.md").unlink()
    between(monkeypatch, lambda: change(made.file("user/deep/wine.md"), tmp_path))
    recalled = recaller.recall(WINE)
    assert CANARY not in recalled.text
    assert paths(recalled) == ["user/other.md"]
    assert failures(told) == []


def test_a_tree_that_is_deleted_behind_the_search_leaves_nothing(made, recaller, monkeypatch):
    between(monkeypatch, lambda: shutil.rmtree(made.place.roots["user"].trusted_path))
    assert recaller.recall(WINE).entries == ()


def test_a_tree_that_changes_while_it_is_read_is_shown_as_it_is_or_not_at_all(made, recaller, monkeypatch):
    read = Shelf.read

    def and_change(self, hits, enough):
        picked = read(self, hits[:1], enough)
        made.file("user/other.md").unlink(missing_ok=True)
        rest = read(self, hits[1:], enough)
        picked.readings += rest.readings
        picked.changed += rest.changed
        return picked

    monkeypatch.setattr(Shelf, "read", and_change)
    recalled = recaller.recall(WINE)
    assert recalled.error is None
    assert {each.key.rel for each in recalled.entries} <= {"wine.md", "other.md"}
