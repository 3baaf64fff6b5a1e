"""Work on the private loop: it ends on time, whatever it does, and keeps nothing from ending."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time

import pytest

from muniment.agent.openai import Closed, LoopThread
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import Cancelled, DeadlineExceeded

LONG = Patience(math.inf)


async def nothing():
    pass


@pytest.fixture
def loop():
    loop = LoopThread()
    yield loop
    loop.close(nothing)


class Hanging:
    """Work that never ends by itself; says that it began, and how it ended."""

    def __init__(self):
        self.began, self.ended = threading.Event(), threading.Event()

    async def __call__(self):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def test_what_the_work_returns_or_raises_comes_back(loop):
    async def answer():
        return 42

    async def fail():
        raise LookupError("gone")

    assert loop.run(answer, LONG) == 42
    with pytest.raises(LookupError, match="gone"):
        loop.run(fail, LONG)


def test_the_deadline_ends_the_wait_and_the_work(loop):
    work = Hanging()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        loop.run(work, Patience(started + 0.1))
    assert time.monotonic() - started < 0.6
    assert work.ended.wait(5)


def test_a_cancel_ends_the_wait_and_the_work(loop):
    work = Hanging()
    with Cancel() as cancel:
        threading.Thread(target=lambda: work.began.wait(5) and cancel.set()).start()
        with pytest.raises(Cancelled):
            loop.run(work, Patience(math.inf, cancel))
    assert work.ended.wait(5)


def test_work_that_blocks_the_loop_does_not_hold_up_the_one_that_waits(loop):
    release = threading.Event()

    async def block():
        release.wait(10)

    with pytest.raises(DeadlineExceeded):
        loop.run(block, Patience(time.monotonic() + 0.1))
    release.set()


def test_nothing_is_begun_when_it_is_too_late(loop):
    work = Hanging()
    with pytest.raises(DeadlineExceeded):
        loop.run(work, Patience(time.monotonic() - 1))
    assert not work.began.is_set()


def test_threads_share_a_loop(loop):
    async def where():
        return threading.get_ident()

    found = []
    threads = [threading.Thread(target=lambda: found.append(loop.run(where, LONG))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0] != threading.get_ident()


def test_closing_ends_the_thread_and_what_still_runs():
    loop, work, closed = LoopThread(), Hanging(), threading.Event()

    async def last():
        closed.set()

    def wait():
        with pytest.raises(Closed):
            loop.run(work, LONG)

    waiting = threading.Thread(target=wait)
    waiting.start()
    work.began.wait(5)
    loop.close(last)
    waiting.join(5)
    assert not waiting.is_alive()
    assert work.ended.is_set()
    assert closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "muniment-model"]
    with pytest.raises(Closed):
        loop.run(work, LONG)
    loop.close(last)


def test_closing_what_never_ran_starts_nothing():
    loop = LoopThread()
    loop.close(nothing)
    assert not [thread for thread in threading.enumerate() if thread.name == "muniment-model"]


@pytest.mark.slow
def test_a_last_word_that_hangs_does_not_hold_up_closing():
    loop = LoopThread()
    loop.run(nothing, LONG)
    started = time.monotonic()
    loop.close(Hanging())
    assert time.monotonic() - started < 5


def test_names_are_resolved(loop):
    async def resolve(host):
        return await asyncio.get_running_loop().getaddrinfo(host, 80)

    assert loop.run(lambda: resolve("127.0.0.1"), LONG)
    with pytest.raises(OSError, match=r"known|resolution"):
        loop.run(lambda: resolve("no such host"), LONG)


RESOLVER_THAT_HANGS = """
import asyncio, socket, sys, threading, time
from muniment.agent.openai import LoopThread
from muniment.confine.cancel import Patience
from muniment.errors import DeadlineExceeded
socket.getaddrinfo = lambda *args, **kwargs: threading.Event().wait()
async def resolve():
    return await asyncio.get_running_loop().getaddrinfo("example.invalid", 80)
try:
    LoopThread().run(resolve, Patience(time.monotonic() + 0.1))
except DeadlineExceeded:
    print("on time")
"""


def test_a_resolver_that_hangs_does_not_keep_the_process_from_ending():
    done = subprocess.run(
        [sys.executable, "-c", RESOLVER_THAT_HANGS], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout == "on time\n"
