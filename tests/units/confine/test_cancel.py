"""Waits end: `muniment.confine.cancel`."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from muniment.confine.cancel import Cancel, Patience
from muniment.errors import Cancelled


def soon(seconds=10.0):
    return time.monotonic() + seconds


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_cancellation_from_a_signal_handler_that_interrupts_its_own_thread_is_no_deadlock():
    with Cancel() as cancel:
        previous = signal.signal(signal.SIGUSR1, lambda *_: cancel.set())
        try:
            with cancel._lock:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, previous)
        assert cancel.is_set()


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


def threads_at_once(count, act):
    """Run `act(number)` in threads that begin together; wait for all of them."""
    together = threading.Barrier(count)

    def run(number):
        together.wait(20)
        act(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def is_readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


def open_descriptors():
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_a_child_that_is_cancelled_alone_takes_neither_its_parent_nor_its_siblings_along():
    with Cancel() as parent, parent.child() as child, parent.child() as sibling, child.child() as grandchild:
        child.set()
        assert child.is_set()
        assert grandchild.is_set()
        for each in (parent, sibling):
            assert not each.is_set()
            assert not is_readable(each.fileno())
        sibling.close()
        parent.set()
        assert sibling.is_set() is False


def test_a_child_of_a_token_that_was_cancelled_before_is_born_cancelled():
    with Cancel() as parent:
        parent.set()
        with parent.child() as child:
            assert child.is_set()
            assert is_readable(child.fileno())


def test_a_parent_that_is_cancelled_ends_a_wait_of_its_child(pair):
    with Cancel() as parent, parent.child() as child:
        setter = threading.Thread(target=parent.set)
        setter.start()
        with pytest.raises(Cancelled):
            Patience(math.inf, child).wait(pair[0].fileno(), select.POLLIN)
        setter.join()


def test_a_child_may_outlive_its_parent_and_closing_either_takes_nothing_from_the_other():
    before = open_descriptors()
    parent = Cancel()
    child, other = parent.child(), parent.child()
    other.close()
    parent.close()
    assert child.fileno() >= 0
    parent.set()
    assert child.is_set()
    assert is_readable(child.fileno())
    late = parent.child()
    assert late.is_set()
    for each in (late, child, child):
        each.close()
    assert open_descriptors() == before


def test_a_child_that_was_closed_touches_no_descriptor_that_took_its_number_when_its_parent_is_cancelled():
    reader, writer = os.pipe()
    with Cancel() as parent:
        child = parent.child()
        number = child.fileno()
        child.close()
        os.dup2(writer, number)
        parent.set()
        assert not is_readable(reader)
        assert not child.is_set()  # It had left.
    for fd in {reader, writer, number}:
        os.close(fd)


def test_children_that_come_and_go_while_their_parent_is_cancelled_break_nothing_and_miss_nothing():
    before = open_descriptors()
    for _ in range(100):
        parent, missed = Cancel(), []
        lasting = [parent.child() for _ in range(4)]

        def act(number, parent=parent, lasting=lasting, missed=missed):
            if number == 0:
                parent.set()
            elif number == 1:
                lasting[0].close()
                lasting[1].close()
            else:
                with parent.child() as child:
                    parent.set()
                    missed.append(not child.is_set())

        threads_at_once(4, act)
        assert missed == [False, False]
        assert all(each.is_set() for each in lasting[2:])
        for each in (*lasting, parent):
            each.close()
    assert open_descriptors() == before


@pytest.mark.timeout(20)
@pytest.mark.parametrize("whose", ["child", "parent"])
def test_a_signal_handler_that_cancels_a_parent_while_another_thread_does_is_no_deadlock(whose):
    """The thread that the handler interrupts holds the lock that the other thread is about to want."""
    with Cancel() as parent, parent.child() as child:
        held = child if whose == "child" else parent
        other = threading.Thread(target=parent.set)
        previous = signal.signal(signal.SIGUSR1, lambda *_: parent.set())
        try:
            with held._lock:
                other.start()
                if whose == "child":  # The other thread has begun, and waits for this lock now or soon.
                    select.select([parent.fileno()], [], [])
                signal.raise_signal(signal.SIGUSR1)
                assert parent.is_set()
        finally:
            signal.signal(signal.SIGUSR1, previous)
        other.join(20)
        assert not other.is_alive()
        assert child.is_set()
