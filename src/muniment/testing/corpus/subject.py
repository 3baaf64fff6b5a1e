"""What a memory tool has to look like for the corpus: a small adapter of three methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from muniment.testing.corpus.case import Case
from muniment.testing.corpus.stage import Stage


@dataclass(frozen=True, slots=True)
class Answer:
    """What a subject says to one call.

    Attributes:
        verdict: `allow`, `deny` (refused as outside or forbidden) or `error` (an ordinary tool error).
        code: the stable code of a refusal or error, one of `interpreter.CODES`; None where allowed.
        text: what the model would see.
        everything: all that the caller gets to see; it is searched for the canary.
    """

    verdict: str
    code: str | None
    text: str
    everything: object


@dataclass(frozen=True, slots=True)
class Committed:
    """How a commit ended.

    Attributes:
        error: the code of the error that it raised, if it did.
        everything: change-set, results, messages; searched for the canary.
    """

    error: str | None
    everything: object


class Inexpressible(Exception):
    """Raised by a subject for a call that its tool has no way to make: the case says nothing about it."""


class Subject(Protocol):
    """Five tools (`read_file`, `grep`, `ls`, `write_file`, `edit`) over the two roots of a stage.

    A tool that writes at once implements `commit` by what it does after a session, such as its index, or
    by nothing.

    Attributes:
        commits_often: whether calls may follow a commit.
    """

    commits_often: bool

    def call(self, tool: str, arguments: Any) -> Answer:
        """Make one call. Arguments are whatever a case holds, also no object at all.

        Raises:
            Inexpressible: the tool has no such call.
            Exception: any other ends the case; it counts as a crash.
        """
        ...

    def commit(self) -> Committed:
        """Land what was proposed."""
        ...

    def close(self) -> str:
        """End it; everything that it logged."""
        ...


OpenSubject = Callable[[Stage, Case], Subject]
"""Binds a new subject to the roots of a stage, with the policy that the case asks for. It may keep its state
in `stage.state` and its policy in `stage.policy`; nothing in `stage.tree` may change."""
