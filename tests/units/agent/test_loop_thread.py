"""Work on the private event loop ends on time and does not block the exit of the process."""

import asyncio
import math
import subprocess
import sys
import threading

from kit.catching import catch_error
from muniment.agent.model import ModelError
from muniment.agent.openai import LoopThread
from muniment.kernel.cancel import Deadline

LONG = Deadline(math.inf)


def test_close_ends_thread_and_running_work():
    loop, (started, ended, closed) = LoopThread(), (threading.Event() for _ in range(3))

    async def hang():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def close_client():
        closed.set()

    def wait():
        catch_error(ModelError, loop.run, hang, LONG)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert started.wait(30)
    loop.close(close_client)
    waiting.join(30)
    assert not waiting.is_alive()
    assert ended.is_set()
    assert closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "muniment-model"]
    wait()
    loop.close(close_client)


def test_host_name_is_resolved():
    async def resolve(host):
        return await asyncio.get_running_loop().getaddrinfo(host, 80)

    async def close_client():
        pass

    loop = LoopThread()
    assert loop.run(lambda: resolve("127.0.0.1"), LONG)
    catch_error(OSError, loop.run, lambda: resolve("no such host"), LONG, match=r"known|resolution")
    loop.close(close_client)


HANGING_RESOLVER = """
import asyncio, socket, threading, time
from muniment.agent.openai import LoopThread
from muniment.kernel.cancel import Deadline
from muniment.errors import DeadlineExceeded
socket.getaddrinfo = lambda *args, **kwargs: threading.Event().wait()
async def resolve():
    return await asyncio.get_running_loop().getaddrinfo("example.invalid", 80)
try:
    LoopThread().run(resolve, Deadline(time.monotonic() + 0.1))
except DeadlineExceeded:
    print("on time")
"""


def test_hanging_resolver_does_not_block_exit():
    command = [sys.executable, "-c", HANGING_RESOLVER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "on time\n"
