"""Entries by path through both clients, over a daemon."""

from __future__ import annotations

import io
import stat

import pytest

from kit.client.shells import open_client
from kit.server.raw import start_local_daemon
from muniment import errors
from muniment.client import core
from muniment.client.errors import Problem
from muniment.operations.job_context import JobContext
from muniment.server import entries as routes

FACTS = ("The user prefers dark mode", "The user drinks green tea", "The user plays the oboe")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with start_local_daemon(tmp_path_factory.mktemp("d")) as served:
        for fact in FACTS:
            served.run_task("remember", {"content": fact})
        yield served


@pytest.fixture
def client(daemon, client_class):
    address = {"url": daemon.url, "token": daemon.token, "workspace": daemon.work}
    with open_client(client_class, skip_pauses=False, **address) as created:
        yield created


def test_list_reads_all_pages(client, monkeypatch):
    every = client.list()
    monkeypatch.setattr(core, "MAX_LISTED", 2)
    assert client.list() == every
    assert len(every.entries) == len(FACTS)
    assert client.list(limit=1).entries == every.entries[:1]
    assert client.list(limit=1).next_cursor == every.entries[0].path
    assert client.list("project").entries == ()


def test_edit_of_changed_entry_raises_problem(client):
    entry = client.show(client.list().entries[0].path)
    with pytest.raises(Problem) as problem:
        client.edit(entry.path, "The user prefers a light theme\n", digest="0" * 64)
    assert (problem.value.code, client.show(entry.path)) == ("store_conflict", entry)
    preview = client.edit(entry.path, "The user prefers a light theme\n", digest=entry.digest, dry_run=True)
    assert (preview.task_id, preview.changed, client.show(entry.path)) == (None, True, entry)


def test_edit_with_empty_text_raises_problem(client):
    entry = client.show(client.list().entries[0].path)
    with pytest.raises(Problem, match=f"{entry.path} is empty; to remove .* forget") as problem:
        client.edit(entry.path, " \n")
    assert (problem.value.code, client.show(entry.path)) == ("invalid_content", entry)


def test_export_writes_new_private_file_or_open_file(client, tmp_path, monkeypatch):
    file, target = io.BytesIO(), tmp_path / "memory.tar"
    assert client.export(target).entries == client.export(file).entries == len(FACTS)
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (file.getvalue(), 0o600)
    with pytest.raises(errors.ConfigInvalid):
        client.export(target)
    monkeypatch.setattr(routes, "MAX_EXPORT_BYTES", 10)
    with pytest.raises(Problem, match="more than 10 bytes") as problem:
        client.export(io.BytesIO())
    assert problem.value.code == "body_too_large"


def test_history_why_index_and_pin(client):
    path = client.list().entries[-1].path
    assert [each.asked for each in client.history(path)][-1:] == ["remember"]
    assert (client.why(path).state, client.why(path).asked is not None) == ("committed", True)
    assert client.index(dry_run=True).correct
    pinned = client.pin(path)
    assert client.pin(pinned.path).path == path
    with pytest.raises(Problem):
        client.why("user/no.md")


def test_erase_without_boolean_dry_run_erases_nothing(client):
    path = client.list().entries[0].path
    for value in None, 0, "no":
        with pytest.raises(errors.ConfigInvalid, match="dry_run"):
            client.erase(path, dry_run=value)
    assert client.erase(path, dry_run=True).files == (path,)
    assert client.show(path).path == path


@pytest.mark.parametrize("form", ["tar", "jsonl"])
def test_export_stops_at_byte_limit(daemon, client, monkeypatch, form):
    for number in range(5):
        (daemon.home / f"user/bulk-{number}.md").write_text('"' * 900)  # Each takes two bytes in JSON.
    read_paths, real_read = [], JobContext.read_file

    def counting_read(place, path):
        read_paths.append(path.text) if "bulk" in path.text else None
        return real_read(place, path)

    monkeypatch.setattr(JobContext, "read_file", counting_read)
    monkeypatch.setattr(routes, "MAX_EXPORT_BYTES", 3000)
    with pytest.raises(Problem, match="more than 3000 bytes") as problem:
        client.export(io.BytesIO(), format=form)
    assert (problem.value.code, 0 < len(set(read_paths)) < 4) == ("body_too_large", True)
    for number in range(5):
        (daemon.home / f"user/bulk-{number}.md").unlink()


@pytest.mark.parametrize("name", ["history", "why", "show"])
def test_argument_with_lone_surrogate_is_invalid(client, name):
    with pytest.raises(errors.ConfigInvalid, match="a lone surrogate"):
        getattr(client, name)("user/\ud800")
