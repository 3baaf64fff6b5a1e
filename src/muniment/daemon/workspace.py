"""A workspace that the daemon serves: its roots and policy, its lane, and whether both can be used now."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from muniment.errors import ManagedMemoryUnavailable, MunimentError, PathEscape
from muniment.jobs.place import Place
from muniment.lane import Lane
from muniment.opening import find_place
from muniment.settings import Settings, find_workspace, workspace_key
from muniment.store.ledger import root_key
from muniment.store.state import State

if TYPE_CHECKING:
    from muniment.recall.recaller import Recaller


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
        self._bound: list[Place] = []  # Also those whose roots were replaced: a task may still use them.
        self._recallers: list[tuple[Place, Recaller]] = []  # Likewise.
        self._scopes: Mapping[str, str] = {}

    def place(self) -> Place:
        """The policy and the bound roots, as they were when they could last be opened.

        Raises:
            ManagedMemoryUnavailable: also where a root was replaced; the next call binds what is there then.
            PolicyInvalid, InvalidScope, ConfinementUnavailable, ConfigInvalid, DeadlineExceeded: they cannot
                be used now, with the reason.

        Cost: some 50 ms until they are open, then a look at each root.
        """
        with self._lock:
            place = self._place
            if place is None:
                place = self._place = self._bind()
        try:
            place.chosen(None)
        except PathEscape as error:
            with self._lock:
                if self._place is place:
                    self._place = None
            raise ManagedMemoryUnavailable(error.requested, "was replaced while it was served") from error
        return place

    def recaller(self) -> Recaller:
        """What recalls from the place, the same for as long as that is; it stays this workspace's.

        Raises as `place`.

        Cost: the first time what `place` takes, and some 30 ms for what it is made of.
        """
        from muniment.jobs.place import recaller_of

        place = self.place()
        with self._lock:
            for known, recaller in self._recallers:
                if known is place:
                    return recaller
            recaller = recaller_of(place)
            self._recallers.append((place, recaller))
        return recaller

    def _bind(self) -> Place:
        place = find_place(self._settings, self.path, in_process=self._in_process, state=self._state)
        try:
            self._scopes = {root_key(self._state, root): scope for scope, root in place.roots.items()}
        except BaseException:
            place.close_roots()
            raise
        self._bound.append(place)
        return place

    @property
    def is_open(self) -> bool:
        """Whether the scopes are those of roots that are bound now."""
        return self._place is not None

    def problem(self) -> MunimentError | None:
        """Why no task can be accepted now; None: nothing speaks against it."""
        try:
            self.place()
        except MunimentError as error:
            return error
        return None

    def scopes(self) -> Mapping[str, str]:
        """The names of the scopes by the keys of their roots, as these were last opened; none before that."""
        return self._scopes

    def close(self) -> None:
        """Close the roots, and what recalls from them."""
        for _, recaller in self._recallers:
            recaller.close()
        for place in self._bound:
            place.close_roots()
