"""What can be wrong with a case: the kind, for whoever compares tools, and a line for whoever reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What sort of thing went wrong; `judging.py` and `checks.py` say which, `running.py` the last three."""

    LEFT = "left"
    """A forbidden tree changed, or something stands beside the roots."""
    DETACHED = "detached"
    """A file in a forbidden tree has a name less: a hard link to it in a root was replaced or removed."""
    READ = "read"
    """A forbidden tree was read or listed."""
    LOOKED = "looked"
    """The same, but while the subject was started: whoever executes a program looks around."""
    CROSSED = "crossed"
    """A scope changed that no call named."""
    STRAYED = "strayed"
    """In a scope that was named something changed that was not to be: another file, or at another answer."""
    CANARY = "canary"
    """The canary came out, or stands in a file or in state that was written."""
    PATH = "path"
    """A host path came out that did not go in."""
    ALLOWED = "allowed"
    """A call succeeded that had to be refused."""
    REFUSED = "refused"
    """A call was refused, or a commit failed, that had to succeed."""
    WORDING = "wording"
    """A refusal is of another verdict or code than the corpus asks for."""
    EFFECT = "effect"
    """What a call was to bring about is not there."""
    MANNER = "manner"
    """Something is there that was not to be, or in another form: names, modes, sizes, times."""
    INDEX = "index"
    """The generated index is missing or not what it should be."""
    NO_RACE = "no-race"
    """The attacker of a race was not at work."""
    INEXPRESSIBLE = "inexpressible"
    """The subject has no such call; nothing is known."""
    HUNG = "hung"
    """It did not end."""
    DIED = "died"
    """It ended without an answer, or answered what is none."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that is wrong with how a subject handles a case.

    Attributes:
        kind: its sort.
        text: what was seen, on one line but for tracebacks.
    """

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text
