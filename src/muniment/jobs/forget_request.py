"""What forget is asked, and what it answers: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from muniment.agent.model import Turn
from muniment.errors import MunimentError
from muniment.jobs.ending import ending_json
from muniment.names import MAX_FACT_BYTES, Scope, Trust

MAX_QUERY_BYTES: Final = MAX_FACT_BYTES
"""Bytes of a query: whoever wants a fact forgotten may send the fact."""

MAX_QUERY_WORDS: Final = 64
"""Significant words of a query: some sentences. All of them are looked for in every entry."""


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """What a caller wants forgotten.

    Attributes:
        query: the path of an entry, such as `user/editor.md`; or the words that it holds, all of them.
            Trimmed, at most `MAX_QUERY_BYTES` bytes of UTF-8, with 1 to `MAX_QUERY_WORDS` different words
            that say something.
        scope: where alone to look; None: everywhere.
        yes: do it; else only say what would be done.
        trust: of the one who asks.
        task_id: as of a `RememberRequest`.
    """

    query: str
    scope: str | None = None
    yes: bool = False
    trust: Trust = Trust.OWNER
    task_id: str | None = None


class Removed(NamedTuple):
    """An entry, or an item of one, that went or would go.

    Attributes:
        topic: the type of the entry, such as `project`; `reference` where it says none.
        summary: one line that says what it was; what is held back from models is not quoted.
        path: of the entry, as a logical path.
    """

    topic: str
    summary: str
    path: str


class Spared(NamedTuple):
    """An entry that was meant and stays, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """What came of a forget.

    Attributes:
        status: only `completed` removed anything, and maybe nothing, where nothing was meant.
        summary: one line for people.
        removed_entries: what went; of a preview, what would go.
        kept: what was meant and stays.
        touched_scopes: where something went.
        decided_by: `rules`, or the model's name.
        notes: what a person should know.
        repeated: the task had committed before; this is what the ledger knows of what it did then.
        error: why it failed, with its stable code.
    """

    task_id: str
    status: Literal["completed", "preview", "failed", "cancelled"]
    summary: str
    decided_by: str
    policy: str
    turns: int
    seconds: float
    timeline: tuple[Turn, ...]
    removed_entries: tuple[Removed, ...] = ()
    kept: tuple[Spared, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()
    repeated: bool = False
    error: MunimentError | None = None

    def as_json(self) -> dict[str, Any]:
        """The document that `forget --json` prints."""
        return {
            "task_id": self.task_id,
            "status": self.status,
            "summary": self.summary,
            "removed_entries": [each._asdict() for each in self.removed_entries],
            "kept": [each._asdict() for each in self.kept],
            "touched_scopes": list(self.touched_scopes),
            "decided_by": self.decided_by,
            "turns": self.turns,
            "notes": list(self.notes),
            **({"repeated": True} if self.repeated else {}),
            **ending_json(self.seconds, self.timeline, self.policy, self.error),
        }
