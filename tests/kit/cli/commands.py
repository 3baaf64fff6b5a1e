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
    """What became of a command."""
    with restored_process():
        return CliRunner().invoke(app, arguments, input=stdin, env=env, catch_exceptions=False)


@contextmanager
def restored_process() -> Iterator[None]:
    """Restore what a command sets of its process: the umask and the log, which has its streams."""
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
    """What a command may set of a logger: its level, whether its parent hears it too, and its handlers."""
    return logger.level, logger.propagate, logger.handlers[:]


def all_loggers() -> list[logging.Logger]:
    """Every logger of this process."""
    root = logging.getLogger()
    return [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]


class Commands(ABC):
    """Runs commands as a subclass says, and returns what tests ask of them."""

    @abstractmethod
    def __call__(self, *arguments: Any, **more: Any) -> Result:
        """Run a command."""

    def lines(self, *arguments: Any, code: int = 0, **more: Any) -> list[str]:
        """What it said, first on standard output and then on standard error, and that it ended so."""
        done = self(*arguments, **more)
        assert done.exit_code == code, done.output
        return (done.stdout + done.stderr).splitlines()

    def document(self, *arguments: Any, code: int = 0, **more: Any) -> dict[str, Any]:
        """The one document that it printed, in ASCII, and that it ended so."""
        done = self(*arguments, "--json", **more)
        assert (done.exit_code, done.stdout.isascii()) == (code, True), done.output
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def failure(self, *arguments: Any, **more: Any) -> str:
        """The code with which it failed."""
        return str(self.document(*arguments, code=1, **more)["error"]["code"])
