"""The request and the result of an import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from muniment.content.secrets import redact_secrets
from muniment.errors import MunimentError
from muniment.kernel.names import Scope, Trust
from muniment.types.results import create_error_json

_GROUPS: Final = ("imported", "known", "held", "refused", "not_taken")


class ItemOutcome(NamedTuple):
    """The outcome of one item of an import.

    Attributes:
        name: the name of the item in the source.
        path: the path of its entry, also in a dry run; empty if it has no entry.
        reason: why the item was not imported; empty if it was.
        review: the id of the pending review with the item; else empty.
        lines: the lines of the source file that were not imported, such as `2-4, 7`.
    """

    name: str
    path: str = ""
    reason: str = ""
    review: str = ""
    lines: str = ""


def report_item(
    name: str, path: str = "", reason: str = "", review: str = "", lines: str = ""
) -> ItemOutcome:
    """Return the outcome of an item, without the secrets in its texts: other people may read the report.

    See `ItemOutcome` for the arguments.
    """
    return ItemOutcome(redact_secrets(name), redact_secrets(path), redact_secrets(reason), review, lines)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The options of an import.

    Attributes:
        format: the format of the items, one of `transfer.formats.FORMATS`.
        trust: the trust of every item; for an export, the maximum.
        scope: the only scope to import into; None: each item goes to the scope that suits its type or text.
        dry_run: whether to judge and report only, and write nothing.
        scopes_to_create: scopes whose directories a real import would create first; only in a dry run.
    """

    format: str
    trust: Trust = Trust.AGENT
    scope: str | None = None
    dry_run: bool = False
    scopes_to_create: frozenset[Scope] = frozenset()


@dataclass(slots=True)
class ImportResult:
    """The result of an import.

    Attributes:
        tasks: the ids of the tasks that committed entries; `undo` reverses each.
        imported: the new entries; in a dry run, the entries that a real import would create.
        known: the items that the memory already had, or that occur twice in the source.
        held: the items that wait for a review; in a dry run, the items that would wait.
        refused: the rejected items.
        not_taken: files, lines and values of the source that are not in any entry; `reason` states why.
        lowered: the number of exported entries whose claimed trust was reduced.
        error: why the import stopped early; None if it did not.
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
        """Return the number of items for each outcome."""
        return {name: len(getattr(self, name)) for name in _GROUPS}

    def as_json(self) -> dict[str, Any]:
        """Return the document that `import --json` prints."""
        return {
            "status": "failed" if self.error else "dry_run" if self.request.dry_run else "completed",
            "format": self.request.format,
            "trust": self.request.trust,
            "counts": self.counts,
            "task_ids": self.tasks,
            **{name: [_drop_empty(each) for each in getattr(self, name)] for name in _GROUPS},
            "lowered": self.lowered,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
            "policy": self.policy,
            **create_error_json(self.error),
        }


def _drop_empty(outcome: ItemOutcome) -> dict[str, str]:
    return {key: value for key, value in outcome._asdict().items() if value}
