"""`muniment tool`: the five tools as JSON lines, for harnesses in any language."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from muniment.cli.report import configure_logging
from muniment.content.gates import visible
from muniment.errors import MunimentError
from muniment.sandbox import Sandbox
from muniment.settings import parse_roots, read_settings
from muniment.signatures import load_configured
from muniment.store.commit import Commit

MAX_LINE_BYTES: Final = 64 << 20
"""Bytes of one request line; longer input ends the program."""


def serve(
    policy: str, roots: list[str], symlinks: str, state: Path | None, *, in_process: bool, commit: bool
) -> int:
    """Answer each line of standard input with a line; commit at the end if asked for."""
    configure_logging()
    try:
        loaded = load_configured(read_settings(os.environ, policy=policy))
        with Sandbox(
            loaded, parse_roots(roots), symlinks=symlinks, state=state, in_process=in_process
        ) as box:
            while line := sys.stdin.buffer.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    _print({"verdict": "error", "code": "too_large", "text": "the line is too long"})
                    return 1
                if line.strip():
                    _print(_answer(box, line))
            if commit:
                _report(box.commit())
    except MunimentError as error:
        print(f"{visible(str(error))} [{error.code}]", file=sys.stderr)
        return 1
    return 0


def _answer(box: Sandbox, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or set(request) != {"tool", "args"}:
        text = 'a request is a JSON object {"tool": …, "args": {…}} on one line'
        return {"verdict": "error", "code": "bad_arguments", "text": text}
    outcome = box.call(request["tool"], request["args"])
    return {"verdict": outcome.verdict, "code": outcome.code, "text": outcome.text}


def _report(done: Commit) -> None:
    """What was committed, on standard error: standard output holds one answer a request."""
    for line in (*(f"committed: {change.path}" for change in done.changes), *done.notes):
        print(visible(line), file=sys.stderr)


def _print(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)
