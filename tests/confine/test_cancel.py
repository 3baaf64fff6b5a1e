"""Waits end: `muniment.confine.cancel`."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
import time

import pytest

from muniment.confine import cancel as subject
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import Cancelled, DeadlineExceeded


def soon(seconds=10.0):
    return time.monotonic() + seconds


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_wait_returns_when_its_descriptor_is_ready(pair):
    pair[1].send(b"x")
    assert Patience(soon()).wait(pair[0].fileno(), select.POLLIN)


def test_a_wait_tells_that_the_process_at_the_other_end_is_over(pair):
    one, other = os.pipe()
    os.close(other)  # a hang-up stands for a pidfd that became readable
    assert not Patience(soon()).wait(pair[0].fileno(), select.POLLIN, alive=one)
    os.close(one)


def test_what_a_dead_process_left_to_read_is_read_first(pair):
    one, other = os.pipe()
    os.close(other)
    pair[1].send(b"x")
    assert Patience(soon()).wait(pair[0].fileno(), select.POLLIN, alive=one)
    os.close(one)


def test_a_passed_deadline_ends_a_wait_even_for_what_is_ready(pair):
    pair[1].send(b"x")
    with pytest.raises(DeadlineExceeded):
        Patience(time.monotonic()).wait(pair[0].fileno(), select.POLLIN)


def test_a_wait_ends_at_its_deadline_and_not_before(pair):
    deadline = soon(0.05)
    with pytest.raises(DeadlineExceeded):
        Patience(deadline).wait(pair[0].fileno(), select.POLLIN)
    assert deadline <= time.monotonic() < deadline + 5


def test_a_cancellation_from_another_thread_ends_an_endless_wait(pair):
    with Cancel() as cancel:
        setter = threading.Thread(target=cancel.set)
        setter.start()
        with pytest.raises(Cancelled):
            Patience(math.inf, cancel).wait(pair[0].fileno(), select.POLLIN)
        setter.join()


def test_a_wait_longer_than_one_poll_goes_on_waiting(pair, monkeypatch):
    monkeypatch.setattr(subject, "MAX_POLL_SECONDS", 0.001)
    with pytest.raises(DeadlineExceeded):
        Patience(soon(0.02)).wait(pair[0].fileno(), select.POLLIN)


def test_a_cancellation_from_a_signal_handler_that_interrupts_its_own_thread_is_no_deadlock():
    with Cancel() as cancel:
        previous = signal.signal(signal.SIGUSR1, lambda *_: cancel.set())
        try:
            with cancel._lock:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, previous)
        assert cancel.is_set()


def test_a_cancellation_is_told_before_a_deadline():
    with Cancel() as cancel:
        cancel.set()
        cancel.set()
        with pytest.raises(Cancelled):
            Patience(0.0, cancel).check()


def test_an_unset_token_lets_everything_go_on():
    with Cancel() as cancel:
        assert not cancel.is_set()
        Patience(soon(), cancel).check()


def test_a_closed_token_touches_no_descriptor_that_took_its_number():
    reader, writer = os.pipe()
    cancel = Cancel()
    number = cancel.fileno()
    cancel.close()
    cancel.close()
    os.dup2(writer, number)
    cancel.set()
    assert cancel.is_set()
    assert not select.select([reader], [], [], 0)[0]
    with pytest.raises(ValueError, match="closed"):
        cancel.fileno()
    for fd in {reader, writer, number}:
        os.close(fd)
