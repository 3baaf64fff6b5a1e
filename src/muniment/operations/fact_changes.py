"""Describe the changes of a task as changes of facts. Pure.

A change has the old and the new title of an entry. If an entry is renamed, its removed and its new step are
one change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from muniment.kernel.names import Trust
from muniment.types import Change, CommittedStep


@dataclass(frozen=True, slots=True)
class FactChange:
    """The change of one entry by one task.

    Attributes:
        kind: `new`, `removed`, `changed` or `moved`.
        path: the path after the change; of a removed entry, before it.
        old: the title before the change; empty if the entry is new or its text is unknown.
        new: the title after the change; empty if the entry was removed or its text is unknown.
        handle: the handle of the entry; empty if its text is unknown.
        previous_path: the path before the change, if the entry was renamed; otherwise empty.
        trust: the trust of the new text; None: the entry was removed, or the trust is unknown.
    """

    kind: str
    path: str
    old: str
    new: str
    handle: str = ""
    previous_path: str = ""
    trust: Trust | None = None

    @property
    def title(self) -> str:
        """Return the newest known title; if the text is unknown, the path."""
        return self.new or self.old or self.path


def merge_steps(steps: Sequence[CommittedStep]) -> Iterator[FactChange]:
    """Yield the changes of one task."""
    removed = {each.handle: each for each in steps if each.kind == "removed" and each.handle}
    counts = Counter((each.kind, each.handle) for each in steps)  # Copies of a file have the same handle.
    renamed = {each for each in removed if counts["removed", each] == counts["new", each] == 1}
    for each in steps:
        if each.kind == "new" and each.handle in renamed:
            old = removed[each.handle]
            yield replace(_create_rename(old.title, old.path, each), trust=each.trust)
        elif each.kind == "removed" and each.handle not in renamed:
            yield FactChange("removed", each.path, each.title, "", each.handle)
        elif each.kind != "removed":
            yield FactChange(
                each.kind, each.path, each.previous_title, each.title, each.handle, trust=each.trust
            )


def merge_changes(changes: Sequence[Change]) -> Iterator[FactChange]:
    """Yield the changes of a result; like `merge_steps`."""
    titles = {each.path: each.title for each in changes if each.kind == "delete"}
    renamed = {each.renamed_from for each in changes}
    for each in changes:
        if each.renamed_from is not None and each.renamed_from in titles:
            yield _create_rename(titles[each.renamed_from], each.renamed_from, each)
        elif each.kind == "delete" and each.path not in renamed:
            yield FactChange("removed", each.path, each.title, "", each.handle)
        elif each.kind != "delete":
            old = each.superseded.previous_text if each.superseded else ""
            kind = "new" if each.kind == "create" else "changed"
            yield FactChange(kind, each.path, old, each.title, each.handle)


def _create_rename(old: str, previous_path: str, new: CommittedStep | Change) -> FactChange:
    kind = "moved" if old == new.title else "changed"
    return FactChange(kind, new.path, old, new.title, new.handle, previous_path)
