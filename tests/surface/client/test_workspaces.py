"""The workspace of a client is its own directory, in any checkout of a served project; with git."""

import os
import shutil
import threading
from urllib.parse import quote

import pytest

from kit.git import clone, create_repository, needs_git, run_git
from kit.server.raw import start_local_daemon
from muniment.client import Client
from muniment.client.errors import Problem
from muniment.server import core as daemon_core
from muniment.server.work import create_workspace
from muniment.workspaces.projects import bind_checkout, find_project, set_memory_folder

pytestmark = needs_git


@pytest.fixture
def workspace_daemon(tmp_path, exit_stack):
    """Start a daemon for the repositories `a` and `b` and the worktree `tree` of `a`; it creates clients."""
    for name in ("a", "b"):
        create_repository(tmp_path / name)
    run_git(tmp_path / "a", "worktree", "add", "--quiet", str(tmp_path / "tree"))
    workspaces = tuple(tmp_path / name for name in ("a", "tree", "b"))
    daemon = exit_stack.enter_context(start_local_daemon(tmp_path, workspaces=workspaces))
    daemon.client_of = lambda **named: exit_stack.enter_context(
        Client(url=daemon.url, token=daemon.token, **named)
    )
    return daemon


def remember_fact(client, fact):
    """Remember a fact of the project and return its files."""
    return client.remember(fact, scope="project").wait(timeout=50).files_touched


def test_client_without_workspace_uses_its_directory(workspace_daemon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "b")
    remember_fact(workspace_daemon.client_of(), "This project keeps zebras")
    assert workspace_daemon.client_of(workspace=tmp_path / "b").recall("zebras").entries
    assert not workspace_daemon.client_of(workspace=tmp_path / "a").recall("zebras").entries
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Problem, match="does not serve this workspace"):
        workspace_daemon.client_of().recall("zebras")


def test_worktrees_of_clone_are_one_workspace(workspace_daemon, tmp_path):
    assert [each.path for each in workspace_daemon.core.workspaces.values()] == [
        tmp_path / "a",
        tmp_path / "b",
    ]
    run_git(tmp_path / "a", "worktree", "add", "--quiet", str(tmp_path / "later"))
    remember_fact(workspace_daemon.client_of(workspace=tmp_path / "tree"), "This project keeps zebras")
    for name in ("a", "tree", "later"):
        assert workspace_daemon.client_of(workspace=tmp_path / name).recall("zebras").entries, name
    found = workspace_daemon.get(f"/workspaces/{quote(str(tmp_path / 'later'), safe='')}/memory/tasks").json()
    assert [each["status"] for each in found["tasks"]] == ["completed"]


def test_client_in_renamed_checkout_is_served(workspace_daemon, tmp_path):
    remember_fact(workspace_daemon.client_of(workspace=tmp_path / "b"), "This project keeps zebras")
    renamed = (tmp_path / "b").rename(tmp_path / "renamed")
    client = workspace_daemon.client_of(workspace=renamed)
    assert client.recall("zebras").entries
    remember_fact(client, "This project keeps okapis")
    assert client.recall("okapis").entries


def test_unserved_directories_are_rejected(workspace_daemon, tmp_path):
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    clone(tmp_path / "a", tmp_path / "clone")
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / ".git").write_text(f"gitdir: {tmp_path}/a/.git/worktrees/tree\n")
    (tmp_path / "waits").mkdir()
    os.mkfifo(tmp_path / "waits" / ".git")
    (tmp_path / "file").write_text("")
    names = ["copy", "clone", "claims", "waits", "file", "missing"]
    for name in [
        *(str(tmp_path / each) for each in names),
        "a",
        "../a",
        "/",
        "~",
        "/proc/self/root",
        "x" * 5000,
    ]:
        found = workspace_daemon.get(f"/workspaces/{quote(name, safe='')}/memory/tasks")
        assert (found.status_code, found.json().get("code")) == (403, "untrusted_workspace"), name
    workspace_daemon.assert_healthy()


def test_daemon_in_other_clone_starts_memory_and_notes_it(workspace_daemon, tmp_path, exit_stack):
    clone(tmp_path / "a", tmp_path / "second")
    clone(tmp_path / "a", tmp_path / "third")
    bind_checkout(workspace_daemon.home, tmp_path / "second")
    workspace = create_workspace(
        tmp_path / "third",
        workspace_daemon.daemon._options.settings,
        workspace_daemon.core.state,
        in_process=True,
    )
    exit_stack.callback(workspace.close)
    assert (workspace.notes, workspace.problem()) == ((), None)
    (note,) = workspace.notes
    assert "muniment projects link second-" in note
    assert not find_project(workspace_daemon.home, tmp_path / "third").needs_decision


def test_hanging_lookup_blocks_no_other_request(workspace_daemon, tmp_path, monkeypatch):
    monkeypatch.setattr(daemon_core, "FIND_SECONDS", 0.05)
    release, real_key = threading.Event(), daemon_core._find_project_key
    monkeypatch.setattr(
        daemon_core,
        "_find_project_key",
        lambda home, path, *more: (
            release.wait(30) and "" if path.startswith("/hangs/") else real_key(home, path, *more)
        ),
    )
    try:
        for number in range(5):
            found = workspace_daemon.get(f"/workspaces/{quote(f'/hangs/{number}', safe='')}/memory/tasks")
            assert (found.status_code, found.json()["code"]) == (403, "untrusted_workspace")
        assert workspace_daemon.client_of(workspace=tmp_path / "a").recall("zebras").error is None
    finally:
        release.set()


def test_other_repository_at_served_path_is_rejected(workspace_daemon, tmp_path):
    remember_fact(workspace_daemon.client_of(workspace=tmp_path / "b"), "This project keeps zebras")
    (tmp_path / "b").rename(tmp_path / "moved")
    create_repository(tmp_path / "b")
    with pytest.raises(Problem, match="does not serve this workspace"):
        workspace_daemon.client_of(workspace=tmp_path / "b").recall("zebras")


def test_other_repository_at_former_path_is_rejected(tmp_path, exit_stack):
    """Both memories are inside the checkouts, so each checkout has its own."""
    home, checkout = tmp_path / "home", create_repository(tmp_path / "place")
    bind_checkout(home, checkout)
    moved = checkout.rename(tmp_path / "moved")
    bind_checkout(home, moved)
    create_repository(checkout)
    set_memory_folder(home, checkout, ".muniment")
    workspace_daemon = exit_stack.enter_context(start_local_daemon(tmp_path, workspaces=(moved,)))
    with Client(url=workspace_daemon.url, token=workspace_daemon.token, workspace=moved) as client:
        remember_fact(client, "This project keeps zebras")
        assert client.recall("zebras").entries
    for call in (lambda client: client.recall("zebras"), lambda client: remember_fact(client, "No zebras")):
        with (
            Client(url=workspace_daemon.url, token=workspace_daemon.token, workspace=checkout) as client,
            pytest.raises(Problem, match="does not serve this workspace"),
        ):
            call(client)
