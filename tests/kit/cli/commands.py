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
    root, umask = logging.getLogger(), os.umask(0o077)
    os.umask(umask)
    levels = {logger: logger.level for logger in all_loggers()}
    handlers = root.handlers[:]
    try:
        yield
    finally:
        os.umask(umask)
        root.handlers[:] = handlers
        logging.getLogger("muniment").handlers.clear()
        for logger in all_loggers():
            if logger.level != (before := levels.get(logger, logging.NOTSET)):
                logger.setLevel(before)


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
