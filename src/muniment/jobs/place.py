"""Where jobs work: a policy over bound roots, and what knows their history."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muniment.agent.model import OnModelFailure
from muniment.confine.binding import BoundRoot
from muniment.errors import InvalidScope
from muniment.names import Scope, Symlinks
from muniment.policy.decide import Policy
from muniment.store.state import State


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job works: a policy over bound roots, and the state that knows their history.

    Attributes:
        symlinks: what becomes of links beneath the roots.
        in_process: run the tools in this process; the policy must allow it.
        clock: monotonic seconds.
        notes: what a person should know of how it was found, such as that a commit had been interrupted.
        on_model_failure: what follows a language model that makes no call, proposes nothing, uses up its
            turns, or gives no usable answer.
    """

    policy: Policy
    roots: Mapping[Scope, BoundRoot]
    state: State
    symlinks: Symlinks = Symlinks.REFUSE
    in_process: bool = False
    clock: Callable[[], float] = time.monotonic
    notes: tuple[str, ...] = ()
    on_model_failure: OnModelFailure = "rules"

    def chosen(self, scope: str | None) -> tuple[Scope, ...]:
        """The scopes that a request is about: the one that it names, else all.

        Raises:
            InvalidScope: none of that name is bound.
            ManagedMemoryUnavailable: a root, also one of another scope, is not where it was.
        """
        if scope is not None and scope not in self.roots:
            if scope in self.policy.scopes:
                raise InvalidScope(
                    f"there is no repository around here; for a {scope} name its --workspace DIR"
                )
            raise InvalidScope(f"there is no scope {scope!r}; there are {', '.join(self.roots)}")
        for root in self.roots.values():
            root.verify()
        return tuple(self.roots) if scope is None else (Scope(scope),)

    def close(self) -> None:
        """Close the roots and the state."""
        self.close_roots()
        self.state.close()

    def close_roots(self) -> None:
        """Close the roots alone, where the state is shared with other places."""
        for root in self.roots.values():
            root.close()
