"""The TypeScript client of the original daemon works with this one, unchanged.

Each guarantee that it needs has its own test in `test_original.py`, which runs without the package.
"""

from __future__ import annotations

import json
import socket

import pytest

from kit.catching import catch_error
from kit.server.process import start_daemon_process
from kit.server.raw import start_local_daemon
from kit.server.typescript import SdkError, find_missing, start_sdk

pytestmark = pytest.mark.skipif((why := find_missing()) is not None, reason=str(why))

FACT = "The user prefers tabs to spaces"
OVER = ("completed", "failed")
"""All ends of a task that the client knows."""


@pytest.fixture
def sdk(exit_stack):
    """Start the client without a connection."""
    return exit_stack.enter_context(start_sdk())


def wait_until_ended(look, task, *more):
    """Poll a task until it ends, like the callers of the client; the types check each answer."""
    while task["status"] not in OVER:
        assert task["status"] in {"queued", "running"}
        assert "result" not in task
        assert "error" not in task
        task = look(task["taskId"], *more)
    assert ("result" in task, "error" in task) == (task["status"] == "completed", task["status"] == "failed")
    return task


def test_sdk_reads_health_and_capabilities(daemon, sdk):
    sdk.connect({"baseUrl": f"{daemon.url}/", "token": daemon.token})
    assert sdk.health() == {"status": "ok"}
    document = sdk.capabilities()
    assert (document["v"], document["mode"], document["modelServices"]) == (1, "http-bridge", [])
    for name in (
        "remember",
        "remember_user_scope",
        "remember_project_scope",
        "forget",
        "forget_scope",
        "dream",
    ):
        sdk.requireCapability(f"workspace_memory_{name}")
    thrown = catch_error(SdkError, sdk.requireCapability, "permission_vote")
    assert thrown.name == "DaemonCapabilityMissingError"
    assert sdk.negotiate(daemon.url, daemon.token) == "rest"


def test_sdk_remembers_forgets_and_dreams(start_daemon, sdk):
    daemon = start_daemon()
    sdk.connect({"baseUrl": daemon.url, "token": daemon.token})
    for scope in "user", "project":
        for mode in "workspace", "clean":
            fact = f"The user prefers {scope} {mode} tabs to spaces"
            options = {"scope": scope, "contextMode": mode}
            accepted = sdk.rememberWorkspaceMemory(fact, options)
            assert (accepted["contextMode"], accepted["scope"]) == (mode, scope)
            task = wait_until_ended(sdk.getWorkspaceMemoryRememberTask, accepted)
            assert (task["status"], task["result"]["touchedScopes"]) == ("completed", [scope])
            (path,) = task["result"]["filesTouched"]
            assert path.removeprefix(f"{scope}/") in daemon.read_files(scope)
    task = wait_until_ended(
        sdk.getWorkspaceMemoryRememberTask, sdk.rememberWorkspaceMemory("The user likes tea")
    )
    assert (task["contextMode"], "scope" in task) == ("workspace", False)
    query = "prefers workspace tabs to spaces"
    task = wait_until_ended(
        sdk.getWorkspaceMemoryForgetTask, sdk.forgetWorkspaceMemory(query, {"scope": "project"})
    )
    topics = {"user", "feedback", "project", "reference"}
    assert {
        *task["result"]["touchedTopics"],
        *(each["topic"] for each in task["result"]["removedEntries"]),
    } <= topics
    removed = task["result"]["removedEntries"]
    assert (
        {each["filePath"].partition("/")[0] for each in removed}
        == {"project"}
        == {*task["result"]["touchedScopes"]}
    )
    task = wait_until_ended(
        sdk.getWorkspaceMemoryForgetTask, sdk.forgetWorkspaceMemory("user workspace tabs")
    )
    assert (task["result"]["touchedScopes"], "scope" in task) == (["user"], False)
    task = wait_until_ended(sdk.getWorkspaceMemoryDreamTask, sdk.dreamWorkspaceMemory())
    assert (task["status"], task["result"]["dedupedEntries"]) == ("completed", 0)


def test_sdk_errors_have_status_and_code(daemon, sdk):
    sdk.connect({"baseUrl": daemon.url, "token": daemon.token})
    absent = f"remember-{'0' * 36}"
    for call, args, status, code in (
        (sdk.rememberWorkspaceMemory, (" ",), 400, "invalid_content"),
        (sdk.rememberWorkspaceMemory, (FACT, {"contextMode": "dirty"}), 400, "invalid_context_mode"),
        (sdk.rememberWorkspaceMemory, (FACT, {"clientId": "client_1"}), 400, "invalid_client_id"),
        (sdk.forgetWorkspaceMemory, ("",), 400, "invalid_query"),
        (sdk.getWorkspaceMemoryRememberTask, (absent,), 404, "remember_task_not_found"),
        (sdk.getWorkspaceMemoryDreamTask, (absent,), 404, "dream_task_not_found"),
        (sdk.workspaceMemory, (), 404, "not_found"),
    ):
        thrown = catch_error(SdkError, call, *args)
        assert (thrown.name, thrown.status, thrown.body["code"]) == ("DaemonHttpError", status, code)
        assert thrown.message.endswith(f": {thrown.body['error']}")
    for token in "x" * 43, None:
        sdk.connect({"baseUrl": daemon.url} | ({} if token is None else {"token": token}))
        thrown = catch_error(SdkError, sdk.dreamWorkspaceMemory)
        assert (thrown.status, thrown.body["code"]) == (401, "token_required")


