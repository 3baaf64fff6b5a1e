"""The client and the daemon understand each other: real processes, over TCP and over the Unix socket."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.client.driving import opened
from kit.daemon.process import HeldModel, serving
from muniment.client import AsyncClient, Client, normalize, results
from muniment.client.errors import (
    Cancelled,
    OwnerRequired,
    PendingReview,
    QueueFull,
    TaskNotFound,
    UntrustedWorkspace,
    WaitTimeout,
)

BOTH = pytest.mark.parametrize("shell", [Client, AsyncClient])
SECONDS = 50


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """A daemon of the rule writer that all tests share."""
    base = tmp_path_factory.mktemp("d")
    (base / "other" / ".git").mkdir(parents=True)
    with serving(base, "--workspace", str(base / "other")) as served:
        yield served


@pytest.fixture(autouse=True)
def here(daemon, monkeypatch):
    """Clients are asked from the first of its workspaces."""
    monkeypatch.chdir(daemon.work)


def ways(daemon):
    """How a client may come to a daemon."""
    return {
        "tcp": {"url": daemon.url, "token": daemon.token, "workspace": daemon.work},
        "socket": {"socket": daemon.socket, "workspace": daemon.work},
        "home": {"home": daemon.home, "workspace": daemon.work},
    }


WAYS = pytest.mark.parametrize("way", ["tcp", "socket", "home"])


@pytest.mark.sweep(2)
@BOTH
@WAYS
def test_a_fact_is_remembered_seen_as_an_event_and_forgotten(daemon, shell, way):
    word = f"mode{shell.__name__}{way}"
    with opened(shell, hasty=False, **ways(daemon)[way]) as client:
        told = client.events(after=client.cursor())
        handle = client.remember(f"The user prefers {word} in all editors", scope="user")
        result = handle.wait(timeout=SECONDS)
        assert isinstance(result, results.RememberResult)
        assert result.touched_scopes == ("user",)
        assert result.decided_by == "rules"
        assert handle.get().result == result
        changed = next(
            found for each in told if (found := normalize(each)) and found["taskId"] == handle.task_id
        )
        assert changed == {
            "type": "workspace.memory.changed",
            "scope": "managed",
            "source": "workspace_memory_remember",
            "taskId": handle.task_id,
            "touchedScopes": ["user"],
        }
        told.close()
        would = client.forget(word, dry_run=True).wait(timeout=SECONDS)
        assert [entry.file_path for entry in would.removed_entries] == list(result.files_touched)
        assert would.touched_scopes == ()
        gone = client.forget(would.removed_entries[0].file_path).wait(timeout=SECONDS)
        assert gone.removed_entries == would.removed_entries
        assert gone.touched_scopes == ("user",)


@BOTH
def test_what_a_client_can_ask_is_answered(daemon, shell):
    with opened(shell, hasty=False, home=daemon.home) as client:
        features = client.capabilities()["features"]
        assert set(features["workspace_memory_remember"]["scopes"]) == {"user", "project"}
        first = client.remember_workspace_memory("We deploy on Thursdays.", context_mode="clean")
        assert (first.status, first.context_mode) in {("queued", "clean"), ("running", "clean")}
        client.handle(first.task_id).wait(timeout=SECONDS)
        assert client.get_workspace_memory_remember_task(first.task_id).status == "completed"
        assert client.dream().wait(timeout=SECONDS).rejected == 0
        listed = client.tasks(status="completed")
        assert {first.task_id} <= {each.task_id for each in listed}
        assert {each.kind for each in listed} >= {"remember", "dream"}
        with pytest.raises(TaskNotFound):
            client.get_workspace_memory_dream_task(first.task_id)


@BOTH
@WAYS
def test_a_fact_is_recalled_until_it_was_shown(daemon, shell, way):
    word = f"harpsichord{shell.__name__.lower()}{way}"
    with opened(shell, hasty=False, **ways(daemon)[way]) as client:
        remembered = client.remember(f"The {word}tuner keeps the {word} in tune", scope="user").wait(
            timeout=SECONDS
        )
        asked = f"What does the {word}tuner do to the {word}?"
        found = client.recall(asked)
        entry, *_ = found.entries
        assert ((entry.path,), entry.trust) == (remembered.files_touched, "owner")
        assert word in found.text
        assert (found.abstained, found.error) == (False, None)
        assert client.recall(asked, exclude=[entry.id], limit=20) == results.Recalled(
            (), "", 0, abstained=True
        )


@BOTH
def test_the_owner_undoes_explains_and_erases(daemon, shell):
    with opened(shell, hasty=False, home=daemon.home) as client:
        handle = client.remember(f"The staging server is named {shell.__name__.lower()}")
        (path,) = handle.wait(timeout=SECONDS).files_touched
        before = client.audit_head()
        undone = client.undo(handle.task_id)
        assert (undone.undone, undone.files_touched) == (handle.task_id, (path,))
        assert client.audit_head().records > before.records
        assert client.explain("read", path).verdict == "allow"
        denied = client.explain("modify", "user/MEMORY.md")
        assert denied.verdict == "deny"
        assert denied.reason
        plan = client.erase(handle.task_id)
        assert isinstance(plan, results.ErasePlan)
        receipt = client.erase(handle.task_id, yes=True)
        assert isinstance(receipt, results.EraseReceipt)
        assert receipt.versions == plan.versions > 0


@BOTH
@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_what_waits_is_shown_and_decided(daemon, shell, decision):
    with opened(shell, hasty=False, home=daemon.home) as client:
        fact = f"Always answer in the language of {shell.__name__} {decision}"
        with pytest.raises(PendingReview) as caught:
            client.remember(fact, trust="external", ref="a page").wait(timeout=SECONDS)
        review_id = caught.value.review_id
        assert review_id in {each.review_id for each in client.reviews()}
        shown = client.review(review_id)
        assert fact.split()[-2] in shown.text
        decided = (
            client.approve(review_id, shown.digest) if decision == "approve" else client.reject(review_id)
        )
        assert (decided.task_id is None) == (decision == "reject")
        assert bool(decided.files_touched) == (decision == "approve")
        assert review_id not in {each.review_id for each in client.reviews()}


@BOTH
def test_a_client_with_a_token_of_its_own_sees_its_tasks_alone(daemon, shell):
    name = shell.__name__
    token = daemon.new_token(name, f"id-{name}")
    with (
        opened(shell, hasty=False, home=daemon.home, token=token, client_id=f"id-{name}") as guest,
        opened(shell, hasty=False, home=daemon.home) as owner,
    ):
        mine, other = guest.dream(), owner.dream()
        assert mine.wait(timeout=SECONDS).summary
        assert {each.task_id for each in guest.tasks()} == {mine.task_id}
        assert {mine.task_id, other.task_id} <= {each.task_id for each in owner.tasks()}
        with pytest.raises(TaskNotFound):
            guest.get(other.task_id)
        with pytest.raises(OwnerRequired):
            guest.audit_head()


@BOTH
def test_a_workspace_that_is_not_served_is_an_error_that_says_how_to_add_it(
    daemon, shell, tmp_path, monkeypatch
):
    place = tmp_path / "unserved"
    (place / ".git").mkdir(parents=True)
    (place / "below").mkdir()
    monkeypatch.chdir(place / "below")
    for workspace in None, ".", "/nowhere", f"gone-{'0' * 32}":
        with opened(shell, hasty=False, home=daemon.home, workspace=workspace) as client:
            named = str(place) if workspace in {None, "."} else workspace
            for ask in client.tasks, lambda: client.remember("A fact."), lambda: next(client.events()):
                with pytest.raises(UntrustedWorkspace, match=r"--workspace DIRECTORY") as caught:
                    ask()
                assert f"It was asked for {named}." in str(caught.value)
                assert caught.value.code == "untrusted_workspace"


# -- daemons of their own ------------------------------------------------------------------------------


@pytest.fixture
def model():
    """A language model that answers when the test lets it."""
    with HeldModel() as held:
        yield held


@pytest.mark.sweep(1)
@BOTH
def test_a_task_is_cancelled_and_a_full_queue_told(tmp_path, model, shell):
    model.hold()
    with (
        serving(tmp_path, *model.flags, "--grace", "0") as daemon,
        opened(shell, hasty=False, home=daemon.home, timeout=2, workspace=daemon.work) as client,
    ):
        first, *others = [client.remember(f"Fact number {number}") for number in range(16)]
        with pytest.raises(QueueFull) as caught:
            client.remember("One too many")
        assert caught.value.retry_after > 0
        with pytest.raises(WaitTimeout) as late:
            others[0].wait(timeout=0)
        assert late.value.status == "queued"
        model.wait_until_asked()
        assert others[0].cancel().status == "cancelled"
        with pytest.raises(Cancelled):
            others[0].wait(timeout=SECONDS)
        assert first.cancel().status == "cancelled"
        assert others[0].get().is_over


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def slow(shell, way):
    return pytest.param(shell, way, marks=pytest.mark.slow)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("shell", "way"),
    [
        (Client, "tcp"),
        (AsyncClient, "home"),
        slow(Client, "socket"),
        slow(Client, "home"),
        slow(AsyncClient, "tcp"),
        slow(AsyncClient, "socket"),
    ],
)
def test_a_wait_and_the_events_outlive_the_daemon(tmp_path, model, shell, way):
    """Killed while a task runs, it is started anew: the wait ends with the task, each event is told once."""
    model.hold()
    waiting, following = threading.Event(), threading.Event()

    def wait(place):
        with opened(shell, hasty=False, **place) as client:
            handle = client.remember("The user prefers dark mode in all editors")
            waiting.set()
            return handle.wait(timeout=SECONDS)

    def follow(place, cursor):
        found = []
        with opened(shell, hasty=False, **place) as client:
            for event in client.events(after=cursor):
                found.append(event)
                following.set()
                if event.data.get("status") == "completed":
                    break
        return found

    flags = ("--port", str(free_port()), "--grace", "0")
    with serving(tmp_path, *model.flags, *flags) as daemon, ThreadPoolExecutor() as threads:
        place = ways(daemon)[way]
        result, told = threads.submit(wait, place), threads.submit(follow, place, daemon.cursor(0))
        assert waiting.wait(SECONDS)
        assert following.wait(SECONDS)
        model.wait_until_asked()
        daemon.kill()
        model.release()
        daemon.start()
        assert result.result(SECONDS).touched_scopes == ("user",)
        found = told.result(SECONDS)
    numbers = [int(event.id.partition("-")[2]) for event in found]
    assert numbers == sorted(set(numbers))
    assert {event.type for event in found} == {"task", "memory_changed"}
    assert sum(event.type == "memory_changed" for event in found) == 1
