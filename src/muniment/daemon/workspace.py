"""A workspace that the daemon serves: its roots and policy, its lane, and whether both can be used now."""

from __future__ import annotations

import threading
from pathlib import Path

from muniment.api import find_place
from muniment.errors import MunimentError
from muniment.jobs.request import Place
from muniment.lane.lane import Lane
from muniment.settings import Settings, find_workspace, workspace_key
from muniment.store.ledger import root_key
from muniment.store.state import State


class Workspace:
    """One workspace. Close it when its lane has stopped.

    Args:
        directory: a directory in it, which a person named.
        settings: with what policy and roots.
        state: shared by all workspaces; stays the caller's.
        in_process: as `open`.

    Attributes:
        path: its real path.
        key: see `settings.workspace_key`.
        lane: its tasks.

    Raises:
        ConfigInvalid: there is no such directory.
    """

    def __init__(self, directory: Path, settings: Settings, state: State, *, in_process: bool) -> None:
        self.path = find_workspace(directory)
        self.key = workspace_key(self.path)
        self.lane = Lane(state, self.key)
        self._settings, self._state, self._in_process = settings, state, in_process
        self._lock = threading.Lock()
        self._place: Place | None = None

    def place(self) -> Place:
        """The policy and the bound roots, as they were when they could first be opened.

        Raises:
            PolicyInvalid, InvalidScope, ConfinementUnavailable, ManagedMemoryUnavailable, ConfigInvalid,
                DeadlineExceeded: they cannot be used now, with the reason.

        Cost: some 50 ms until they are open, then a look at each root.
        """
        with self._lock:
            if self._place is None:
                self._place = find_place(
                    self._settings, self.path, in_process=self._in_process, state=self._state
                )
        self._place.chosen(None)
        return self._place

    @property
    def is_open(self) -> bool:
        """Whether `place` costs only a look."""
        return self._place is not None

    def problem(self) -> MunimentError | None:
        """Why no task can be accepted now; None: nothing speaks against it."""
        try:
            self.place()
        except MunimentError as error:
            return error
        return None

    def scopes(self) -> dict[str, str]:
        """The names of the scopes by the keys of their roots; none while the roots cannot be opened."""
        place = self._place
        if place is None:
            return {}
        return {root_key(self._state, root): scope for scope, root in place.roots.items()}

    def close(self) -> None:
        """Close the roots."""
        if self._place is not None:
            self._place.close_roots()
