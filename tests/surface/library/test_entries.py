"""Entries by path in the library: list, show, edit, pin, export, index, explain and erase."""

from __future__ import annotations

import asyncio
import io
import json
import select
import socket
import stat
import tarfile
import threading
from contextlib import closing

import pytest

from kit.memories import take_snapshot
from muniment import AsyncMemory, errors
from muniment.operations.exporting import EXPORT_NAME
from muniment.recall.recaller import Recaller
from muniment.server.entries import MAX_NOTE_BYTES, _format_header
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text
from muniment.types import ExportResult

DARK = "The user prefers dark mode in all editors"
TEA = "The user drinks green tea in the morning"


@pytest.fixture
def filled_memory(open_memory):
    """An open memory with two entries, and their paths."""
    opened = open_memory()
    return opened, [opened.remember(each).files_touched[0] for each in (DARK, TEA)]


def read_files(opened):
    """Return every file of the scope `user`."""
    return take_snapshot(opened.context.roots["user"].trusted_path)


def test_list_is_sorted_limited_and_of_one_scope(filled_memory):
    opened, paths = filled_memory
    listed = opened.list()
    assert [each.path for each in listed.entries] == sorted(paths)
    assert (listed.complete, listed.next_cursor, listed.expired) == (True, None, 0)
    first = opened.list("user", limit=1.0)
    assert ([each.path for each in first.entries], first.next_cursor) == (
        [min(paths)],
        min(paths),
    )
    assert opened.list("project").entries == ()
    with pytest.raises(errors.InvalidScope):
        opened.list("galaxy")
    for limit in "5", 1.5, True, 0, -1:
        with pytest.raises(errors.BadArguments, match="limit"):
            opened.list(limit=limit)


def test_list_omits_expired_entries_by_default(filled_memory):
    opened, (path, _) = filled_memory
    file = opened.context.roots["user"].trusted_path / path.removeprefix("user/")
    file.write_text(file.read_text().replace("---\n", "---\nexpires: 2020-01-01\n", 1))
    listed = opened.list()
    assert (path in {each.path for each in listed.entries}, listed.expired) == (False, 1)
    assert path in {each.path for each in opened.list(expired=True).entries}
    assert opened.show(path).expires == "2020-01-01"


def test_show_marks_withheld_and_denies_hidden_entries(filled_memory):
    opened, (path, _) = filled_memory
    entry = opened.show(f"muniment://{path}")
    assert (entry.path, entry.trust, entry.withheld, entry.pinned) == (path, "owner", None, False)
    assert DARK in entry.text
    assert "muniment:" not in entry.text
    (opened.context.roots["user"].trusted_path / "bad.md").write_text("my password is hunter2hunter2\n")
    assert opened.show("user/bad.md").withheld == "secrets"
    with pytest.raises(errors.NotFound):
        opened.show("user/.hidden/a.md")
    with pytest.raises(errors.PathEscape):
        opened.show("user/../../etc/passwd")


def test_edit_replaces_the_text_and_keeps_the_front_matter(filled_memory):
    opened, (path, _) = filled_memory
    before = opened.show(path)
    result = opened.edit(path, "The user prefers a light theme\n", digest=before.digest)
    after = opened.show(result.path)
    assert (after.text, after.id, after.trust) == ("The user prefers a light theme\n", before.id, "owner")
    assert opened.history(result.path)[0].task == result.task_id
    assert opened.undo(result.task_id).error is None
    assert opened.show(path).digest == before.digest


def test_edit_of_a_changed_entry_is_a_conflict(filled_memory):
    opened, (path, _) = filled_memory
    digest = opened.show(path).digest
    now = opened.edit(path, "The user prefers a light theme\n").path
    before = read_files(opened)
    with pytest.raises(errors.StoreConflict):
        opened.edit(now, "The user prefers a dim theme\n", digest=digest)
    assert read_files(opened) == before


def test_edit_text_never_becomes_front_matter(filled_memory):
    opened, (path, _) = filled_memory
    bare = opened.context.roots["user"].trusted_path / "bare.md"
    bare.write_text("The user has a bare file\n")
    for target in path, "user/bare.md":
        text = "---\nexpires: 2020-01-01\n---\nThe user has a file\n"
        now = opened.edit(target, text).path
        entry = opened.show(now)
        assert (entry.text, entry.expires) == (text, None)


