"""The official client of the Model Context Protocol over any transport, and a raw host.

run_with_client(lambda: make_server(memory), "auto", lambda client: client.list_tools())
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx2
import mcp_types as t
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from kit.locations import REPOSITORY
from muniment.integrations.mcp.memory import LocalBackend
from muniment.integrations.mcp.server import MemoryServer
from muniment.kernel.names import Trust

ERAS = ("legacy", "auto")
"""How a client starts: with a handshake, as until 2025, or without, as since 2026."""

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
"""The handshake of a client without a library."""

SECONDS = 30.0

logging.getLogger("mcp.client").setLevel(logging.CRITICAL)  # It logs each stream that a test closes early.


class MemoryResources:
    """The resources of a `Memory` of the library, in the form that a server needs."""

    def __init__(self, memory, model=None):
        self._memory, self._model = memory, model

    def get_context(self):
        return self._memory.context

    def get_recaller(self):
        return self._memory.recaller

    def get_model(self):
        return self._model or self._memory._model


def make_server(memory, trust="agent", model=None):
    """Create a server of a library memory; call it on an event loop."""
    backend = LocalBackend(MemoryResources(memory, model), Trust(trust))
    return MemoryServer(lambda _: backend)


def run_with_client(target, era, body, **options):
    """Run `body` with a client of the server that `target` creates on the event loop; return its result."""

    async def run():
        async with Client(target(), mode=era, read_timeout_seconds=SECONDS, **options) as client:
            return await body(client)

    return asyncio.run(asyncio.wait_for(run(), 4 * SECONDS))


def run_over_http(url, token, era, body, *, headers=None, **options):
    """Run `body` with a client over HTTP; return its result."""

    async def run():
        sent = {"Authorization": f"Bearer {token}", **(headers or {})}
        timeout = httpx2.Timeout(SECONDS, read=2 * SECONDS)
        async with (
            httpx2.AsyncClient(headers=sent, timeout=timeout, trust_env=False) as http,
            Client(
                streamable_http_client(url, http_client=http),
                mode=era,
                read_timeout_seconds=SECONDS,
                **options,
            ) as client,
        ):
            return await body(client)

    return asyncio.run(asyncio.wait_for(run(), 4 * SECONDS))


def read_text(result):
    """Return the text that the model receives."""
    (content,) = result.content
    return content.text


def read_error_code(result):
    """Return the error code of a failed call."""
    assert result.is_error, result
    assert result.structured_content is None
    return read_text(result).rpartition("[")[2].removesuffix("]")


class ChangeListener:
    """Listens to the notifications that a client of 2025 receives."""

    def __init__(self):
        self.is_changed = asyncio.Event()

    async def __call__(self, message):
        if isinstance(message, t.ResourceListChangedNotification):
            self.is_changed.set()


async def wait_for_change(client, listener, change):
    """Run `change` and wait until the client is notified that the resources changed."""
    if client.protocol_version == "2026-07-28":
        async with client.listen(resources_list_changed=True) as notifications:
            await change()
            await asyncio.wait_for(anext(aiter(notifications)), SECONDS)
    else:
        await change()
        await asyncio.wait_for(listener.is_changed.wait(), SECONDS)


PROGRAM = (sys.executable, "-P", "-m", "muniment", "mcp")


class RawHost:
    """A host that starts a server and may write anything."""

    def __init__(self, *flags, **environment):
        self.process = subprocess.Popen(
            [*PROGRAM, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def send(self, *messages):
        """Write messages, or raw lines."""
        for each in messages:
            line = each if isinstance(each, bytes) else json.dumps({"jsonrpc": "2.0", **each}).encode()
            self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read_message(self):
        """Return the next message."""
        found = json.loads(self.process.stdout.readline())
        assert found["jsonrpc"] == "2.0"
        return found

    def handshake(self):
        """Perform the handshake of the first protocol version."""
        about = {"name": "raw", "version": "1"}
        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": about}
        self.send({"id": 0, "method": "initialize", "params": params})
        response = self.read_message()
        self.send({"method": "notifications/initialized"})
        return response["result"]

    def call(self, request_id, tool, **arguments):
        """Call a tool; read the response with `read_message`."""
        params = {"name": tool, "arguments": arguments}
        self.send({"id": request_id, "method": "tools/call", "params": params})

    def end(self, number=None):
        """Close the input, or send a signal; return exit code, remaining output and standard error."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()


@contextmanager
def run_host(*flags, **environment):
    """Run a host with its server; kill the server after the block."""
    host = RawHost(*flags, **environment)
    try:
        yield host
    finally:
        if host.process.poll() is None:
            host.process.send_signal(signal.SIGKILL)
        host.process.communicate()


INSPECTOR = os.environ.get("MUNIMENT_INSPECTOR", "")
"""An unpacked `@modelcontextprotocol/inspector`: the directory that contains `node_modules`."""


def run_inspector(*arguments, home):
    """Run the command line of the inspector; return its exit code and JSON output."""
    launcher = f"{INSPECTOR}/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    done = subprocess.run(
        ["node", launcher, "--cli", "--format", "json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=2 * SECONDS,
        env={**os.environ, "HOME": str(home)},
    )
    return done.returncode, json.loads(done.stdout or done.stderr.splitlines()[-1])


def is_only_between_marks(fragment, text):
    """Return whether a fragment is only between the memory marks of a text."""
    parts = re.split(r"^<<memory (.*)>>\n((?s:.*?))^<<end \1>>$", text, flags=re.MULTILINE)
    inside = parts[2::3]
    outside = parts[::3]
    return any(fragment in each for each in inside) and not any(fragment in each for each in outside)
