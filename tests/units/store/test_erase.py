"""Erasure: no piece of the text is left in any file of the state directory, and all the rest is as it was."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from kit.store.ground import STRICT, laid_out, lax, new, origin, patience
from kit.where import TESTS
from muniment.confine.cancel import Cancel
from muniment.errors import (
    Cancelled,
    ConfigInvalid,
    Erased,
    InvalidScope,
    ManagedMemoryUnavailable,
    NotFound,
    PathEscape,
    PendingReview,
    Refused,
    StoreConflict,
)
from muniment.names import Trust
from muniment.policy.grammar import canonicalise
from muniment.store import database, tasks
from muniment.store import erase as module
from muniment.store.audit import records, verify
from muniment.store.erase import EraseGround, erase, left_over, plan
from muniment.store.ledger import KeptChange, begin, content_at, history, new_token, root_key, why
from muniment.store.review import pending
from muniment.store.state import State
from muniment.store.tasks import Runs
from muniment.store.trust import constant
from muniment.store.upkeep import verify as verify_index
from muniment.tools.overlay import Claim, digest


def secret(size=120):
    """Random text that no other text holds a piece of."""
    return os.urandom(size).hex().encode()


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


@pytest.fixture
def where(ground):
    return EraseGround(ground.state, ground.roots, STRICT, patience())


def left_in(directory, *texts):
    """Pieces of 16 bytes of `texts` in the files of a directory, by trying all of them."""
    wanted = {text[at : at + 16] for text in texts for at in range(len(text) - 15)}
    found = set()
    for path in directory.iterdir():
        data = path.read_bytes()
        found |= {(path.name, piece) for piece in wanted if piece in data}
    return found


def nothing_left(ground, *texts):
    assert left_in(ground.state.directory, *texts) == set()
    assert verify(ground.state).problems == ()
    for root in ground.roots.values():
        assert verify_index(ground.state, root, STRICT).problems == ()
    return True


def key(ground, scope="user"):
    return root_key(ground.state, ground.roots[scope])


def path_of(ground, text):
    return canonicalise(text, ground.roots)


def test_every_version_of_a_file_goes_and_all_else_stays(ground, where):
    one, two, three, kept = secret(), secret(), secret(), secret()
    ground.commit(new("user/x.md", one), origin=origin("task-1"))
    ground.commit(ground.edit("user/x.md", two), new("user/k.md", kept), origin=origin("task-2"))
    (ground.user / "x.md").write_bytes(three)
    before = ground.contents()
    assert left_in(ground.state.directory, one, two)
    receipt = erase("user/x.md", where)
    assert not (ground.user / "x.md").exists()
    assert nothing_left(ground, one, two, three)
    assert left_in(ground.state.directory, kept)
    after = ground.contents()
    assert {path for path in before if before[path] != after.get(path)} == {
        "user/x.md",
        "user/MEMORY.md",
        "project/MEMORY.md",
    } & set(before)
    assert content_at(ground.state, key(ground), path_of(ground, "user/k.md"), "task-2") == kept
    assert (receipt.files, receipt.versions, receipt.tasks) == (1, 4, ("task-1", "task-2"))
    assert [record.body for record in records(ground.state, task="task-1")] == [None]


def test_what_a_remaining_entry_says_as_well_is_kept_for_it(ground, where):
    shared, own = secret(), secret()
    ground.commit(new("user/x.md", shared + own), new("user/k.md", b"# K\n" + shared))
    assert left_in(ground.state.directory, shared)
    erase("user/x.md", where)
    assert nothing_left(ground, own)
    step = history(ground.state, {key(ground): "user"}, path_of(ground, "user/k.md"))[0]
    assert not step.is_erased
    assert left_over(shared, where) == {}
    assert left_in(ground.state.directory, shared)


def test_older_versions_of_other_files_that_hold_a_piece_of_it_go(ground, where):
    text, other = secret(), secret()
    ground.commit(new("user/x.md", text), new("user/k.md", other + text[50:80]), origin=origin("task-1"))
    ground.commit(ground.edit("user/k.md", other), origin=origin("task-2"))
    told = plan("user/x.md", where)
    assert (told.files, told.others) == (("user/x.md",), ("user/k.md",))
    erase("user/x.md", where)
    assert nothing_left(ground, text, digest(other + text[50:80]).encode())
    with pytest.raises(Erased):
        content_at(ground.state, key(ground), path_of(ground, "user/k.md"), "task-1")
    assert content_at(ground.state, key(ground), path_of(ground, "user/k.md"), "task-2") == other


def test_a_preview_changes_nothing_and_counts_what_erasing_then_does(ground, where):
    text = secret()
    ground.commit(new("user/x.md", text), origin=origin("task-1"))
    ground.commit(ground.edit("user/x.md", text * 2), origin=origin("task-2"))
    (ground.state.directory / "ledger.db.version-1").write_bytes(text)
    before, rows = ground.photograph(), ground.state.ledger.rows("SELECT * FROM change")
    told = plan("user/x.md", where)
    assert ground.photograph() == before
    assert ground.state.ledger.rows("SELECT * FROM change") == rows
    assert told.as_json() | {"not_covered": None} == {
        "status": "preview",
        "target": "user/x.md",
        "files": ["user/x.md"],
        "versions": 3,
        "others": [],
        "tasks": ["task-1", "task-2"],
        "reviews": [],
        "records": 2,
        "lane_tasks": 0,
        "copies": ["ledger.db.version-1"],
        "not_covered": None,
    }
    receipt = erase("user/x.md", where)
    assert (receipt.versions, receipt.records) == (4, 3)  # One more each of the removal itself.
    assert ground.state.copies() == ()


def test_a_file_that_was_removed_long_ago_is_erased_from_the_ledger(ground, where):
    text = secret()
    ground.commit(new("user/x.md", text))
    ground.commit(removals=[Claim("user/x.md", digest(text))])
    assert plan("user/x.md", where).files == ()
    erase("user/x.md", where)
    assert nothing_left(ground, text)


def test_what_waits_for_review_goes_by_path_by_task_and_by_text(ground, where):
    texts = [secret(), secret(), secret()]
    for number, text in enumerate(texts, 1):
        with pytest.raises(PendingReview):
            ground.commit(
                new(f"user/w{number}.md", text),
                origin=origin(f"task-{number}"),
                trust=constant(Trust.EXTERNAL),
            )
    told = plan("user/w1.md", where)
    assert (len(told.reviews), told.files) == (1, ())
    assert erase("user/w1.md", where).reviews == 1
    assert nothing_left(ground, texts[0])
    assert erase("task-2", where).reviews == 1
    assert nothing_left(ground, texts[1])
    ground.commit(new("user/x.md", texts[2][20:90]))
    assert erase("user/x.md", where).reviews == 1
    assert pending(ground.state) == ()
    assert nothing_left(ground, *texts)


def test_a_review_that_was_decided_leaves_no_name(ground, where):
    from muniment.store.review import turn_down

    name = f"user/{secret(20).decode()}.md"
    with pytest.raises(PendingReview) as raised:
        ground.commit(new(name), origin=origin("task-1"), trust=constant(Trust.EXTERNAL))
    turn_down(ground.state, raised.value.review_id, ground.roots, patience(), "2026")
    with pytest.raises(NotFound):
        plan(name, where)  # Nothing says any more that it was ever proposed.
    erase("task-1", where)
    assert nothing_left(ground, name.encode()[5:])


def test_what_was_erased_is_called_so(ground, where):
    ground.commit(new("user/x.md", secret()), origin=origin("task-1"))
    erase("user/x.md", where)
    path = path_of(ground, "user/x.md")
    with pytest.raises(Erased):
        content_at(ground.state, key(ground), path, "task-1")
    with pytest.raises(Erased):
        why(ground.state, key(ground), path, None, Trust.OWNER)
    steps = history(ground.state, {key(ground): "user"}, path)
    assert [(step.asked, step.is_erased) for step in steps] == [("erase", True), ("edit", True)]
    assert "x.md" not in str(steps)


def test_notes_of_other_tasks_that_name_it_go(ground, where):
    name = f"user/{secret(20).decode()}.md"
    ground.commit(new(name), origin=origin("task-1"))
    ground.commit(new("user/k.md"), origin=origin("task-2"))
    ground.commit(new("user/l.md"), origin=origin("task-3"))
    with ground.state.ledger.transaction() as connection:
        for task, note in (("task-2", f"{name} was changed since"), ("task-3", "the index is behind")):
            connection.execute("UPDATE change_set SET notes = ? WHERE task = ?", (json.dumps([note]), task))
    erase(name, where)
    assert nothing_left(ground, name.encode()[5:])
    notes = ground.state.ledger.rows("SELECT task FROM change_set WHERE notes <> '[]'")
    assert notes == [("task-3",)]


def test_a_keyed_digest_of_the_fact_and_of_the_text_stays(ground, where):
    text = secret()
    asked = ground.state.keyed("the fact")
    ground.commit(new("user/x.md", b"# X\n%s\n" % text), origin=origin("task-1", fact=asked))
    erase("user/x.md", where)
    forgotten = {fact for (fact,) in ground.state.ledger.rows("SELECT fact FROM forgotten")}
    assert forgotten == {asked, ground.state.keyed(f"# X\n{text.decode()}")}
    assert ground.state.ledger.rows("SELECT fact FROM change_set WHERE task = 'task-1'") == [(None,)]


def test_a_receipt_holds_neither_name_nor_text(ground, where):
    name, text = f"user/{secret(10).decode()}.md", secret()
    ground.commit(new(name, text))
    document = json.dumps(erase(name, where).as_json())
    assert name[5:] not in document
    assert text.decode() not in document
    assert digest(text) not in document


def test_unkeyed_digests_of_it_are_gone(ground, where):
    text = secret()
    ground.commit(new("user/x.md", text))
    ground.commit(ground.edit("user/x.md", b"short\n"))
    erase("user/x.md", where)
    assert nothing_left(ground, digest(text).encode(), digest(b"short\n").encode())


# What may be erased.


def test_what_the_policy_protects_goes_by_its_exact_path_alone(ground, where):
    (ground.user / "pinned").mkdir()
    text = secret()
    ground.commit(new("user/pinned/x.md", text), policy=lax(), origin=origin("task-1"))
    before = ground.photograph()
    with pytest.raises(Refused):
        erase("task-1", where)
    assert ground.photograph() == before
    erase("user/pinned/x.md", where)
    assert nothing_left(ground, text)


@pytest.mark.parametrize("path", ["user/MEMORY.md", "user/index/x.md", "/user"])
def test_an_index_or_a_scope_cannot_be_erased(where, path):
    for attempt in (plan, erase):
        with pytest.raises(Refused, match="indexes are made from entries"):
            attempt(path, where)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("user/none.md", NotFound),
        ("task-9", NotFound),
        ("user/../x.md", PathEscape),
        ("/etc/passwd", PathEscape),
        ("user/link.md", PathEscape),
    ],
)
def test_what_is_not_known_or_not_ours_is_refused_and_nothing_changes(ground, where, target, error):
    (ground.user / "link.md").symlink_to(ground.outside / "secret.md")
    ground.commit(new("user/n.md"))
    before, kept = ground.photograph(), records(ground.state)
    for attempt in (plan, erase):
        with pytest.raises(error):
            attempt(target, where)
    assert ground.photograph() == before
    assert records(ground.state) == kept


def test_a_task_of_other_directories_is_erased_there(ground, where):
    ground.commit(new("project/x.md"), origin=origin("task-1"))
    with pytest.raises(InvalidScope, match="another directory"):
        erase("task-1", replace(where, roots={"user": ground.roots["user"]}))


def test_the_last_known_text_of_directories_that_are_not_bound_counts_as_remaining(ground, where):
    text = secret()
    ground.commit(new("project/y.md", text), origin=origin("task-1"))
    ground.commit(new("user/x.md", text))
    erase("user/x.md", replace(where, roots={"user": ground.roots["user"]}))
    assert content_at(ground.state, key(ground, "project"), path_of(ground, "project/y.md"), "task-1") == text


def test_what_went_from_directories_that_are_not_bound_does_not_remain(ground, where):
    text = secret()
    ground.commit(new("project/y.md", text))
    ground.commit(removals=[Claim("project/y.md", digest(text))])
    ground.commit(new("user/x.md", text))
    only_user = replace(where, roots={"user": ground.roots["user"]})
    assert plan("user/x.md", only_user).others == ("project/y.md",)
    erase("user/x.md", only_user)
    assert left_in(ground.state.directory, text) == set()


def test_an_entry_that_cannot_be_read_keeps_nothing(ground, where, monkeypatch):
    text = secret()
    ground.commit(new("user/x.md", text), new("user/k.md", text))
    real = module.view_of

    def view_of(*arguments, **more):
        view = real(*arguments, **more)
        (ground.user / "k.md").unlink(missing_ok=True)
        return view

    monkeypatch.setattr(module, "view_of", view_of)
    erase("user/x.md", where)
    assert left_in(ground.state.directory, text) == set()


def test_a_file_that_is_written_anew_meanwhile_is_a_conflict(ground, where, monkeypatch):
    ground.commit(new("user/x.md", b"one\n"))
    real = module._remove

    def remove(*arguments, **more):
        removed = real(*arguments, **more)
        (ground.user / "x.md").write_bytes(b"again\n")
        return removed

    monkeypatch.setattr(module, "_remove", remove)
    with pytest.raises(StoreConflict):
        erase("user/x.md", where)
    monkeypatch.undo()
    erase("user/x.md", where)
    assert not (ground.user / "x.md").exists()


def test_what_an_interrupted_commit_left_in_the_ledger_goes_too(ground, where):
    one, two = secret(), secret()
    ground.commit(new("user/x.md", one))
    ground.commit(removals=[Claim("user/x.md", digest(one))])
    change = KeptChange(0, key(ground), "user", "x.md", None, two, (), Trust.OWNER)
    begin(ground.state, origin("task-1"), new_token(), [change])
    erase("user/x.md", where)
    assert nothing_left(ground, one, two)


def test_a_cancel_before_it_begins_changes_nothing(ground, where):
    ground.commit(new("user/x.md", b"one\n"))
    before = ground.photograph()
    with Cancel() as cancel:
        cancel.set()
        with pytest.raises(Cancelled):
            erase("user/x.md", replace(where, patience=patience(cancel=cancel)))
    assert ground.photograph() == before


def test_a_reader_of_another_process_is_told_and_running_it_again_finishes(ground, where, monkeypatch):
    text = secret()
    ground.commit(new("user/x.md", text))
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with State(ground.state.directory) as other, State(ground.state.directory) as ours:
        reader = other.ledger._connection.execute("SELECT * FROM root UNION ALL SELECT * FROM root")
        reader.fetchone()
        mine = replace(where, state=ours)
        with pytest.raises(ManagedMemoryUnavailable, match="busy"):
            erase("user/x.md", mine)
        reader.close()
        erase("user/x.md", mine)
        assert left_in(ground.state.directory, text) == set()


# The check.


def test_the_check_names_the_files_that_hold_a_piece(ground, where):
    text = secret()
    ground.commit(new("user/x.md", text))
    assert left_over(text, where) == {}  # It is still an entry.
    (ground.user / "x.md").unlink()
    found = left_over(text, where)
    assert {name.partition("-")[0] for name in found} <= {"ledger.db", "catalog.db"}
    assert any(name.startswith("ledger.db") for name in found)
    erase("user/x.md", where)
    assert left_over(text, where) == {}
    (ground.state.directory / "my-own-backup").write_bytes(b"x" * (1 << 20) + text[:20])
    assert left_over(text, where) == {"my-own-backup": 5}
    edge = (1 << 20) - 8
    (ground.state.directory / "my-own-backup").write_bytes(b"x" * edge + text[:16])
    assert left_over(text, where) == {"my-own-backup": 1}


def test_a_text_that_is_too_short_to_look_for_is_told(where):
    with pytest.raises(ConfigInvalid, match="shorter than 16 bytes"):
        left_over(b"too short", where)


# Killed.

KILLED = """
import os, sys
from pathlib import Path
from muniment.confine.binding import bind_all
from muniment.store import erase as module, upkeep
from muniment.store.database import Database
from muniment.store.state import State
from kit.store.ground import STRICT, patience
base, directory, target, at = sys.argv[1:]
def die(*_, **__):
    os.kill(os.getpid(), 9)
