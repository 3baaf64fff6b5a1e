"""Commands of `muniment`, run in this process."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner, Result

from muniment.cli.app import app


def invoked(arguments: Sequence[str], env: Mapping[str, str], stdin: str | None = None) -> Result:
    """Run a command in this process; return its result."""
    with restored_process():
        return CliRunner().invoke(app, arguments, input=stdin, env=env, catch_exceptions=False)


@contextmanager
def restored_process() -> Iterator[None]:
    """Restore what a command changes in its process: the umask and the loggers with their streams."""
    umask = os.umask(0o077)
    os.umask(umask)
    before = {logger: logging_of(logger) for logger in all_loggers()}
    try:
        yield
    finally:
        os.umask(umask)
        for logger in all_loggers():
            level, propagate, handlers = before.get(logger, (logging.NOTSET, True, []))
            logger.propagate, logger.handlers[:] = propagate, handlers
            if logger.level != level:
                logger.setLevel(level)


def logging_of(logger: logging.Logger) -> tuple[int, bool, list[logging.Handler]]:
    """Return what a command may change of a logger: its level, propagation and handlers."""
    return logger.level, logger.propagate, logger.handlers[:]


def all_loggers() -> list[logging.Logger]:
    """Return every logger of this process."""
    root = logging.getLogger()
    return [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]


class Commands(ABC):
    """Base class that runs commands; subclasses define how. Returns results in the forms that tests need."""

    @abstractmethod
    def __call__(self, *arguments: Any, **more: Any) -> Result:
        """Run a command."""

    def lines(self, *arguments: Any, code: int = 0, **more: Any) -> list[str]:
        """Run a command with an expected exit code; return the lines of stdout, then of stderr."""
        done = self(*arguments, **more)
        assert done.exit_code == code, done.output
        return (done.stdout + done.stderr).splitlines()

    def document(self, *arguments: Any, code: int = 0, **more: Any) -> dict[str, Any]:
        """Run a command with `--json` and an expected exit code; return its document, which must be ASCII."""
        done = self(*arguments, "--json", **more)
        assert (done.exit_code, done.stdout.isascii()) == (code, True), done.output
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def failure(self, *arguments: Any, **more: Any) -> str:
        """Run a command that must fail; return its error code."""
        return str(self.document(*arguments, code=1, **more)["error"]["code"])
