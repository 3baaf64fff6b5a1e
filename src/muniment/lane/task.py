"""A task of a lane, and what it is made from: values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from muniment.names import Trust

OWNER: Final = "owner"
"""The name of the token that may see and do everything; no other token may have it."""

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]

TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
"""A task that has one of these never changes again."""


@dataclass(frozen=True, slots=True)
class Originator:
    """Who sends a request.

    Attributes:
        token: the name of the token that it came with.
        client: the id that the client gave, one of those of the token; None: it gave none.
    """

    token: str
    client: str | None = None

    def sees(self, other: Originator) -> bool:
        """Whether this one may know of what `other` asked for.

        With an id only what that id asked for; without one the owner everything, a token its own.
        """
        if self.client is not None:
            return self.client == other.client
        return self.token in {OWNER, other.token}


@dataclass(frozen=True, slots=True)
class Asked:
    """A task as it is sent.

    Attributes:
        arguments: what is to be done, for whoever carries it out; JSON. Forgotten once the task is over.
        shown: what everybody who sees the task is told of that; JSON of fixed words and scopes alone,
            since an erasure leaves it.
        trust: of the originator.
        ref: where the fact comes from, in the words of the originator.
        repeat: the key by which the same request, sent twice, is one task.
    """

    kind: Kind
    arguments: Mapping[str, Any]
    originator: Originator
    shown: Mapping[str, Any]
    trust: Trust = Trust.OWNER
    ref: str | None = None
    repeat: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a task ended.

    Attributes:
        result: JSON; of a completed one, and of no other.
        error: JSON with a stable `code`; of a failed one, and of no other.

    Raises:
        TypeError, ValueError: it is not so. Whoever carries out a task learns it there, not its lane later.
    """

    status: Literal["completed", "failed", "cancelled"]
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.result is not None) != (self.status == "completed"):
            raise ValueError("a task has a result exactly if it completed")
        if (self.error is not None and "code" in self.error) != (self.status == "failed"):
            raise ValueError("a task has an error with a code exactly if it failed")
        for part in (self.result, self.error):
            if part is not None:
                json.dumps(dict(part), allow_nan=False)


@dataclass(frozen=True, slots=True)
class Task:
    """A task as the ledger has it.

    Attributes:
        attempt: how often it was begun, without those that were put back.
        claim: how often it was begun in all: the number of its last attempt, which no other of it ever has.
        created, updated: ISO-8601, UTC, milliseconds.
        cancelled_by: who asked to cancel it; a running one may still complete.
    """

    seq: int
    id: str
    kind: Kind
    status: Status
    originator: Originator
    trust: Trust
    attempt: int
    created: str
    updated: str
    shown: Mapping[str, Any]
    arguments: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    cancelled_by: Originator | None = None
    claim: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it will never change again."""
        return self.status in TERMINAL
