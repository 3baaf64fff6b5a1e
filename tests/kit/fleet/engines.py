"""What a ledger can be kept in, for tests that run over both: a file of SQLite, a home of a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.fleet.homes import KEY, Base
from muniment.fleet import homes
from muniment.store.state import Shared, State

ENGINES = ("sqlite", "postgres")

of_sqlite = pytest.mark.parametrize("engine", ["sqlite"], scope="module")
"""For a test of what SQLite does, or of its files: beside those that take both."""

of_postgres = pytest.mark.parametrize("engine", ["postgres"], scope="module")
"""Likewise, of what PostgreSQL does."""


class Opening:
    """Opens states of one engine; one directory is one ledger, however often it is opened.

    Args:
        base: of a fleet; None: ledgers are files.
        roots: the directory that all roots lie in.
    """

    def __init__(self, base: Base | None, roots: Path = Path("/nonexistent")) -> None:
        self._base, self._roots, self._homes = base, roots, dict[Path, str]()

    @contextmanager
    def __call__(self, directory: Path | None = None) -> Iterator[State]:
        """A state; None: a new one."""
        if self._base is None:
            with State(directory) as state:
                yield state
            return
        home = self._homes.get(directory or Path()) or self._base.new_home()
        shared = Shared(self._base.pool.home(home), homes.key_of(KEY, home), self._roots)
        with State(directory, shared=shared) as state:
            self._homes[state.directory] = home
            yield state
