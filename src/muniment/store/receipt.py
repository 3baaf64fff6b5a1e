"""What an erasure would do, and what it did: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

NOT_COVERED: Final = (
    "blocks of the file system, backups and other copies, transcripts that were moved, version control, "
    "the provider of a model"
)
"""What no erasure here reaches, for people."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an erasure would do.

    Attributes:
        target: as it was asked for.
        files: logical paths of files that are there and go.
        versions: how many versions in the ledger go.
        others: logical paths of other files, of which older versions go: they hold a piece of the text.
        tasks: ids of the tasks that wrote the files.
        reviews: ids of those that go.
        records: how many records lose their body.
        lane_tasks: how many tasks of lanes lose what they were asked and what they say.
        copies: names of copies from upgrades in the state directory that go.
    """

    target: str
    files: tuple[str, ...]
    versions: int
    others: tuple[str, ...]
    tasks: tuple[str, ...]
    reviews: tuple[str, ...]
    records: int
    lane_tasks: int
    copies: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The document that `erase --json` prints without `--yes`."""
        return {
            "status": "preview",
            "target": self.target,
            "files": list(self.files),
            "versions": self.versions,
            "others": list(self.others),
            "tasks": list(self.tasks),
            "reviews": list(self.reviews),
            "records": self.records,
            "lane_tasks": self.lane_tasks,
            "copies": list(self.copies),
            "not_covered": NOT_COVERED,
        }


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an erasure did. It holds no name and no text: it can be given away.

    Attributes:
        task_id: of the erasure.
        erased: keyed digests of the files' names, as the ledger has them now.
        tasks: ids of the tasks that had written them.
    """

    task_id: str
    at: str
    erased: tuple[str, ...]
    tasks: tuple[str, ...]
    files: int
    versions: int
    reviews: int
    records: int
    lane_tasks: int
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The document that `erase --yes --json` prints."""
        return {
            "status": "erased",
            "task_id": self.task_id,
            "at": self.at,
            "erased": list(self.erased),
            "tasks": list(self.tasks),
            "files": self.files,
            "versions": self.versions,
            "reviews": self.reviews,
            "records": self.records,
            "lane_tasks": self.lane_tasks,
            "notes": list(self.notes),
            "not_covered": NOT_COVERED,
        }
