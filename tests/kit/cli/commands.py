"""Commands of `muniment`, run in this process."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from typer.testing import CliRunner, Result

from muniment.cli.app import app


def run_in_process(arguments: Sequence[str], env: Mapping[str, str], stdin: str | None = None) -> Result:
    """Run a command in this process; return its result."""
    with restore_process():
        return CliRunner().invoke(app, arguments, input=stdin, env=env, catch_exceptions=False)


@contextmanager
def restore_process() -> Iterator[None]:
    """Restore what a command changes in its process: the umask and the loggers with their streams."""
    umask = os.umask(0o077)
    os.umask(umask)
    before = {logger: read_logging(logger) for logger in list_loggers()}
    try:
        yield
    finally:
        os.umask(umask)
        for logger in list_loggers():
            level, propagate, handlers = before.get(logger, (logging.NOTSET, True, []))
            logger.propagate, logger.handlers[:] = propagate, handlers
            if logger.level != level:
                logger.setLevel(level)


def read_logging(logger: logging.Logger) -> tuple[int, bool, list[logging.Handler]]:
    """Return what a command may change of a logger: its level, propagation and handlers."""
    return logger.level, logger.propagate, logger.handlers[:]


def list_loggers() -> list[logging.Logger]:
    """Return every logger of this process."""
    root = logging.getLogger()
    return [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]


class Record(NamedTuple):
    """A line that a command prints for an entry or a change in a pipe; its fields are separated by tabs."""

    text: str
    time: str
    place: str
    trust: str
    handle: str
    path: str = ""


class Commands(ABC):
    """Base class that runs commands; subclasses define how. Returns results in the forms that tests need."""

    @abstractmethod
    def __call__(self, *arguments: Any, **more: Any) -> Result:
        """Run a command."""

    def run_for_lines(self, *arguments: Any, code: int = 0, **more: Any) -> list[str]:
        """Run a command with an expected exit code; return the lines of stdout, then of stderr."""
        done = self(*arguments, **more)
        assert done.exit_code == code, done.output
        return (done.stdout + done.stderr).splitlines()

    def run_for_records(self, *arguments: Any, code: int = 0, **more: Any) -> list[Record]:
        """Run a command with an expected exit code; return the records that it prints on stdout."""
        done = self(*arguments, **more)
        assert done.exit_code == code, done.output
        return [Record(*line.split("\t")) for line in done.stdout.removesuffix("\n").split("\n") if line]

    def run_for_document(self, *arguments: Any, code: int = 0, **more: Any) -> dict[str, Any]:
        """Run a command with `--json` and an expected exit code; return its document, which must be ASCII."""
        done = self(*arguments, "--json", **more)
        assert (done.exit_code, done.stdout.isascii()) == (code, True), done.output
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def run_for_error_code(self, *arguments: Any, **more: Any) -> str:
        """Run a command that must fail; return its error code."""
        return str(self.run_for_document(*arguments, code=1, **more)["error"]["code"])
