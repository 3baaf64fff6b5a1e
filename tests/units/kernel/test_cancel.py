"""Waits end: `muniment.kernel.cancel`."""

import math
import os
import select
import signal
import socket
import threading
from contextlib import contextmanager

import pytest

from kit.descriptors import nothing_left_open
from kit.raising import raised
from muniment.cancelling import Cancel
from muniment.kernel.cancel import Patience


def is_readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


@contextmanager
def cancelled_by_signal(token):
    """Whoever raises SIGUSR1 cancels it, in the middle of what is interrupted."""
    previous = signal.signal(signal.SIGUSR1, lambda *_: token.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize("is_child", [False, True])
def test_a_closed_token_touches_no_descriptor_that_took_its_number(is_child):
    reader, writer = os.pipe()
    with Cancel() as parent:
        cancel = parent.child() if is_child else parent
        number = cancel.fileno()
        cancel.close()
        cancel.close()
        os.dup2(writer, number)
        parent.set()
        assert not is_readable(reader)
        assert cancel.is_set() is not is_child  # A child had left.
        raised(ValueError, cancel.fileno, match="closed")
    for fd in {reader, writer, number}:
        os.close(fd)


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
        with parent.child() as late:
            assert late.is_set()
            assert is_readable(late.fileno())


def test_what_was_said_last_is_heard_although_who_said_it_has_ended():
    one, other = socket.socketpair()
    alive, writer = os.pipe()
    os.close(writer)  # As a pidfd of a process that ended, it can be read.
    with one, other:
        other.send(b"x")
        assert Patience(math.inf).wait(one.fileno(), select.POLLIN, alive=alive)
        one.recv(1)
        assert not Patience(math.inf).wait(one.fileno(), select.POLLIN, alive=alive)
    os.close(alive)


def test_a_child_may_outlive_its_parent_and_closing_either_takes_nothing_from_the_other():
    with nothing_left_open():
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


@pytest.mark.timeout(20)
@pytest.mark.parametrize("whose", ["nobody's", "child", "parent"])
def test_a_signal_handler_that_cancels_where_it_interrupts_is_no_deadlock_whatever_others_do(whose):
    """The thread that the handler interrupts holds the lock that the other thread is about to want."""
    with Cancel() as parent, parent.child() as child, cancelled_by_signal(parent):
        other = threading.Thread(target=parent.set)
        with (child if whose == "child" else parent)._lock:
            if whose != "nobody's":
                other.start()
            if whose == "child":  # The other thread has begun, and waits for this lock now or soon.
                select.select([parent.fileno()], [], [])
            signal.raise_signal(signal.SIGUSR1)
            assert parent.is_set()
        if whose != "nobody's":
            other.join(20)
            assert not other.is_alive()
        assert child.is_set()
