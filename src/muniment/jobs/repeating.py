"""A task that names itself commits at most once, and waits for the owner at most once.

Asked again, it answers with what it did then, or that it still waits.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from muniment.errors import InvalidContent, PendingReview
from muniment.jobs.place import Place
from muniment.jobs.request import MAX_TASK_CHARS
from muniment.store.ledger import Kept, Origin, of_task, root_key
from muniment.store.review import waiting_of
from muniment.store.trust import new_ulid

_TASK_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TASK_CHARS}}}", re.ASCII)


def id_of_task(kind: str, asked: str | None) -> str:
    """The id that was asked for, not yet checked; None: a new one."""
    return f"{kind}-{new_ulid()}" if asked is None else asked


def check_task_id(task: str) -> None:
    """Refuse what cannot be the id of a task.

    Raises:
        InvalidContent: it is empty, too long, or has other characters.
    """
    if _TASK_ID.fullmatch(task) is None:
        raise InvalidContent(f"a task id has 1 to {MAX_TASK_CHARS} of A-Z a-z 0-9 . _ -")


def done_before(place: Place, kind: str, task: str, fact: str | None = None) -> Kept | None:
    """The commit of a task, with the names that its scopes have here; None: it is to be carried out.

    Args:
        place: where it is asked for now.
        kind: of job, likewise.
        task: its id.
        fact: keyed digest of what is asked for; None: nothing is said.

    Raises:
        InvalidContent: the id is that of another job, of one in another workspace, or of one that was asked
            for something else, as far as that was not erased. Its commit must not stand for what is asked
            for now.
        PendingReview: it waits for the owner; nothing of it is asked of a model once more.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    here = {root_key(place.state, root): scope for scope, root in place.roots.items()}
    done, waiting = of_task(place.state, task), waiting_of(place.state, task)
    if done is not None:
        _check_same(task, kind, fact, done.origin, is_here=all(item.root in here for item in done.changes))
        return replace(done, changes=tuple(replace(item, scope=here[item.root]) for item in done.changes))
    if waiting is not None:
        _check_same(task, kind, fact, waiting.origin, is_here=here.keys() >= set(waiting.roots.values()))
        raise PendingReview(waiting.id, waiting.reasons)
    return None


def _check_same(task: str, kind: str, fact: str | None, origin: Origin, *, is_here: bool) -> None:
    is_other = None not in (fact, origin.fact) and fact != origin.fact
    if origin.kind != kind or is_other or not is_here:
        raise InvalidContent(f"another task has the id {task!r}; nothing was written, choose another id")
