"""`muniment audit`: the chain of records, checked and shown."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from muniment.cli.named_file import read_named
from muniment.cli.report import (
    EXIT_FAILED,
    configure_logging,
    on_one_line,
    print_document,
    print_failure,
    say,
)
from muniment.errors import ConfigInvalid, MunimentError
from muniment.settings import read_settings
from muniment.store.audit import Head, head, records, verify
from muniment.store.state import State

MAX_HEAD_BYTES: Final = 1_024
"""Bytes of a file that holds one head."""


def verify_chain(head_file: Path | None, *, as_json: bool) -> int:
    """Check the chain; the exit code is 1 if something is wrong with it."""

    def body(state: State) -> int:
        kept = None if head_file is None else _read_head(head_file)
        found = verify(state, kept=kept)
        if as_json:
            print_document(
                {
                    "whole": not found.problems,
                    "records": found.records,
                    "problems": list(found.problems),
                    "head": str(found.head),
                }
            )
        for problem in found.problems if not as_json else ():
            print(problem, file=sys.stderr)
        if found.problems:
            return EXIT_FAILED
        if not as_json:
            say(f"{found.records} records, none edited, removed or added by anybody without the key")
            if kept is None:
                say("that the ledger was not put back to an earlier copy, only --head-file shows")
        return 0

    return _with_state(body, "not verified", as_json=as_json)


def print_head(*, as_json: bool) -> int:
    """Print the end of the chain; the exit code."""

    def body(state: State) -> int:
        found = head(state)
        if as_json:
            print_document({"head": str(found), "records": found.seq})
        else:
            say(str(found))
        return 0

    return _with_state(body, "no head", as_json=as_json)


def show_records(task: str | None, *, as_json: bool) -> int:
    """Print the records; the exit code."""

    def body(state: State) -> int:
        found = records(state, task=task)
        if as_json:
            print_document({"records": [asdict(record) for record in found]})
            return 0
        for record in found:
            about = "(erased)" if record.body is None else json.dumps(record.body, ensure_ascii=False)
            say(on_one_line(f"{record.seq} {record.at} {record.kind} {record.task or '-'} {about}"))
        if not found:
            say("no records" if task is None else "no records of this task; see: muniment history")
        return 0

    return _with_state(body, "not shown", as_json=as_json)


def _with_state(body: Callable[[State], int], what: str, *, as_json: bool) -> int:
    configure_logging()
    try:
        directory = read_settings(os.environ).state
        # Looking at what is not there makes nothing.
        with State(directory if directory.is_dir() else None) as state:
            return body(state)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what=what)


def _read_head(path: Path) -> Head:
    try:
        text = read_named(path, MAX_HEAD_BYTES).decode("ascii")
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{path} holds no head of an audit chain") from None
    return Head.parse(text)
