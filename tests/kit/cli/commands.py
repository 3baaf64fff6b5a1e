"""Commands of `muniment`, run in this process."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from typer.testing import CliRunner, Result

from muniment.cli.app import app


def invoked(arguments: Sequence[str], env: Mapping[str, str], stdin: str | None = None) -> Result:
    """What became of a command."""
    try:
        return CliRunner().invoke(app, arguments, input=stdin, env=env, catch_exceptions=False)
    finally:  # Or the next one would log to its streams.
        logging.getLogger("muniment").handlers.clear()


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