def killed_in(owner, name, before):
    real = getattr(owner, name)
    def method(*arguments, **more):
        if before:
            die()
        result = real(*arguments, **more)
        die()
        return result
    setattr(owner, name, method)
name, when = at.split(" ")
owners = {"drain": Database, "remove_copies": State, "renew_catalog": State}
killed_in(owners.get(name, module), name, when == "before")
roots = bind_all({"user": Path(base) / "user", "project": Path(base) / "project"})
with State(Path(directory)) as state:
    module.erase(target, module.EraseGround(state, roots, STRICT, patience()))
"""

STEPS = [
    f"{name} {when}"
    for name in (
        *("recover_all", "_remove", "_search", "drop", "scrub", "drain", "remove_copies", "renew_catalog"),
        *("remove_emptied", "rebuild", "_receipt"),
    )
    for when in ("before", "after")
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("target", ["user/x.md", "task-1"])
@pytest.mark.parametrize("at", STEPS)
def test_killed_at_any_step_running_it_again_finishes(ground, tmp_path_factory, at, target):
    directory = tmp_path_factory.mktemp("state") / "state"
    one, two = secret(), secret()
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with State(directory) as state:
        ours = replace(ground, state=state)
        ours.commit(new("user/x.md", one), origin=origin("task-1"))
        ours.commit(ours.edit("user/x.md", two))
    shutil.copy(directory / "ledger.db", directory / "ledger.db.version-0")
    command = [sys.executable, "-c", KILLED, ground.base, directory, target, at]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    with State(directory) as state:
        ours = replace(ground, state=state)
        erase(target, EraseGround(state, ground.roots, STRICT, patience()))
        assert not (ground.user / "x.md").exists()
        assert nothing_left(ours, one, two)
        assert state.copies() == ()


def test_a_transcript_that_was_cut_or_moved_is_read_as_far_as_it_goes(ground, tmp_path):
    runs = Runs([b"sixteen bytes and more"])
    calls = [{"tool": "x", "arguments": {"n": 1, "deep": ["sixteen bytes and more"]}}]
    begun = '{"from": "system", "text": "x"}\n'
    texts = {
        "cut": begun + '{"from": "user", "text": "sixteen bytes and mo',
        "deep": begun + json.dumps({"from": "assistant", "calls": calls}) + "\n",
        "kept": begun + '{"from": "user", "text": "something else is said"}\n',
        "moved": begun + "sixteen bytes and more\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        tasks.note(ground.state, f"task-{name}", tmp_path / name)
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    assert [tasks.remove_telling(ground.state, (), runs) for _ in range(2)] == [2, 0]
    assert {name for name in (*texts, "elsewhere") if (tmp_path / name).exists()} == {"kept", "elsewhere"}
    assert tasks.remove_telling(ground.state, ["task-kept"], Runs(())) == 1
    assert (ground.state.directory / tasks.NAME).read_text() == ""
    assert stat.S_IMODE((ground.state.directory / tasks.NAME).stat().st_mode) == 0o600
