"""`muniment mcp --url` and `--daemon`: a host's pipe to the memory of a daemon, here or on another machine.

A pipe and no second server: what a tool is and who may do what is said once, by the daemon; and a machine
without a memory of its own loads neither the SDK nor the fence. Apart from `mcp`, which loads more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muniment.cli.wire import Wire, set_aside
from muniment.client.finding import name_workspace, place
from muniment.client.mcp import McpPipe
from muniment.errors import ConfigInvalid, MunimentError
from muniment.exact_json import json_or_none
from muniment.kernel.names import Trust

TOKEN_VARIABLE: Final = "MUNIMENT_TOKEN"  # noqa: S105  a variable's name

DRAIN_SECONDS: Final = 10.0
"""Seconds that requests have to be answered once the input has ended."""

EXIT_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class PipeArguments:
    """The command line; without a URL the daemon of the home is meant."""

    url: str | None
    workspace: Path | None
    trust: str


def serve_pipe(asked: PipeArguments) -> int:
    """Pass messages on until the input ends, SIGTERM or Ctrl-C; the exit code."""
    try:
        if asked.trust not in list(Trust):
            raise ConfigInvalid(f"there is no trust {asked.trust!r}; there are {', '.join(Trust)}")
        token = os.environ.get(TOKEN_VARIABLE) or None
        if asked.url is not None and token is None:
            raise ConfigInvalid(
                f"{TOKEN_VARIABLE} is to hold a token of that daemon: muniment token add NAME"
            )
        where = place(os.environ, url=asked.url, token=token)
        workspace = name_workspace(None if asked.workspace is None else str(asked.workspace))
        asyncio.run(
            _pass_on(Wire(*set_aside()), lambda wire: McpPipe(where, workspace, asked.trust, wire.send))
        )
    except MunimentError as error:
        print(f"not started: {error} [{error.code}]", file=sys.stderr)
        return EXIT_FAILED
    return 0


async def _pass_on(wire: Wire, make: Callable[[Wire], McpPipe]) -> None:
    async with wire:
        pipe = make(wire)
        async for line in wire.lines():
            message = _message(line)
            if message is None:
                await wire.fail_line(line)
            else:
                await pipe.take(message)
        await pipe.finish(0 if wire.stopped.is_set() else DRAIN_SECONDS)


def _message(line: bytes | None) -> dict[str, Any] | None:
    """The message of a line; None: it is none."""
    found = json_or_none(line or b"")
    is_message = isinstance(found, dict) and found.get("jsonrpc") == "2.0"
    return found if is_message and (isinstance(found.get("method"), str) or "id" in found) else None
