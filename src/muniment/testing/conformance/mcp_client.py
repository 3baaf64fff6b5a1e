"""A client of the Model Context Protocol over a server's standard input and output: enough to call tools.

Source: the specification of 2025-06-18, "stdio" and "tools". Notifications and requests of the server are
passed over; a server that waits for an answer to its own request gets none.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from muniment.names import __version__

PROTOCOL: Final = "2025-06-18"

ANSWER_SECONDS: Final = 60.0
"""Seconds for one answer: `npx` may have to fetch the server first."""

ENDING_SECONDS: Final = 10.0
"""Seconds for a server to end once its input has ended."""


class ServerRefused(RuntimeError):
    """The server answered a request with an error."""


class ServerLost(RuntimeError):
    """The server ended, kept silent, or sent what is no message."""


class Server:
    """A server that runs.

    Args:
        command: what starts it.
        environment: in addition to ours.
        own_session: whether it gets a session of its own, which is ended with it. Within a driver of the
            corpus it stays in the driver's, which is ended when a case hangs.

    Attributes:
        pid: of the process that was started.
        name: what it calls itself, with its version.

    Raises:
        OSError: it cannot be started.
        ServerLost: it does not speak the protocol.
        ServerRefused: it speaks another version.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, own_session: bool = True
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the caller's own command
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=own_session,
        )
        self.pid = self._process.pid
        self._own_session = own_session
        self._asked, self._unread = 0, b""
        about = {"name": "muniment", "version": __version__}
        asked = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        try:
            told = self.ask("initialize", asked).get("serverInfo", {})
            self._send({"method": "notifications/initialized"})
        except BaseException:
            self.close()
            raise
        self.name = f"{told.get('name', 'a server without a name')} {told.get('version', '')}".strip()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool, and wait for its answer.

        Raises:
            ServerRefused: the tool failed.
            ServerLost: as the class.
        """
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise ServerRefused(f"{tool} failed: {result}")
        return result

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request; its result.

        Raises:
            ServerRefused: there is an error instead.
            ServerLost: as the class.
        """
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        while (message := self._message()).get("id") != self._asked or "method" in message:
            pass
        result = message.get("result")
        if not isinstance(result, dict):
            raise ServerRefused(f"{method} failed: {message}")
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        left = memoryview(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        try:
            while left:
                left = left[self._process.stdin.write(left) :]
        except BrokenPipeError:
            raise ServerLost("the server ended; its standard error says why") from None

    def _message(self) -> dict[str, Any]:
        line = self._line()
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ServerLost(f"the server sent what is no message: {line[:200]!r}")
        return message

    def _line(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
                raise ServerLost(f"no answer in {ANSWER_SECONDS} s")
            if not (block := self._process.stdout.read(1 << 16)):
                raise ServerLost("the server ended; its standard error says why")
            self._unread += block
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """End it, and in a session of its own whatever it has started."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._process.stdin.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            if self._own_session:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
