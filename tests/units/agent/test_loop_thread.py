"""Work on the private loop: it ends on time, whatever it does, and keeps nothing from ending."""

import asyncio
import math
import subprocess
import sys
import threading

from kit.raising import raised
from muniment.agent.model import ModelError
from muniment.agent.openai import LoopThread
from muniment.kernel.cancel import Patience

LONG = Patience(math.inf)


def test_closing_ends_the_thread_and_what_still_runs():
    loop, (began, ended, closed) = LoopThread(), (threading.Event() for _ in range(3))

    async def hang():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def last():
        closed.set()

    def wait():
        raised(ModelError, loop.run, hang, LONG)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert began.wait(30)
    loop.close(last)
    waiting.join(30)
    assert not waiting.is_alive()
    assert ended.is_set()
    assert closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "muniment-model"]
    wait()
    loop.close(last)


def test_names_are_resolved():
    async def resolve(host):
        return await asyncio.get_running_loop().getaddrinfo(host, 80)

    async def last():
        pass

    loop = LoopThread()
    assert loop.run(lambda: resolve("127.0.0.1"), LONG)
    raised(OSError, loop.run, lambda: resolve("no such host"), LONG, match=r"known|resolution")
    loop.close(last)


RESOLVER_THAT_HANGS = """
import asyncio, socket, threading, time
from muniment.agent.openai import LoopThread
from muniment.kernel.cancel import Patience
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
    command = [sys.executable, "-c", RESOLVER_THAT_HANGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "on time\n"