def test_edit_with_empty_text_is_rejected(filled_memory):
    opened, (path, _) = filled_memory
    before = read_files(opened)
    for text in "", "  \n ", "\u2003\r\n":
        for dry_run in True, False:
            with pytest.raises(errors.InvalidContent, match=f"{path} is empty; to remove .* forget"):
                opened.edit(path, text, dry_run=dry_run)
    assert read_files(opened) == before


def test_edit_of_pinned_entry_fails_with_unpin_hint(filled_memory):
    opened, (path, _) = filled_memory
    pinned = opened.pin(path).path
    with pytest.raises(errors.RememberRefused, match=f"{pinned} is pinned; unpin it first"):
        opened.edit(pinned, "The user prefers a light theme\n")


def test_edit_replaces_lone_surrogate(filled_memory):
    opened, (path, _) = filled_memory
    now = opened.edit(path, "The user likes \ud83d tea\n").path
    assert opened.show(now).text == "The user likes \ufffd tea\n"


def test_dry_runs_return_results_and_write_nothing(filled_memory):
    opened, (path, other) = filled_memory
    before, steps = read_files(opened), opened.history()
    edited = opened.edit(path, "The user prefers a light theme\n", dry_run=True)
    pinned = opened.pin(path, dry_run=True)
    assert (edited.task_id, edited.changed, pinned.task_id, pinned.pinned) == (None, True, None, True)
    assert opened.erase(other, dry_run=True).files == (other,)
    assert opened.index(dry_run=True).correct
    with pytest.raises(errors.RememberRefused):
        opened.edit(path, "my password is hunter2hunter2\n", dry_run=True)
    assert (read_files(opened), opened.history()) == (before, steps)
    assert opened.edit(path, "The user prefers a light theme\n").path == edited.path


def test_pin_moves_an_entry_and_moves_it_back(filled_memory):
    opened, (path, _) = filled_memory
    pinned = opened.pin(path)
    assert (pinned.path, pinned.previous_path, pinned.pinned) == (f"user/pinned/{path[5:]}", path, True)
    assert opened.show(pinned.path).pinned
    with pytest.raises(errors.NotFound):
        opened.pin(path)
    assert opened.pin(pinned.path).path == path


def test_export_is_a_new_private_file_or_an_open_one(filled_memory, tmp_path):
    opened, paths = filled_memory
    file, target = io.BytesIO(), tmp_path / "memory.tar"
    assert opened.export(target).entries == 2
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    opened.export(file)
    assert file.getvalue() == target.read_bytes()
    with tarfile.open(target) as archive:
        assert archive.getnames() == [EXPORT_NAME, *sorted(paths)]
    for invalid_target in target, tmp_path / "missing" / "memory.tar":
        with pytest.raises(errors.ConfigInvalid):
            opened.export(invalid_target)
    with pytest.raises(errors.ConfigInvalid, match="zip"):
        opened.export(tmp_path / "memory.zip", format="zip")
    lines = io.BytesIO()
    opened.export(lines, scope="user", format="jsonl")
    assert [json.loads(each).get("path") for each in lines.getvalue().splitlines()][1:] == sorted(paths)


def test_index_dry_run_finds_problems_that_rebuild_fixes(filled_memory):
    opened, _ = filled_memory
    index = opened.context.roots["user"].trusted_path / "MEMORY.md"
    index.write_text(index.read_text() + "- [x](x.md)\n")
    found = opened.index(dry_run=True)
    assert (found.correct, len(found.problems)) == (False, 1)
    assert opened.index().correct
    assert opened.index(dry_run=True).correct


def test_explain_returns_verdict_and_erase_removes_entry(filled_memory):
    opened, (path, _) = filled_memory
    assert opened.explain("read", f"muniment://{path}").verdict == "allow"
    denied = opened.explain("modify", "user/pinned/a.md")
    assert (denied.verdict, denied.rule is not None) == ("deny", True)
    assert opened.explain("read", "user/../x").verdict == "deny"
    with pytest.raises(errors.BadArguments, match="explode"):
        opened.explain("explode", path)
    assert opened.erase(f"muniment://{path}").files == 1
    with pytest.raises(errors.NotFound):
        opened.show(path)


