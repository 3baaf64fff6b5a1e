"""Waiting with deadlines and cancellation: `muniment.kernel.cancel`."""

import math
import os
import select
import signal
import socket
import threading
from contextlib import contextmanager

import pytest

from kit.catching import catch_error
from kit.descriptors import assert_descriptors_closed
from muniment.cancelling import Cancel
from muniment.kernel.cancel import Deadline


def is_readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


@contextmanager
def cancel_on_signal(token):
    """Cancel the token in a handler of SIGUSR1, which interrupts any operation."""
    previous = signal.signal(signal.SIGUSR1, lambda *_: token.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize("is_child", [False, True])
def test_closed_token_touches_no_reused_descriptor(is_child):
    reader, writer = os.pipe()
    with Cancel() as parent:
        cancel = parent.child() if is_child else parent
        number = cancel.fileno()
        cancel.close()
        cancel.close()
        os.dup2(writer, number)
        parent.set()
        assert not is_readable(reader)
        assert cancel.is_set() is not is_child  # The child was detached.
        catch_error(ValueError, cancel.fileno, match="closed")
    for fd in {reader, writer, number}:
        os.close(fd)


def test_cancelled_child_does_not_cancel_parent_or_siblings():
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


def test_last_data_is_read_after_peer_has_ended():
    one, other = socket.socketpair()
    alive, writer = os.pipe()
    os.close(writer)  # Readable, like the pidfd of a process that ended.
    with one, other:
        other.send(b"x")
        assert Deadline(math.inf).wait(one.fileno(), select.POLLIN, peer_pidfd=alive)
        one.recv(1)
        assert not Deadline(math.inf).wait(one.fileno(), select.POLLIN, peer_pidfd=alive)
    os.close(alive)


def test_closing_parent_or_child_does_not_close_the_other():
    with assert_descriptors_closed():
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
@pytest.mark.parametrize("lock_owner", ["none", "child", "parent"])
def test_cancel_in_signal_handler_does_not_deadlock(lock_owner):
    """Interrupt a thread that holds the lock which the other thread needs next."""
    with Cancel() as parent, parent.child() as child, cancel_on_signal(parent):
        other = threading.Thread(target=parent.set)
        with (child if lock_owner == "child" else parent)._lock:
            if lock_owner != "none":
                other.start()
            if lock_owner == "child":  # The other thread has started, and waits for this lock now or soon.
                select.select([parent.fileno()], [], [])
            signal.raise_signal(signal.SIGUSR1)
            assert parent.is_set()
        if lock_owner != "none":
            other.join(20)
            assert not other.is_alive()
        assert child.is_set()
