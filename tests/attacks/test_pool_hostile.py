"""A worker that does its worst: every attack ends it, in time, and leaves nothing behind."""

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
    zygote.start()  # Another one, where it was given up.
    with nothing_left_open():
        worker = zygote.spawn({}, soon())
        assert not os.get_inheritable(worker._pidfd)
        with Watched(worker.pid) as over:
            yield worker
            worker.close()
            assert over.ended(0), "the process is still there"


def is_over(worker):
    """Whether every further exchange is refused."""
    raised(WorkerLost, ask, worker, "echo", match="has ended")
    raised(WorkerLost, worker.receive, max_body=0, patience=soon(), match="has ended")
    return True


def test_a_lie_or_a_body_where_none_is_taken_ends_the_worker(zygote):
    too_long = struct.pack("!I", 2**31) + b"{}"
    for lie in (frame(b"}{"), too_long, frame(b'{"body":5000000}') + frame(b"x" * 65536)):
        with zygote.spawn({}, soon()) as worker:
            raised(WorkerLost, ask, worker, "raw", lie, match="broke the protocol")
            assert is_over(worker)
    with zygote.spawn({}, soon()) as worker, pytest.raises(WorkerLost, match="broke the protocol"):
        ask(worker, "echo", b"x", max_body=0)


@pytest.mark.threat("T-RUN-10", control="asked_once")
def test_an_answer_prepared_for_the_next_question_is_not_taken_for_one(worker):
    assert ask(worker, "flood", frame(b'{"n":1}') + frame(b'{"n":2}'))[0] == {"n": 1}
    raised(WorkerLost, ask, worker, "echo", match="was not requested")
    assert is_over(worker)


@pytest.mark.threat("T-RUN-02", control="patience")
@pytest.mark.threat("T-RUN-10", control="patience")
def test_a_worker_that_hangs_spins_stops_or_always_drips_just_in_time_is_ended_at_the_deadline(zygote):
    drip = frame(b'{"a":"' + b"x" * 10_000 + b'"}')
    for do, body in (("hang", b""), ("spin", b""), ("drip", drip), ("signal", b"")):
        with zygote.spawn({}, soon()) as worker:
            began = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                ask(worker, do, body, seconds=0.1, number=signal.SIGSTOP)
            assert 0.1 <= time.monotonic() - began < 15, do
            assert is_over(worker)
    with zygote.spawn({}, soon()) as worker:
        worker.send({"do": "hang"}, patience=soon())
        with pytest.raises(DeadlineExceeded):  # It stopped reading, which cannot hold the sender.
            worker.send({"do": "echo"}, b"x" * (8 << 20), patience=soon(0.1))
        assert is_over(worker)


@pytest.mark.threat("T-RUN-02", control="killed_workers")
def test_a_worker_that_closes_its_socket_and_stays_is_ended(worker):
    raised(WorkerLost, ask, worker, "hush", match=r"closed its connection .signal SIGKILL")
    assert is_over(worker)


def test_a_worker_that_dies_behind_an_open_socket_or_just_after_its_answer_is_noticed(zygote):
    with zygote.spawn({}, soon()) as worker:
        raised(WorkerLost, ask, worker, "smuggle", match="exit code 0")
        assert is_over(worker)
    with zygote.spawn({}, soon()) as worker:
        assert ask(worker, "raw_then_exit", frame(b'{"n":1}'))[0] == {"n": 1}, "its last answer counts"
        raised(WorkerLost, ask, worker, "echo", match=r"exit code 0 .ok")


def test_a_worker_that_died_with_a_question_unread_is_lost(worker):
    worker.send({"do": "signal", "number": signal.SIGSTOP}, patience=soon())
    worker.send({"do": "echo"}, patience=soon())
    with Watched(worker.pid) as over:
        worker.kill()
        assert over.ended()
    raised(WorkerLost, ask, worker, "echo", match="signal SIGKILL")


def test_a_parent_that_is_cancelled_ends_a_wait_of_its_child_and_the_worker(worker):
    with Cancel() as parent, parent.child() as cancel:
        setter = threading.Timer(0.05, parent.set)
        setter.start()
        raised(Cancelled, ask, worker, "spin", cancel=cancel)
        setter.join()
    assert is_over(worker)


def test_an_interrupt_from_the_keyboard_ends_the_worker_and_is_not_swallowed(worker):
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
    assert is_over(worker)


def test_a_system_error_ends_the_worker_and_what_cannot_be_sent_leaves_it_as_it_was(worker, monkeypatch):
    def fail(*_, **__):
        raise OSError(12, "out of memory")

    raised(Unsendable, worker.send, {"do": float("nan")}, patience=soon())
    assert ask(worker, "echo", say="still here")[0] == {"said": "still here"}
    monkeypatch.setattr(worker._channel, "receive", fail)
    raised(WorkerLost, ask, worker, "echo", match="could not be reached")
    assert is_over(worker)


def test_whether_a_worker_lives_is_asked_of_the_kernel(worker):
    with Watched(worker.pid) as over:
        worker.send({"do": "exit", "code": 3}, patience=soon())
        assert over.ended()
    raised(WorkerLost, worker.check_alive, match=r"ended .exit code 3")
    worker.kill()  # It is gone, so nobody is.


def test_a_worker_that_cannot_be_killed_is_told_and_its_descriptors_are_not_kept(worker, monkeypatch):
    held = open_descriptors()
    monkeypatch.setattr(subject, "END_SECONDS", 0.05)
    with Watched(worker.pid) as over:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "kill", lambda: None)
            worker.send({"do": "spin"}, patience=soon())
            raised(WorkerLost, worker.close, match="still exists")
        assert len(open_descriptors()) < len(held) + 1
        signal.pidfd_send_signal(over.fd, signal.SIGKILL)
        assert over.ended()
