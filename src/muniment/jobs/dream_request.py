"""What a dream is asked, and what it answers: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from muniment.agent.model import Turn
from muniment.errors import MunimentError
from muniment.jobs.ending import ending_json
from muniment.jobs.forget_request import Spared
from muniment.names import Scope, Trust


@dataclass(frozen=True, slots=True)
class DreamRequest:
    """What a caller wants tidied.

    Attributes:
        scope: where alone; None: everywhere.
        yes: do it; else only say what would be done.
        trust: of the one who asks; nothing above it is changed.
        attended: whether somebody has asked for this dream; if not, its removals wait for the owner.
        task_id: as of a `RememberRequest`.
    """

    scope: str | None = None
    yes: bool = False
    trust: Trust = Trust.OWNER
    attended: bool = True
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What was found and what became of it, in numbers of entries unless said otherwise.

    Attributes:
        entries: looked at.
        exact_duplicates: that say what another one says.
        near_duplicates: that are alike to another one.
        expired: whose time is over.
        unreadable: that cannot be read.
        broken_links: relative links to nothing, in numbers of links.
        merged: removed because another one says it; of a preview, that would be.
        removed_expired: removed because their time is over; likewise.
        rewritten: that were given a new text, which stands for others as well; likewise.
        left: that one dream may not change any more; the next one may.
        rejected: groups that changed meanwhile, and so were left alone.
    """

    entries: int = 0
    exact_duplicates: int = 0
    near_duplicates: int = 0
    expired: int = 0
    unreadable: int = 0
    broken_links: int = 0
    merged: int = 0
    removed_expired: int = 0
    rewritten: int = 0
    left: int = 0
    rejected: int = 0

    def as_json(self) -> dict[str, int]:
        """By name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class DreamResult:
    """What came of a dream.

    Attributes:
        status: only `completed` changed anything, and maybe nothing.
        summary: one line for people.
        counts: in numbers.
        deduped_entries: logical paths of the entries that went because another one says what they said; of a
            preview, that would go.
        expired_entries: those whose time was over; likewise.
        alike: groups of logical paths whose texts are alike, as they are now.
        kept: what would have gone, but may not.
        touched_topics: the types of the entries that changed; `reference` for one that says none.
        touched_scopes: where something changed.
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
    counts: Counts = Counts()
    deduped_entries: tuple[str, ...] = ()
    expired_entries: tuple[str, ...] = ()
    alike: tuple[tuple[str, ...], ...] = ()
    kept: tuple[Spared, ...] = ()
    touched_topics: tuple[str, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()
    repeated: bool = False
    error: MunimentError | None = None

    def as_json(self) -> dict[str, Any]:
        """The document that `dream --json` prints."""
        return {
            "task_id": self.task_id,
            "status": self.status,
            "summary": self.summary,
            "counts": self.counts.as_json(),
            "deduped_entries": list(self.deduped_entries),
            "expired_entries": list(self.expired_entries),
            "alike": [list(group) for group in self.alike],
            "kept": [each._asdict() for each in self.kept],
            "touched_topics": list(self.touched_topics),
            "touched_scopes": list(self.touched_scopes),
            "decided_by": self.decided_by,
            "turns": self.turns,
            "notes": list(self.notes),
            **({"repeated": True} if self.repeated else {}),
            **ending_json(self.seconds, self.timeline, self.policy, self.error),
        }