def test_sdk_client_sees_only_its_tasks_and_known_statuses(blocked_daemon, model, sdk):
    token, client_options = blocked_daemon.add("editor", "window-1", "window-2"), {"clientId": "window-1"}
    sdk.connect({"baseUrl": blocked_daemon.url, "token": token})
    first = sdk.rememberWorkspaceMemory(FACT, client_options)
    second = sdk.rememberWorkspaceMemory("The user is doomed", client_options)
    thrown = catch_error(
        SdkError, sdk.getWorkspaceMemoryRememberTask, first["taskId"], {"clientId": "window-2"}
    )
    assert (thrown.status, thrown.body["code"]) == (404, "remember_task_not_found")
    # Another program with the same client id cancels the task.
    assert (
        blocked_daemon.cancel(second["taskId"], token=token, client="window-1").json()["status"]
        == "cancelled"
    )
    task = wait_until_ended(sdk.getWorkspaceMemoryRememberTask, second, client_options)
    assert (task["status"], task["error"]["code"]) == ("failed", "cancelled")
    model.resume()
    assert (
        wait_until_ended(sdk.getWorkspaceMemoryRememberTask, first, client_options)["status"] == "completed"
    )


def test_sdk_resumes_events_by_number_without_gaps(tmp_path, sdk):
    """Over a lost connection, a killed daemon, and a new series of events."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with start_daemon_process(tmp_path, "--port", str(port)) as daemon:
        sdk.connect({"baseUrl": daemon.url, "token": daemon.token})

        def remember_fact(number):
            task = sdk.rememberWorkspaceMemory(f"The user prefers {number} tabs to {number} spaces")
            assert wait_until_ended(sdk.getWorkspaceMemoryRememberTask, task)["status"] == "completed"
            return task["taskId"]

        epoch, first = sdk.follow(), remember_fact("seven")
        (*_, changed) = seen = sdk.until("memory_changed", first)
        assert (changed["known"], changed["data"]["touchedScopes"]) == (True, ["user"])
        assert changed["data"]["source"] == "workspace_memory_remember"
        tasks = [each for each in seen if each["type"] == "task"]
        assert {each["data"]["taskId"] for each in tasks} == {first}
        seen += sdk.release()["left"]
        while_disconnected = remember_fact("eight")
        assert sdk.follow() == epoch
        seen += sdk.until("memory_changed", while_disconnected)
        seen += sdk.until("replay_complete")
        seen += sdk.release()["left"]
        other = remember_fact("nine")
        daemon.kill()
        daemon.start()
        assert sdk.follow() == epoch
        last = remember_fact("ten")
        seen += sdk.until("memory_changed", last)
        seen += sdk.release()["left"]
        assert "state_resync_required" not in {each["type"] for each in seen}
        numbers = [each["id"] for each in seen if "id" in each]
        assert numbers == [*range(1, len(numbers) + 1)]  # No event is missed or repeated.
        changes = [each["data"]["taskId"] for each in seen if each["type"] == "memory_changed"]
        assert changes == [first, while_disconnected, other, last]

        daemon.stop()
        (daemon.home / "state" / "ledger.db-series").unlink()
        daemon.start()
        assert sdk.follow() not in {None, epoch}
        replayed = sdk.until("replay_complete")
        expected = {"reason": "epoch_reset", "lastDeliveredId": numbers[-1], "earliestAvailableId": 1}
        assert (replayed[0]["type"], replayed[0]["data"], replayed[0]["known"]) == (
            "state_resync_required",
            expected,
            True,
        )
        assert [each["id"] for each in replayed if "id" in each][: len(numbers)] == numbers
        after = remember_fact("eleven")
        assert sdk.until("memory_changed", after)[-1]["known"]
        sdk.release()
        assert sdk.once("replay_complete", {"lastEventId": 3})[0]["data"] == expected | {"lastDeliveredId": 3}


def test_sdk_requests_only_scopes_of_the_policy(tmp_path, sdk, user_only_policy):
    with start_local_daemon(tmp_path, policy=user_only_policy) as daemon:
        sdk.connect({"baseUrl": daemon.url, "token": daemon.token})
        task = sdk.rememberWorkspaceMemory(FACT, {"scope": "user"})
        assert wait_until_ended(sdk.getWorkspaceMemoryRememberTask, task)["result"]["touchedScopes"] == [
            "user"
        ]
        thrown = catch_error(SdkError, sdk.rememberWorkspaceMemory, FACT, {"scope": "project"})
        assert thrown.name == "DaemonCapabilityMissingError"
        assert json.dumps("project") not in daemon.get("/capabilities").text
