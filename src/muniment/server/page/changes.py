"""Changes of facts for the page: the steps of the history, one item for each task. Pure.

Separate from `views`, which reads the memory: this module decides what a list shows.

- C1 A change of an entry is shown as `operations.fact_changes` returns it.
- C2 An item can be undone if it is in effect, and no newer change that is in effect touched its entries. The
  steps of newer tasks must therefore be among the given steps. This only selects the buttons; the undo checks
  the files again.
- C3 The title of an entry that is withheld from models is not shown; its path is shown instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from muniment.operations.fact_changes import FactChange, merge_steps
from muniment.types import CommittedStep

MAX_SHOWN_CHANGES: Final = 5
"""Maximum number of changes that one item of a list shows."""


@dataclass(frozen=True, slots=True)
class TaskItem:
    """The changes of one task, as an item of a list.

    Attributes:
        step: the first step, which has the attributes of the task.
        changes: at most `MAX_SHOWN_CHANGES` changes.
        is_cut: whether the task changed more entries.
        is_undone: whether another task undid it.
        can_undo: whether a list offers to undo it (rule C2 in the module docstring).
        is_undo: whether it is an undo, so that to undo it is a redo.
    """

    step: CommittedStep
    changes: tuple[FactChange, ...]
    is_cut: bool
    is_undone: bool
    can_undo: bool
    is_undo: bool

    @property
    def paths(self) -> set[str]:
        """Return the paths of the shown changes, before and after the changes."""
        return {path for each in self.changes for path in (each.path, each.previous_path) if path}

    @property
    def title(self) -> str:
        """Return a name for the item: the title of its first change."""
        return self.changes[0].title


def list_task_items(
    steps: Sequence[CommittedStep], is_withheld: Callable[[str], bool], redos: Collection[str], limit: int = 0
) -> Iterator[TaskItem]:
    """Yield the items of a list of changes.

    Args:
        steps: the steps, the newest first; those of one task follow each other.
        is_withheld: return whether the entry at a path is withheld from models.
        redos: the result of `find_redos`.
        limit: the maximum number of steps that were read; if it is reached, the last task may have more.
    """
    undone: set[str] = set()
    touched: set[str] = set()
    for _, group in groupby(steps, key=lambda each: each.task):
        task_steps = tuple(group)
        first, paths = task_steps[0], {each.path for each in task_steps}
        is_undone = first.task in undone
        can_undo = not (is_undone or paths & touched or any(each.is_erased for each in task_steps))
        if not is_undone and first.undoes is not None:
            undone.add(first.undoes)
        elif not is_undone:
            touched |= paths
        changes = [*merge_steps(task_steps)]
        shown = tuple(hide_titles(each, is_withheld) for each in changes[:MAX_SHOWN_CHANGES])
        is_last = len(steps) == limit and task_steps[-1] is steps[-1]
        is_cut = is_last or len(changes) > len(shown)
        is_undo = first.undoes is not None and first.task not in redos
        yield TaskItem(first, shown, is_cut, is_undone, can_undo, is_undo)


def hide_titles(change: FactChange, is_withheld: Callable[[str], bool]) -> FactChange:
    """Return a change with its path instead of its titles, if its entry is withheld (rule C3)."""
    if not is_withheld(change.path):
        return change
    return replace(change, old=change.old and change.path, new=change.new and change.path)


def describe_facts(changes: Iterable[FactChange]) -> str:
    """Return the changed facts for a notice, such as `"old" → "new"` or `"new" and 3 more`."""
    found = [*changes]
    if not found:
        return "no facts"
    first, *others = found
    has_both = first.old and first.new and first.old != first.new
    text = f'"{first.old}" → "{first.new}"' if has_both else f'"{first.title}"'
    return f"{text} and {len(others)} more" if others else text


def describe_undo(changes: Sequence[FactChange]) -> str:
    """Return a notice about an undo, for the changes that it made."""
    verb = {"new": "restored ", "removed": "removed "}.get(changes[0].kind, "") if changes else ""
    return f"Undone: {verb}{describe_facts(changes)}. To reverse this, use Redo." if changes else "Undone."
