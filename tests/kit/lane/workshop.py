"""A runner whose work waits for the test to say how it ends, and a test that waits for the lane."""

from __future__ import annotations

import os
import queue
import select
import threading

from kit.lane.ledgered import submit
from muniment.lane import Ended, LaneRunner, Writer

PATIENCE = 30
"""Seconds after which something that should happen has not."""


class Attempt:
    """One call of the work.

    Attributes:
        cancel: the token that it was given.
    """

    def __init__(self, task, cancel, tell):
        self.task, self.cancel, self.tell = task, cancel, tell
        self._said, self._outcome = os.eventfd(0, os.EFD_CLOEXEC), None

    def ends(self, outcome):
        """End it: an `Ended` is returned, an exception raised."""
        self._outcome = outcome
        os.eventfd_write(self._said, 1)

    def was_cancelled(self):
        """Wait until it is cancelled."""
        poller = select.poll()
        poller.register(self.cancel.fileno(), select.POLLIN)
        return bool(poller.poll(PATIENCE * 1000))

    def carry_out(self, *, deaf):
        poller = select.poll()
        poller.register(self._said, select.POLLIN)
        if not deaf:
            poller.register(self.cancel.fileno(), select.POLLIN)
        assert poller.poll(PATIENCE * 1000)
        outcome = self._outcome or Ended("cancelled")
        os.close(self._said)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Workshop:
    """A lane, a writer and a runner, not started yet.

    Attributes:
        deaf: attempts do not heed their cancellation.
        at_once: how every attempt ends, without being asked; None: as the test says.
        spans: ("begin" | "end", task id) in the order in which it was so.
    """

    def __init__(self, factory, *, backstop=300.0, name="w"):
        self.factory, self.lane = factory, factory.lane(name)
        self._changed = threading.Condition()
        self.writer = Writer(factory.state.ledger, committed=self._notify)
        self.deaf, self.at_once, self.spans = False, None, []
        self._attempts = queue.SimpleQueue()
        self.runner = LaneRunner(self.lane, self.writer, self._work, backstop=backstop)

    def submit(self, count=1):
        """Submit tasks through the writer, and wake the runner."""
        tasks = [self.writer.run(lambda: submit(self.lane)) for _ in range(count)]
        self.runner.wake()
        return tasks

    def begins(self):
        """A task, and its attempt."""
        (task,) = self.submit()
        return task, self.attempt()

    def attempt(self):
        """The next attempt, once it has begun."""
        return self._attempts.get(timeout=PATIENCE)

    def is_idle(self):
        """Whether no attempt has begun that the test has not seen."""
        return self._attempts.empty()

    def when(self, task, status):
        """The task, once it has a status."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.lane.get(task.id).status == status, PATIENCE)
        return self.lane.get(task.id)

    def close(self):
        self.at_once = Ended("cancelled")
        assert self.runner.stop(0)
        self.writer.close()

    def _notify(self):
        with self._changed:
            self._changed.notify_all()

    def _work(self, task, cancel, tell):
        attempt = Attempt(task, cancel, tell)
        self.spans.append(("begin", task.id))
        self._attempts.put(attempt)
        if self.at_once is not None:
            attempt.ends(self.at_once)
        try:
            return attempt.carry_out(deaf=self.deaf)
        finally:
            self.spans.append(("end", task.id))
