"""What is asked of an import, and what came of it: values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from muniment.content.secrets import redacted
from muniment.errors import MunimentError
from muniment.kernel.names import Scope, Trust
from muniment.types.results import error_json

_GROUPS: Final = ("imported", "known", "held", "refused", "not_taken")


class ItemOutcome(NamedTuple):
    """What became of an item.

    Attributes:
        name: which, in its source.
        path: of the entry that it is, or would be; empty: of none.
        reason: why it is not imported; empty: it is.
        review: for which it waits; empty: for none.
        lines: of a file that are not taken, such as `2-4, 7`.
    """

    name: str
    path: str = ""
    reason: str = ""
    review: str = ""
    lines: str = ""


def report_item(
    name: str, path: str = "", reason: str = "", review: str = "", lines: str = ""
) -> ItemOutcome:
    """What became of an item, without the secrets that stand in its name: others read reports."""
    return ItemOutcome(redacted(name), redacted(path), redacted(reason), review, lines)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What is asked of an import.

    Attributes:
        format: of the items, one of `transfer.formats.FORMATS`.
        trust: of every item; of an export the most.
        scope: where alone they go; None: as their words say.
        dry_run: judge and report, write nothing.
        to_make: scopes whose directories a real import would have made first; of a dry run alone.
    """

    format: str
    trust: Trust = Trust.AGENT
    scope: str | None = None
    dry_run: bool = False
    to_make: frozenset[Scope] = frozenset()


@dataclass(slots=True)
class ImportResult:
    """What came of an import.

    Attributes:
        tasks: as which it was committed; `undo` takes each back.
        imported: new entries; of a dry run, those that would be.
        known: what was there already, or twice in the source.
        held: what waits for the owner; of a dry run, what would.
        refused: what is not imported.
        not_taken: files, lines and values of the source that are in no entry; `reason` says why.
        lowered: how many entries of an export said of themselves that they are trusted more.
        error: why it ended before its end.
    """

    request: ImportRequest
    policy: str
    tasks: list[str] = field(default_factory=list)
    imported: list[ItemOutcome] = field(default_factory=list)
    known: list[ItemOutcome] = field(default_factory=list)
    held: list[ItemOutcome] = field(default_factory=list)
    refused: list[ItemOutcome] = field(default_factory=list)
    not_taken: list[ItemOutcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lowered: int = 0
    seconds: float = 0.0
    error: MunimentError | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many items came to what."""
        return {name: len(getattr(self, name)) for name in _GROUPS}

    def as_json(self) -> dict[str, Any]:
        """The document that `import --json` prints."""
        return {
            "status": "failed" if self.error else "dry_run" if self.request.dry_run else "completed",
            "format": self.request.format,
            "trust": self.request.trust,
            "counts": self.counts,
            "task_ids": self.tasks,
            **{name: [_filled(each) for each in getattr(self, name)] for name in _GROUPS},
            "lowered": self.lowered,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
            "policy": self.policy,
            **error_json(self.error),
        }


def _filled(told: ItemOutcome) -> dict[str, str]:
    return {key: value for key, value in told._asdict().items() if value}
