"""Every attack of a hostile worker ends it in time and leaves nothing open."""

import os
import signal
import struct
import threading
import time

import pytest

from kit.descriptors import nothing_left_open, open_descriptors
from kit.raising import raised
from kit.sandbox.probe import Watched, ask, own_zygote, soon
from kit.strategies.frames import frame
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, DeadlineExceeded, WorkerLost
from muniment.sandbox.fence import pool as subject
from muniment.sandbox.fence.wire import Unsendable

zygote = own_zygote()


@pytest.fixture
def worker(zygote):
    zygote.start()  # Starts another one if needed.
    with nothing_left_open():
        worker = zygote.spawn({}, soon())
        assert not os.get_inheritable(worker._pidfd)
        with Watched(worker.pid) as over:
            yield worker
            worker.close()
            assert over.ended(0), "the process still exists"


def check_over(worker):
    """Check that every further exchange is rejected."""
    raised(WorkerLost, ask, worker, "echo", match="has ended")
    raised(WorkerLost, worker.receive, max_body=0, patience=soon(), match="has ended")
    return True


def test_protocol_violation_ends_the_worker(zygote):
    too_long = struct.pack("!I", 2**31) + b"{}"
    for lie in (frame(b"}{"), too_long, frame(b'{"body":5000000}') + frame(b"x" * 65536)):
        with zygote.spawn({}, soon()) as worker:
            raised(WorkerLost, ask, worker, "raw", lie, match="broke the protocol")
            assert check_over(worker)
    with zygote.spawn({}, soon()) as worker, pytest.raises(WorkerLost, match="broke the protocol"):
        ask(worker, "echo", b"x", max_body=0)


@pytest.mark.threat("T-RUN-10", control="single_answers")
def test_early_answer_is_rejected(worker):
    assert ask(worker, "flood", frame(b'{"n":1}') + frame(b'{"n":2}'))[0] == {"n": 1}
    raised(WorkerLost, ask, worker, "echo", match="was not requested")
    assert check_over(worker)


@pytest.mark.threat("T-RUN-02", control="deadlines")
@pytest.mark.threat("T-RUN-10", control="deadlines")
def test_stalling_worker_is_killed_at_the_deadline(zygote):
    drip = frame(b'{"a":"' + b"x" * 10_000 + b'"}')
    for do, body in (("hang", b""), ("spin", b""), ("drip", drip), ("signal", b"")):
        with zygote.spawn({}, soon()) as worker:
            started = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                ask(worker, do, body, seconds=0.1, number=signal.SIGSTOP)
            assert 0.1 <= time.monotonic() - started < 15, do
            assert check_over(worker)
    with zygote.spawn({}, soon()) as worker:
        worker.send({"do": "hang"}, patience=soon())
        with pytest.raises(DeadlineExceeded):  # It stopped reading, which must not block the sender.
            worker.send({"do": "echo"}, b"x" * (8 << 20), patience=soon(0.1))
        assert check_over(worker)


@pytest.mark.threat("T-RUN-02", control="killed_workers")
def test_worker_that_closes_its_socket_is_killed(worker):
    raised(WorkerLost, ask, worker, "hush", match=r"closed its connection .signal SIGKILL")
    assert check_over(worker)


def test_dead_worker_with_an_open_socket_is_detected(zygote):
    with zygote.spawn({}, soon()) as worker:
        raised(WorkerLost, ask, worker, "smuggle", match="exit code 0")
        assert check_over(worker)
    with zygote.spawn({}, soon()) as worker:
        assert ask(worker, "raw_then_exit", frame(b'{"n":1}'))[0] == {"n": 1}, "its last answer counts"
        raised(WorkerLost, ask, worker, "echo", match=r"exit code 0 .ok")


def test_worker_that_died_before_it_read_a_request_is_lost(worker):
    worker.send({"do": "signal", "number": signal.SIGSTOP}, patience=soon())
    worker.send({"do": "echo"}, patience=soon())
    with Watched(worker.pid) as over:
        worker.kill()
        assert over.ended()
    raised(WorkerLost, ask, worker, "echo", match="signal SIGKILL")


def test_cancelled_parent_ends_the_worker_of_its_child(worker):
    with Cancel() as parent, parent.child() as cancel:
        setter = threading.Timer(0.05, parent.set)
        setter.start()
        raised(Cancelled, ask, worker, "spin", cancel=cancel)
        setter.join()
    assert check_over(worker)


def test_keyboard_interrupt_ends_the_worker_and_propagates(worker):
    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        timer.start()
        raised(KeyboardInterrupt, ask, worker, "hang")
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert check_over(worker)


def test_system_error_ends_the_worker(worker, monkeypatch):
    def fail(*_, **__):
        raise OSError(12, "out of memory")

    raised(Unsendable, worker.send, {"do": float("nan")}, patience=soon())
    assert ask(worker, "echo", say="still here")[0] == {"said": "still here"}
    monkeypatch.setattr(worker._channel, "receive", fail)
    raised(WorkerLost, ask, worker, "echo", match="could not be reached")
    assert check_over(worker)


def test_kernel_reports_whether_a_worker_is_alive(worker):
    with Watched(worker.pid) as over:
        worker.send({"do": "exit", "code": 3}, patience=soon())
        assert over.ended()
    raised(WorkerLost, worker.check_alive, match=r"ended .exit code 3")
    worker.kill()  # The process is gone, so no other one is killed.


def test_unkillable_worker_is_reported_without_leaks(worker, monkeypatch):
    open_before = open_descriptors()
    monkeypatch.setattr(subject, "END_SECONDS", 0.05)
    with Watched(worker.pid) as over:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "kill", lambda: None)
            worker.send({"do": "spin"}, patience=soon())
            raised(WorkerLost, worker.close, match="still exists")
        assert len(open_descriptors()) < len(open_before) + 1
        signal.pidfd_send_signal(over.fd, signal.SIGKILL)
        assert over.ended()
