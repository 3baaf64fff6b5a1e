"""A lane whose process is killed repeatedly, with checks afterwards. Runs as a separate process.

    python -m kit.server.killed STATE LOG ROUNDS SEED

Children open the lane and run its tasks; each task writes to LOG when it begins and ends. The children are
killed at random times. This process sends tasks, each until it is acknowledged, and finally prints the
received ids as JSON, in the order of sending.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import threading
import time
from pathlib import Path

from muniment.errors import QueueFull
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.lane_tasks import Ended, NewTask
from muniment.server.runner import LaneRunner
from muniment.server.writer import Writer
from muniment.store.state import State
from muniment.store.tasks import Originator

OWNER = Originator("owner")
MAX_TASKS = 900
"""Fewer than a lane retains."""
LIFE_SECONDS = 0.2
"""Maximum life of a child; the average is half of it."""
WORK_SECONDS = 0.003


def serve(state, log, orders, answers):
    """Run a lane: answer each incoming number with the id of its task, or with `full`."""
    with State(state) as opened, log.open("ab", buffering=0) as book, os.fdopen(orders, "rb") as asked:
        book.write(b"boot\n")
        changed = threading.Condition()

        def notify():
            with changed:
                changed.notify_all()

        def work(task, cancel, _tell):
            book.write(f"begin {task.id}\n".encode())
            select.select([cancel], [], [], WORK_SECONDS)
            book.write(f"end {task.id}\n".encode())
            return Ended("completed", result={"number": task.arguments["number"]})

        writer = Writer(opened.ledger, committed=notify)
        lane = Lane(opened, "w")
        writer.run(lane.recover)
        runner = LaneRunner(lane, writer, work)
        runner.start()
        for line in asked:
            number = int(line)
            order = NewTask("remember", {"number": number}, OWNER, {}, repeat=str(number))
            try:
                answer = writer.run(lambda order=order: lane.submit(order)).task.id
            except QueueFull:
                answer = "full"
            runner.wake()
            os.write(answers, f"{answer}\n".encode())
        with changed:
            assert changed.wait_for(lambda: not lane_tasks.count_pending(opened.ledger, "w"), 60)
        assert runner.stop(0)
        writer.close()


class Child:
    """A process that runs a lane."""

    def __init__(self, state, log):
        asked, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.close(self._orders)
                os.close(self._answers)
                serve(state, log, asked, answers)
                status = 0
            finally:
                os._exit(status)
        os.close(asked)
        os.close(answers)
        self._said = b""

    def send(self, number, until):
        """Return the id of the task, or None without an answer in time. Resend while the lane is full."""
        os.write(self._orders, b"%d\n" % number)
        while (left := until - time.monotonic()) > 0:
            if b"\n" in self._said:
                line, _, self._said = self._said.partition(b"\n")
                if line != b"full":
                    return line.decode()
                os.write(self._orders, b"%d\n" % number)
            elif select.select([self._answers], [], [], left)[0]:
                data = os.read(self._answers, 65536)
                assert data, "the child died by itself"
                self._said += data
        return None

    def kill(self):
        os.kill(self._pid, signal.SIGKILL)
        self._wait()

    def drain(self):
        """Let it finish all tasks; return its exit status."""
        os.close(self._orders)
        self._orders = None
        return self._wait()

    def _wait(self):
        _, status = os.waitpid(self._pid, 0)
        os.close(self._answers)
        if self._orders is not None:
            os.close(self._orders)
        return os.waitstatus_to_exitcode(status)


def main(state, log, rounds, seed):
    chosen, ids = random.Random(seed), []
    State(state).close()
    for _ in range(rounds):
        child = Child(state, log)
        until = time.monotonic() + chosen.uniform(0, LIFE_SECONDS)
        while time.monotonic() < until:
            # Tasks without acknowledgement are sent again to the next child, and must not be duplicated.
            told = child.send(len(ids), until) if len(ids) < MAX_TASKS else child.send(0, until)
            if told is not None and len(ids) < MAX_TASKS:
                ids.append(told)
        child.kill()
    child = Child(state, log)
    ids.append(child.send(len(ids), time.monotonic() + 60))
    status = child.drain()
    assert status == 0, status
    sys.stdout.write(json.dumps(ids))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
