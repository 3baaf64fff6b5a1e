"""What the tasks of lanes hold of a text that is to be erased, and how it goes; `erasure.py` asks for it.

K1 A task is concerned if it is named, or if a string of what it was asked or says names the path, says just
   what was asked for then, or holds a run of the text (`traces.py`). JSON is read before it is compared. What
   can only be a fixed word or a name (`_WORDS`, and all that everybody is shown of a task) is not compared.
K2 A task that is cleared keeps its id, kind, place and what is shown of it. It has failed with the code
   `erased`, even where it had completed, so that no reader meets a result without content; one that was
   cancelled stays so.
K3 One that waited is never begun, and its end is an event; nothing is told of those that were over.
K4 One that runs is not cleared: it has the text in memory, and may be about to write it. It must end first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from muniment.store import outbox
from muniment.store.state import State
from muniment.store.traces import Runs

_ERASED: Final[Mapping[str, Any]] = {"code": "erased"}

_WORDS: Final = frozenset(
    {"code", "context", "decidedBy", "enforcement", "scope", "topic", "touchedScopes", "touchedTopics"}
)
"""Fields that hold fixed words, or names of scopes and models. Any other may hold text."""

_PATHS: Final = frozenset({"filesTouched", "filePath", "paths"})
"""Fields that hold logical paths, one a string."""


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task as far as it can hold a text; the JSON is read.

    Attributes:
        client: that asked for it, as `token` and `workspace`.
    """

    id: str
    workspace: str
    kind: str
    status: str
    token: str
    client: str | None
    attempt: int
    arguments: Any = None
    result: Any = None
    error: Any = None

    @property
    def strings(self) -> Iterator[tuple[str, str]]:
        """All that it says, each with the name of its field."""
        return _strings([self.arguments, self.result, self.error], "")

    @property
    def cleared(self) -> HeldTask:
        """It as it is once it is cleared (K2)."""
        if self.status == "cancelled":
            return self  # What it was asked was forgotten when it was cancelled.
        return replace(self, arguments=None, result=None, error=_ERASED, status="failed")


@dataclass(frozen=True, slots=True)
class Clearing:
    """A task before and after it is cleared."""

    before: HeldTask
    after: HeldTask


def concerned(
    state: State, tasks: Collection[str], paths: Collection[str], facts: Collection[str], runs: Runs
) -> tuple[Clearing, ...]:
    """The tasks that hold something of it, in order (K1), without those that were cleared already.

    Args:
        state: whose ledger.
        tasks: ids of those that are concerned in any case.
        paths: logical.
        facts: keyed digests of what was asked.
        runs: of the text.

    Cost: reads every task, at most 1000 of a lane.
    """
    # Right before and after a name stands nothing that another name could have there.
    names = [re.compile(rf"(?<![\w.-])(?<![\w.-]/){re.escape(path)}(?![\w/-])") for path in paths]

    def concerns(field: str, text: str) -> bool:
        if field in _WORDS:
            return False
        data = text.encode("utf-8", "replace")
        if runs.found_in(data):
            return True
        if field in _PATHS:
            return text in paths
        return any(name.search(text) for name in names) or state.keyed(data.decode().strip()) in facts

    found = (
        Clearing(each, each.cleared)
        for each in _all(state)
        if each.id in tasks or any(concerns(*said) for said in each.strings)
    )
    return tuple(each for each in found if each.before != each.after)


def running(clearings: Sequence[Clearing]) -> str | None:
    """The id of one that runs (K4); None: none does."""
    return next((each.before.id for each in clearings if each.before.status == "running"), None)


def clear(state: State, clearings: Sequence[Clearing], at: str) -> None:
    """Clear tasks, none of which runs (K2, K3), inside the caller's transaction in which they were found.

    Args:
        state: whose ledger.
        clearings: see `concerned`.
        at: when; see `audit.timestamp`.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        for before, task in ((each.before, each.after) for each in clearings):
            connection.execute(
                "UPDATE task SET status = ?, updated = ?, arguments = NULL, result = NULL, error = ? "
                "WHERE id = ?",
                (task.status, at, json.dumps(task.error), task.id),
            )
            if before.status == "queued":
                outbox.append(state, _ended(task, at))


def strings_of_all(state: State) -> Iterator[str]:
    """Everything that tasks say, as it reads once the JSON is read.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return (text for task in _all(state) for _, text in task.strings)


def is_any_running(state: State) -> bool:
    """Whether any lane has a task that runs.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return bool(state.ledger.rows("SELECT 1 FROM task WHERE status = 'running' LIMIT 1"))


def is_task(state: State, task: str) -> bool:
    """Whether a lane has a task of this id.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    return bool(state.ledger.rows("SELECT 1 FROM task WHERE id = ?", (task,)))


def _all(state: State) -> Iterator[HeldTask]:
    rows = state.ledger.rows(
        "SELECT id, workspace, kind, status, token, client, attempt, arguments, result, error "
        "FROM task ORDER BY seq"
    )
    for *known, arguments, result, error in rows:
        read = (None if each is None else json.loads(each) for each in (arguments, result, error))
        yield HeldTask(*known, *read)


def _strings(value: Any, field: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield field, value
        case dict():
            for name, each in value.items():
                yield from _strings(each, name)
        case list():
            for each in value:
                yield from _strings(each, field)


def _ended(task: HeldTask, at: str) -> outbox.Event:
    """The event that a lane would tell of it."""
    return outbox.Event(
        type="task",
        at=at,
        task=task.id,
        data={"kind": task.kind, "status": task.status, "attempt": task.attempt, **_ERASED},
        workspace=task.workspace,
        token=task.token,
        client=task.client,
    )
