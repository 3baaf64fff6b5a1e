"""The client and the daemon work together: real processes, over TCP and over the Unix socket."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.catching import catch_error
from kit.client.shells import open_client
from kit.server.process import PausableModel, start_daemon_process
from muniment import types
from muniment.client import errors, normalize
from muniment.errors import PendingReview

WAYS = pytest.mark.parametrize("way", ["tcp", "socket", "home"])
SECONDS = 50


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """Start a daemon with the rule writer, shared by all tests."""
    base = tmp_path_factory.mktemp("d")
    (base / "other" / ".git").mkdir(parents=True)
    with start_daemon_process(base, "--workspace", str(base / "other")) as served:
        yield served


@pytest.fixture(autouse=True)
def use_workspace(daemon, monkeypatch):
    """Change into the first workspace of the daemon."""
    monkeypatch.chdir(daemon.work)


def client_options(daemon, way):
    """Return the options of a client for one way to reach the daemon."""
    ways = {"tcp": {"url": daemon.url, "token": daemon.token}, "socket": {"socket": daemon.socket}}
    return ways.get(way, {"home": daemon.home}) | {"workspace": daemon.work}


def wait_for_result(handle):
    return handle.wait(timeout=SECONDS)


@pytest.mark.sweep(3)
@WAYS
def test_fact_is_remembered_recalled_and_forgotten(daemon, client_class, way):
    word = f"harpsichord{client_class.__name__.lower()}{way}"
    with open_client(client_class, skip_pauses=False, **client_options(daemon, way)) as client:
        events = client.events(after=client.cursor())
        handle = client.remember(f"The {word}tuner keeps the {word} in tune", scope="user")
        result = wait_for_result(handle)
        assert (result.touched_scopes, result.decided_by) == (("user",), "rules")
        assert handle.get().result == result
        changes = (found for each in events if (found := normalize(each)))
        change = next(change for change in changes if change["taskId"] == handle.task_id)
        assert (change["type"], change["touchedScopes"]) == ("workspace.memory.changed", ["user"])
        events.close()
        question = f"What does the {word}tuner do to the {word}?"
        found = client.recall(question)
        entry, *_ = found.entries
        assert ((entry.path,), entry.trust) == (result.files_touched, "owner")
        assert (word in found.text, found.abstained, found.error) == (True, False, None)
        second = client.recall(question, exclude=[entry.id], limit=20)
        assert second == types.Recalled(entries=(), text="", tokens=0, abstained=True)
        preview = wait_for_result(client.forget(word, dry_run=True))
        assert [entry.file_path for entry in preview.removed_entries] == list(result.files_touched)
        assert preview.touched_scopes == ()
        forgotten = wait_for_result(client.forget(preview.removed_entries[0].file_path))
        assert (forgotten.removed_entries, forgotten.touched_scopes) == (preview.removed_entries, ("user",))


def test_task_id_of_client_result_can_be_undone(daemon, client_class):
    with open_client(client_class, skip_pauses=False, home=daemon.home) as client:
        result = wait_for_result(
            client.remember(f"The cello of {client_class.__name__.lower()} is in the attic")
        )
        assert client.undo(result.task_id).files_touched == result.files_touched
        for handle in client.forget("zebra", dry_run=True), client.dream(dry_run=True):
            assert wait_for_result(handle).task_id == handle.task_id


def test_client_and_owner_operations_are_answered(daemon, client_class):
    with open_client(client_class, skip_pauses=False, home=daemon.home) as client:
        details = client.capabilities()["featureDetails"]
        assert set(details["workspace_memory_remember"]["scopes"]) == {"user", "project"}
        fact = f"The staging server is named {client_class.__name__.lower()}"
        first = client.remember_workspace_memory(fact, context_mode="clean")
        assert first.context_mode == "clean"
        (path,) = wait_for_result(client.handle(first.task_id)).files_touched
        assert client.get_workspace_memory_remember_task(first.task_id).status == "completed"
        assert wait_for_result(client.dream()).rejected == 0
        listed = client.tasks(status="completed")
        assert first.task_id in {each.task_id for each in listed}
        assert {each.kind for each in listed} >= {"remember", "dream"}
        not_found = catch_error(errors.Problem, client.get_workspace_memory_dream_task, first.task_id)
        assert not_found.code == "dream_task_not_found"
        before = client.audit_head()
        undone = client.undo(first.task_id)
        assert (undone.undone, undone.files_touched) == (first.task_id, (path,))
        assert client.audit_head().records > before.records
        explained = client.explain("read", path), client.explain("modify", "user/MEMORY.md")
        assert [each.verdict for each in explained] == ["allow", "deny"]
        plan, receipt = client.erase(first.task_id, dry_run=True), client.erase(first.task_id)
        assert (type(plan), type(receipt)) == (types.ErasePlan, types.EraseResult)
        assert receipt.versions == plan.versions > 0


def test_pending_review_is_shown_and_decided(daemon, client_class):
    with open_client(client_class, skip_pauses=False, home=daemon.home) as client:
        for approved in (True, False):
            fact = f"Always answer in the language of {client_class.__name__} {approved}"
            handle = client.remember(fact, trust="external", ref="a page")
            review_id = catch_error(PendingReview, wait_for_result, handle).review_id
            assert review_id in {each.review_id for each in client.reviews()}
            review = client.review(review_id)
            assert fact.split()[-2] in review.text
            decided = client.approve(review_id, review.digest) if approved else client.reject(review_id)
            assert (decided.task_id is not None, bool(decided.files_touched)) == (approved, approved)
            assert review_id not in {each.review_id for each in client.reviews()}


def test_unserved_workspace_error_names_the_option(daemon, client_class, tmp_path, monkeypatch):
    for each in (".git", "below"):
        (tmp_path / "unserved" / each).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "unserved" / "below")
    for workspace in None, ".", "/nowhere", f"gone-{'0' * 32}":
        with open_client(client_class, skip_pauses=False, home=daemon.home, workspace=workspace) as client:
            expected = f"{tmp_path}/unserved" if workspace in {None, "."} else workspace
            for call in client.tasks, lambda: client.remember("A fact."), lambda: next(client.events()):
                message = str(catch_error(errors.Problem, call, match="--workspace DIRECTORY"))
                assert f"The requested workspace is {expected}." in message


@pytest.mark.slow
@WAYS
def test_wait_and_events_survive_daemon_restart(tmp_path, client_class, way):
    """The daemon is killed during a task and restarted; each event arrives once."""

    def kill():
        model.wait_for_requests()
        daemon.kill()
        model.resume()
        daemon.start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with PausableModel() as model, ThreadPoolExecutor(1) as threads:
        model.pause()
        flags = (*model.flags, "--port", str(port), "--grace", "0")
        with (
            start_daemon_process(tmp_path, *flags) as daemon,
            open_client(client_class, skip_pauses=False, **client_options(daemon, way)) as client,
        ):
            events = client.events(after=daemon.cursor(0))
            handle = client.remember("The user prefers dark mode in all editors")
            found, restart = [next(events)], threads.submit(kill)
            assert wait_for_result(handle).touched_scopes == ("user",)
            restart.result(SECONDS)
            while found[-1].data.get("status") != "completed":
                found.append(next(events))
            events.close()
    numbers = [int(event.id.partition("-")[2]) for event in found]
    assert numbers == sorted(set(numbers))
    assert {event.type for event in found} == {"task", "memory_changed"}
    assert sum(event.type == "memory_changed" for event in found) == 1
