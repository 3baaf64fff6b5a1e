"""A daemon inside somebody else's program: on its event loop, beside its threads, gone when it is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

from kit.daemon.embedded import embedded
from kit.daemon.process import BASE
from kit.memories import descriptors
from muniment.agent.filing import RuleWriter
from muniment.daemon.service import Daemon, Options
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.settings import Settings
from muniment.store.state import State


@pytest.fixture
def options(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    return Options(Settings(tmp_path / "home"), (tmp_path / "work",), grace=1.0)


def headers(options):
    token = (options.settings.state / "token").read_text(encoding="ascii").strip()
    return {"Authorization": f"Bearer {token}"}


def test_a_program_embeds_a_daemon_on_its_own_loop(options):
    async def program():
        async with Daemon(options, RuleWriter()) as daemon:
            async with httpx2.AsyncClient(
                base_url=daemon.url, headers=headers(options), trust_env=False
            ) as http:
                fact = {"content": "The user embeds what they like"}
                accepted = (await http.post(f"{BASE}/remember", json=fact)).json()
                path = f"{BASE}/remember/{accepted['taskId']}"
                over = (await http.get(path, headers={"Prefer": "wait=50"}, timeout=60)).json()
            assert over["status"] == "completed"
            assert (options.settings.state / "daemon.json").exists()
        assert not (options.settings.state / "daemon.json").exists()
        await daemon.stopped()
        await daemon.stop()
        return daemon.url

    url = asyncio.run(program())
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/healthz", trust_env=False)


@pytest.mark.slow
def test_a_program_is_left_as_it_was(options):
    """No thread, no child, no descriptor and no signal handler stays, however often it starts a daemon."""
    import signal

    async def program():
        async with Daemon(options, RuleWriter()):
            pass

    asyncio.run(program())
    threads, opened, handler = set(threading.enumerate()), descriptors(), signal.getsignal(signal.SIGTERM)
    asyncio.run(program())
    assert set(threading.enumerate()) <= threads
    assert descriptors() == opened
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.slow
def test_a_disk_that_hangs_does_not_keep_the_loop_of_a_program(options, monkeypatch):
    """Only the interpreter waits for the thread, at its very end, as it does for every thread of a pool."""
    began, released = threading.Event(), threading.Event()

    def hang():
        began.set()
        released.wait()

    async def program():
        async with Daemon(options, RuleWriter()) as daemon:
            (workspace,) = daemon.core.workspaces.values()
            monkeypatch.setattr(workspace, "problem", hang)
            asked = asyncio.create_task(daemon.core.reason(workspace))
            await asyncio.to_thread(began.wait)
        asked.cancel()

    running = threading.Thread(target=asyncio.run, args=(program(),))
    running.start()
    running.join(20)
    is_kept = running.is_alive()
    released.set()
    running.join()
    assert not is_kept


def test_a_second_daemon_in_one_program_refuses(options):
    async def program():
        async with Daemon(options, RuleWriter()) as first:
            with pytest.raises(ManagedMemoryUnavailable, match=first.url):
                await Daemon(options, RuleWriter()).__aenter__()
            async with httpx2.AsyncClient(
                base_url=first.url, headers=headers(options), trust_env=False
            ) as http:
                assert (await http.get("/healthz")).status_code == 200

    asyncio.run(program())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "10.1.2.3"])
def test_an_address_that_others_reach_needs_a_name(options, host):
    with pytest.raises(ConfigInvalid, match="--allow-host"):
        Daemon(Options(options.settings, options.workspaces, host=host), RuleWriter())


def test_a_workspace_that_is_not_there_or_there_twice_is_refused(options, tmp_path):
    for workspaces, told in (((tmp_path / "none",), "none"), ((*options.workspaces,) * 2, "named twice")):

        async def program(workspaces=workspaces):
            await Daemon(Options(options.settings, workspaces), RuleWriter()).__aenter__()

        with pytest.raises(ConfigInvalid, match=told):
            asyncio.run(program())
        assert not (options.settings.state / "daemon.json").exists()


@pytest.mark.slow
def test_two_workspaces_have_lanes_and_memories_of_their_own(tmp_path):
    with embedded(tmp_path) as first:
        pass
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)

    async def program():
        both = Options(Settings(tmp_path / "home"), (tmp_path / "work", other))
        async with Daemon(both, RuleWriter()) as daemon:
            keys = list(daemon.core.workspaces)
            async with httpx2.AsyncClient(
                base_url=daemon.url, headers=headers(both), trust_env=False
            ) as http:
                path = f"/workspaces/{keys[1]}/memory"
                fact = {"content": "This project is the other one", "scope": "project"}
                accepted = (await http.post(f"{path}/remember", json=fact)).json()
                task = f"{path}/remember/{accepted['taskId']}"
                over = (await http.get(task, headers={"Prefer": "wait=50"}, timeout=60)).json()
                hidden = await http.get(f"{BASE}/remember/{accepted['taskId']}")
                listed = (await http.get(f"{BASE}/tasks")).json()
        return keys, over, hidden.status_code, listed

    keys, over, hidden, listed = asyncio.run(program())
    assert keys[0] == first.key != keys[1]
    assert over["status"] == "completed"
    assert (hidden, listed["tasks"]) == (404, [])


@pytest.mark.slow
def test_a_program_that_opens_the_state_as_well_keeps_the_daemons_locks(tmp_path):
    """To close a file of SQLite's takes the process's locks on it; another one would then delete the log."""
    with embedded(tmp_path) as daemon:
        with State(daemon.home / "state") as second:
            assert list(second.blocks("ledger.db", 0))
        done = subprocess.run(
            [sys.executable, "-m", "muniment", "token", "list"],
            env={"MUNIMENT_HOME": str(daemon.home), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
        )
        assert b"no tokens but" in done.stdout
        opened = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        ours = [path for path in opened if path.startswith(str(daemon.home / "state"))]
        assert ours
        assert not [path for path in ours if path.endswith("(deleted)")]
