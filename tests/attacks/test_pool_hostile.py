"""Every attack of a hostile worker ends it in time and leaves nothing open."""

import os
import signal
import struct
import threading
import time

import pytest

from kit.catching import catch_error
from kit.descriptors import assert_descriptors_closed, list_descriptors
from kit.sandbox.probe import WatchedProcess, make_deadline, make_zygote_fixture, send_command
from kit.strategies.frames import frame
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, DeadlineExceeded, WorkerLost
from muniment.sandbox.fence import pool as subject
from muniment.sandbox.fence.wire import Unsendable

zygote = make_zygote_fixture()


@pytest.fixture
def worker(zygote):
    zygote.start()  # Starts another one if needed.
    with assert_descriptors_closed():
        worker = zygote.spawn_worker({}, make_deadline())
        assert not os.get_inheritable(worker._pidfd)
        with WatchedProcess(worker.pid) as over:
            yield worker
            worker.close()
            assert over.wait_for_end(0), "the process still exists"


def check_over(worker):
    """Check that every further exchange is rejected."""
    catch_error(WorkerLost, send_command, worker, "echo", match="has ended")
    catch_error(WorkerLost, worker.receive, max_body=0, deadline=make_deadline(), match="has ended")
    return True


def test_protocol_violation_ends_the_worker(zygote):
    too_long = struct.pack("!I", 2**31) + b"{}"
    for lie in (frame(b"}{"), too_long, frame(b'{"body":5000000}') + frame(b"x" * 65536)):
        with zygote.spawn_worker({}, make_deadline()) as worker:
            catch_error(WorkerLost, send_command, worker, "raw", lie, match="broke the protocol")
            assert check_over(worker)
    with (
        zygote.spawn_worker({}, make_deadline()) as worker,
        pytest.raises(WorkerLost, match="broke the protocol"),
    ):
        send_command(worker, "echo", b"x", max_body=0)


@pytest.mark.threat("T-RUN-10", control="single_answers")
def test_early_answer_is_rejected(worker):
    assert send_command(worker, "flood", frame(b'{"n":1}') + frame(b'{"n":2}'))[0] == {"n": 1}
    catch_error(WorkerLost, send_command, worker, "echo", match="was not requested")
    assert check_over(worker)


@pytest.mark.threat("T-RUN-02", control="deadlines")
@pytest.mark.threat("T-RUN-10", control="deadlines")
def test_stalling_worker_is_killed_at_the_deadline(zygote):
    drip = frame(b'{"a":"' + b"x" * 10_000 + b'"}')
    for do, body in (("hang", b""), ("spin", b""), ("drip", drip), ("signal", b"")):
        with zygote.spawn_worker({}, make_deadline()) as worker:
            started = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                send_command(worker, do, body, seconds=0.1, number=signal.SIGSTOP)
            assert 0.1 <= time.monotonic() - started < 15, do
            assert check_over(worker)
    with zygote.spawn_worker({}, make_deadline()) as worker:
        worker.send({"do": "hang"}, deadline=make_deadline())
        with pytest.raises(DeadlineExceeded):  # It stopped reading, which must not block the sender.
            worker.send({"do": "echo"}, b"x" * (8 << 20), deadline=make_deadline(0.1))
        assert check_over(worker)


@pytest.mark.threat("T-RUN-02", control="killed_workers")
def test_worker_that_closes_its_socket_is_killed(worker):
    catch_error(WorkerLost, send_command, worker, "hush", match=r"closed its connection .signal SIGKILL")
    assert check_over(worker)


def test_dead_worker_with_an_open_socket_is_detected(zygote):
    with zygote.spawn_worker({}, make_deadline()) as worker:
        catch_error(WorkerLost, send_command, worker, "smuggle", match="exit code 0")
        assert check_over(worker)
    with zygote.spawn_worker({}, make_deadline()) as worker:
        assert send_command(worker, "raw_then_exit", frame(b'{"n":1}'))[0] == {"n": 1}, (
            "its last answer counts"
        )
        catch_error(WorkerLost, send_command, worker, "echo", match=r"exit code 0 .ok")


def test_worker_that_died_before_it_read_a_request_is_lost(worker):
    worker.send({"do": "signal", "number": signal.SIGSTOP}, deadline=make_deadline())
    worker.send({"do": "echo"}, deadline=make_deadline())
    with WatchedProcess(worker.pid) as over:
        worker.kill()
        assert over.wait_for_end()
    catch_error(WorkerLost, send_command, worker, "echo", match="signal SIGKILL")


def test_cancelled_parent_ends_the_worker_of_its_child(worker):
    with Cancel() as parent, parent.child() as cancel:
        setter = threading.Timer(0.05, parent.set)
        setter.start()
        catch_error(Cancelled, send_command, worker, "spin", cancel=cancel)
        setter.join()
    assert check_over(worker)


def test_keyboard_interrupt_ends_the_worker_and_propagates(worker):
    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        timer.start()
        catch_error(KeyboardInterrupt, send_command, worker, "hang")
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert check_over(worker)


def test_system_error_ends_the_worker(worker, monkeypatch):
    def fail(*_, **__):
        raise OSError(12, "out of memory")

    catch_error(Unsendable, worker.send, {"do": float("nan")}, deadline=make_deadline())
    assert send_command(worker, "echo", say="still here")[0] == {"said": "still here"}
    monkeypatch.setattr(worker._channel, "receive", fail)
    catch_error(WorkerLost, send_command, worker, "echo", match="could not be reached")
    assert check_over(worker)


def test_kernel_reports_whether_a_worker_is_alive(worker):
    with WatchedProcess(worker.pid) as over:
        worker.send({"do": "exit", "code": 3}, deadline=make_deadline())
        assert over.wait_for_end()
    catch_error(WorkerLost, worker.check_alive, match=r"ended .exit code 3")
    worker.kill()  # The process is gone, so no other one is killed.


def test_unkillable_worker_is_reported_without_leaks(worker, monkeypatch):
    open_before = list_descriptors()
    monkeypatch.setattr(subject, "KILL_SECONDS", 0.05)
    with WatchedProcess(worker.pid) as over:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "kill", lambda: None)
            worker.send({"do": "spin"}, deadline=make_deadline())
            catch_error(WorkerLost, worker.close, match="still exists")
        assert len(list_descriptors()) < len(open_before) + 1
        signal.pidfd_send_signal(over.fd, signal.SIGKILL)
        assert over.wait_for_end()