def test_notes_of_an_export_fit_a_header():
    notes = tuple(f"passed over: user/{'ä' * 200}{number}.md (why)" for number in range(500))
    header = _format_header(ExportResult(entries=0, notes=notes))
    sent_notes = json.loads(header)["notes"]
    assert (len(header) <= MAX_NOTE_BYTES, header.isascii()) == (True, True)
    assert f"{500 - len(sent_notes) + 1} more notes" in sent_notes[-1]
    assert json.loads(_format_header(ExportResult(entries=1)))["entries"] == 1


# -- asyncio


def test_async_memory_has_the_results_of_the_library(filled_memory):
    opened, (path, _) = filled_memory

    async def run():
        memory = AsyncMemory(opened)
        listed, entry = await asyncio.gather(memory.list(), memory.show(path))
        with pytest.raises(errors.NotFound):
            await memory.show("user/no.md")
        found = await memory.recall("dark mode")
        return listed, entry, [each.path for each in found.entries]

    assert asyncio.run(run()) == (opened.list(), opened.show(path), [path])


def test_async_memory_opens_and_closes(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)

    async def run():
        async with await AsyncMemory.open(tmp_path / "work", home=tmp_path / "home") as memory:
            (path,) = (await memory.remember(DARK)).files_touched
            return path, (await memory.show(path)).path

    path, shown_path = asyncio.run(run())
    assert path == shown_path


async def cancel_twice(task):
    """Cancel a task twice and let the event loop run in between."""
    for _ in range(2):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)


def test_task_cancelled_twice_ends_after_its_operation(open_memory):
    started, resume, seen = threading.Event(), threading.Event(), []

    def wait(cancel):
        started.set()
        resume.wait(30)
        seen.append((cancel.is_set(), cancel.fileno() >= 0))

    async def run():
        asynchronous = AsyncMemory(open_memory())
        task = asyncio.create_task(asynchronous._run_in_thread(wait))
        await asyncio.to_thread(started.wait)
        await cancel_twice(task)
        assert not task.done()
        resume.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == [(True, True)]

    asyncio.run(run())


def test_cancelled_close_still_closes_memory(open_memory, monkeypatch):
    started, resume, closed = threading.Event(), threading.Event(), []
    opened = open_memory()
    close = type(opened).close
    monkeypatch.setattr(type(opened), "close", lambda each: (close(each), closed.append(each)))

    def wait(_cancel):
        started.set()
        resume.wait(30)

    async def run():
        asynchronous = AsyncMemory(opened)
        work = asyncio.create_task(asynchronous._run_in_thread(wait))
        await asyncio.to_thread(started.wait)
        task = asyncio.create_task(asynchronous.close())
        await asyncio.sleep(0)
        await cancel_twice(task)
        resume.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await work
        assert closed == [opened]

    asyncio.run(run())


def test_cancelled_task_ends_its_run_and_writes_nothing(open_memory):
    started, resume = threading.Event(), threading.Event()

    def wait(_):
        started.set()
        assert resume.wait(30)
        return reply_with_calls(make_call("write_file", path="user/a.md", content="The user likes tea\n"))

    opened = open_memory(model=ScriptedModel([wait, reply_with_text("Saved.")]), on_model_failure="fail")

    async def run():
        with closing(opened):
            asynchronous = AsyncMemory(opened)
            task = asyncio.create_task(asynchronous.remember("The user likes tea"))
            await asyncio.to_thread(started.wait)
            task.cancel()
            await asyncio.sleep(0)
            resume.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            return read_files(opened), opened.history()

    written, steps = asyncio.run(run())
    assert (steps, [path for path in written if path.endswith("a.md")]) == ((), [])


def test_cancelled_recall_ends_its_wait(open_memory, monkeypatch):
    opened, started, ends = open_memory(), threading.Event(), []

    def wait(_recaller, _query, *, deadline, **_):
        pair = socket.socketpair()
        started.set()
        try:
            deadline.wait(pair[0].fileno(), select.POLLIN)
        except errors.Cancelled as error:
            ends.append(error)
            raise
        finally:
            for each in pair:
                each.close()

    monkeypatch.setattr(Recaller, "recall", wait)

    async def run():
        with closing(opened):
            task = asyncio.create_task(AsyncMemory(opened).recall("tea"))
            await asyncio.to_thread(started.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert len(ends) == 1
