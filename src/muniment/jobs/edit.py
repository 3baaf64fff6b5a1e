"""Edit: the owner changes one entry by hand, as a commit that can be seen, explained and undone.

What code had made of the old text, its title and description, is made of the new one (`content/titles.py`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from muniment.errors import Refusal, RememberRefused, ToolError
from muniment.jobs.place import Place
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, digest
from muniment.kernel.decide import Judge
from muniment.kernel.names import Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.sandbox import WAIT_SECONDS
from muniment.store.audit import timestamp
from muniment.store.commit import Commit, Terms, commit
from muniment.store.ledger import Run
from muniment.store.trust import constant, new_ulid, stamp

KIND = "edit"


def check_editable(place: Place, path: CanonicalPath) -> None:
    """Raise `RememberRefused` where the policy lets nobody change what stands at a path."""
    try:
        Judge(place.policy).require(Verb.MODIFY, path)
    except Refusal as error:
        raise RememberRefused(f"the change was refused: {error}") from error


def edited(place: Place, path: CanonicalPath, before: bytes, after: bytes) -> tuple[Run, Commit]:
    """Put a new text of an entry in the place of the one that was read.

    Args:
        place: the memory; stays the caller's.
        path: of the entry, in a scope that is bound.
        before: what was read there.
        after: what it is to say.

    Raises:
        RememberRefused: a gate or the policy does not let it be so.
        StoreConflict: the entry changed meanwhile.
        PendingReview: the policy wants a review of every change.
        ManagedMemoryUnavailable, DeadlineExceeded, PathEscape: as `commit`.
    """
    run = Run(
        f"{KIND}-{new_ulid()}", timestamp(datetime.now(UTC)), Trust.OWNER, "owner", place.policy.label, KIND
    )
    patience = Patience(time.monotonic() + WAIT_SECONDS)
    terms = Terms(place.policy, place.roots, patience, place.state, run, constant(Trust.OWNER), stamp=stamp)
    change = FileChange(path, digest(before), after)
    try:
        return run, commit([ChangeSet((change,))], terms)
    except (Refusal, ToolError) as error:
        raise RememberRefused(f"the change was refused: {error}") from error
