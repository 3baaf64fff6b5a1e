"""When a zygote is started, replaced and shared: `muniment.confine.pool`."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.confine.probe import SERVICES, Watched, ask, look, soon, source
from muniment.confine import pool
from muniment.confine.pool import import_directories, shared_zygote
from muniment.errors import ConfinementUnavailable, WorkerLost


@pytest.fixture
def fresh():
    with source() as zygote:
        zygote.wait_ready(soon())
        yield zygote


@pytest.fixture(scope="module")
def steady():
    with source() as zygote:
        zygote.wait_ready(soon())
        yield zygote


def test_a_worker_that_crashed_gets_its_zygote_replaced_and_one_that_we_killed_does_not(fresh):
    old = fresh.pid
    for how in ("close", "lie", "exit"):
        worker = fresh.spawn({}, deadline=soon())
        if how != "close":
            with pytest.raises(WorkerLost):
                ask(worker, "raw" if how == "lie" else how, b"\xff" * 8, code=70)
        worker.close()
    fresh.start()
    assert fresh.pid == old
    neighbour = fresh.spawn({}, deadline=soon())
    with fresh.spawn({}, deadline=soon()) as worker, pytest.raises(WorkerLost, match="SIGSEGV"):
        ask(worker, "signal", number=signal.SIGSEGV)
    with fresh.spawn({}, deadline=soon()) as worker:
        assert fresh.pid != old
        assert look(worker)["parent"] == fresh.pid
        assert look(neighbour)["parent"] == old
    neighbour.close()


def test_two_crashes_replace_one_zygote_only(fresh):
    crashing = [fresh.spawn({}, deadline=soon()) for _ in range(2)]
    with pytest.raises(WorkerLost):
        ask(crashing[0], "signal", number=signal.SIGSEGV)
    fresh.start()
    replacement = fresh.pid
    with pytest.raises(WorkerLost):
        ask(crashing[1], "signal", number=signal.SIGSEGV)
    assert fresh.pid == replacement


def test_a_zygote_that_rests_has_no_process_until_the_next_worker():
    with source() as zygote:
        zygote.rest()
        assert zygote.pid is None
        with zygote.spawn({}, deadline=soon()) as worker:
            ask(worker, "echo", say=1)
        old = zygote.pid
        with Watched(old) as over:
            zygote.rest()
            assert over.ended(0)
        assert zygote.pid is None
        zygote.rest()
        with zygote.spawn({}, deadline=soon()) as worker:
            assert look(worker)["parent"] == zygote.pid != old


def test_a_zygote_does_not_rest_while_one_of_its_workers_lives(fresh):
    old = fresh.pid
    first, second = (fresh.spawn({}, deadline=soon()) for _ in range(2))
    fresh.rest()
    first.close()
    fresh.rest()
    assert fresh.pid == old
    assert ask(second, "echo", b"still", say=1) == ({"said": 1}, b"still")
    second.close()
    fresh.rest()
    assert fresh.pid is None


def test_a_zygote_that_rests_leaves_a_retired_process_to_its_workers():
    with source(runs=1) as zygote:
        first = zygote.spawn({}, deadline=soon())
        retired = zygote.pid
        zygote.spawn({}, deadline=soon()).close()
        assert zygote.pid != retired
        zygote.rest()
        assert zygote.pid is None
        assert look(first)["parent"] == retired
        with Watched(retired) as over:
            first.close()
            assert over.ended()


def test_threads_spawn_at_once_and_each_gets_its_own_worker(steady):
    def run(number):
        with steady.spawn({}, deadline=soon()) as worker:
            assert ask(worker, "echo", b"x" * number, say=number) == ({"said": number}, b"x" * number)
            return worker.pid

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(run, range(1, 65)))) == 64


def test_a_fork_of_the_broker_has_a_zygote_of_its_own_and_leaves_the_parents_alone():
    script = f"""
        import os, sys, time
        from muniment.confine.pool import Zygote, import_directories, shared_zygote
        soon = lambda: time.monotonic() + 20
        zygote = Zygote("probe_service:serve", directories=[*import_directories(), {SERVICES!r}])
        shared = shared_zygote()
        echo = lambda worker: worker.request({{"do": "echo", "say": 1}}, max_body=0, deadline=soon())
        worker = zygote.spawn({{}}, deadline=soon())
        parents = zygote.pid
        zygote._lock.acquire()  # as another thread might at the moment of the fork
        child = os.fork()
        if child == 0:
            assert zygote.pid is None and shared_zygote() is shared
            with zygote.spawn({{}}, deadline=soon()) as own:
                assert echo(own)[0] == {{"said": 1}}
                assert zygote.pid not in (None, parents)
            zygote.close()
            os._exit(0)
        zygote._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert zygote.pid == parents and echo(worker)[0] == {{"said": 1}}
        worker.close(); zygote.close()
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script)], check=True, timeout=50)


def test_forgetting_in_a_fork_lets_go_of_the_process_without_a_signal(monkeypatch):
    zygote = source()
    monkeypatch.setattr(pool, "_ALIVE", {zygote})
    monkeypatch.setattr(pool, "_SHARED", pool._Shared())
    zygote.wait_ready(soon())
    process = zygote._current
    pool._after_fork()
    assert zygote.pid is None
    process._popen.wait(20)  # here the control socket was the last one, so it leaves by itself
    assert process._popen.returncode == 0
    zygote.close()


def test_one_zygote_is_shared_by_a_process_and_not_started_for_it(monkeypatch):
    monkeypatch.setattr(pool, "_SHARED", pool._Shared())
    zygote = shared_zygote()
    assert shared_zygote() is zygote
    assert zygote.pid is None
    zygote.close()


def test_finding_the_directories_imports_none_of_the_packages():
    script = (
        "import sys; from muniment.confine.pool import import_directories; import_directories(); "
        "sys.exit(bool({'pydantic', 'pathspec', 're2', 'typing_extensions'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.threat("T-SUP-02", control="trusted_imports")
def test_a_directory_that_everybody_may_write_to_is_refused(tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert import_directories(["planted_module", "planted_module"]) == (str(tmp_path),)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfinementUnavailable, match="writable by everybody"):
        import_directories(["planted_module"])
    tmp_path.chmod(0o700)


def test_a_relative_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "planted_relative.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "_directory", lambda _: Path("lib"))
    with pytest.raises(ConfinementUnavailable, match="relative"):
        import_directories(["planted_relative"])


@pytest.mark.parametrize("name", ["no_such_package_anywhere", "sys"])
def test_a_package_that_lies_in_no_directory_is_refused(name):
    with pytest.raises(ConfinementUnavailable, match="not installed"):
        import_directories([name])
