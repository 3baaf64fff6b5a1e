"""A host that dies without reading its messages: the process ends after its input is closed."""

import json
import os
import select
import signal
import subprocess

import pytest

from kit.mcp import HELLO, PROGRAM
from kit.server.process import serving
from muniment.integrations.mcp.stdio import LAST_SECONDS
from muniment.integrations.mcp.wire import END_SECONDS

BOUND = END_SECONDS + LAST_SECONDS + 20
"""Time limit in seconds; the last part allows for a busy machine."""

FULL_MS = 2_000
"""Milliseconds without a writable input, after which the process is assumed to wait for its host."""


def message(request_id):
    return {"id": request_id, "method": "tools/list", "params": {}}


FLOODS = {
    "one": [message(1)],
    "answers": [message(number) for number in range(200)],
    "errors": [b"{"] * 20_000,
    "ids": [message(None)] * 20_000,
    "many": [message(number) for number in range(20_000)],
}


def start_process(base, *flags, **environment):
    """Start a process whose output stays open and is never read."""
    base.mkdir()
    env = {**os.environ, "MUNIMENT_HOME": str(base / "home"), **environment}
    arguments = [*PROGRAM, f"--workspace={base}", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)


def feed_and_close(process, messages):
    """Write as many messages as the process accepts, like a host that is then killed, and close the input."""
    lines = (
        each if isinstance(each, bytes) else json.dumps({"jsonrpc": "2.0", **each}).encode()
        for each in messages
    )
    left, fd = memoryview(b"\n".join((*lines, b""))), process.stdin.fileno()
    os.set_blocking(fd, False)
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    while left and poller.poll(FULL_MS):
        left = left[os.write(fd, left[:4_096]) :]
    process.stdin.close()


@pytest.mark.slow
def test_mcp_process_ends_after_input_without_reader(tmp_path, subtests):
    running = {}
    try:
        with serving(tmp_path / "served") as daemon:
            for name, messages in FLOODS.items():
                running[name] = start_process(tmp_path / name), messages
            flags, token = ("--url", daemon.url), {"MUNIMENT_TOKEN": daemon.token}
            for name in ("errors", "many"):
                running[f"pipe-{name}"] = (
                    start_process(tmp_path / f"pipe-{name}", *flags, **token),
                    FLOODS[name],
                )
            for process, messages in running.values():
                feed_and_close(process, [HELLO, {"method": "notifications/initialized"}, *messages])
            for name, (process, _) in running.items():
                with subtests.test(name):
                    assert process.wait(BOUND) is not None
    finally:
        for process, _ in running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.stdout.close()
            process.wait()
