"""Edit: the owner changes one entry by hand, as a commit that can be seen, explained and undone.

What code had made of the old text, its title and description, is made of the new one (`content/titles.py`),
and its name if that no longer fits (`operations/naming.py`).
To pin an entry is to move it into the folder `pinned/` of its scope, where no run changes anything, and where
recall looks first; it is as trusted there as it was. The policy has to let its other place be made, changed
and removed, and is not asked about `pinned/`, which it keeps from runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from muniment.content.entry import parse
from muniment.content.gates import decode, one_line
from muniment.errors import NotFound, Refusal, RememberRefused
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import RelPath, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise, fold
from muniment.operations.job import EDIT, commit_edit, id_of_task, run_of, terms_of
from muniment.operations.naming import name_of_replaced
from muniment.operations.place import Place
from muniment.recall.context import PINNED
from muniment.store.commit import Commit, NewName, granting
from muniment.store.ledger import Run
from muniment.store.passages import PERSON
from muniment.store.trust import TrustRule, by_person, constant, stamp


def check_editable(place: Place, path: CanonicalPath) -> None:
    """Raise `RememberRefused` where the policy lets nobody change what stands at a path."""
    try:
        Judge(place.policy).require(Verb.MODIFY, path)
    except Refusal as error:
        raise RememberRefused(f"the change was refused: {error}") from error


def edited(place: Place, path: CanonicalPath, before: bytes, after: bytes) -> tuple[Run, Commit]:
    """Put a new text of an entry in the place of the one that was read; only what is new is the owner's.

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
    if not place.assessed(path, before).trust.satisfies(Trust.OWNER):
        after = _without_file_name(after, path)
    change = FileChange(path, digest(before), after)
    rule = by_person(place.state, place.key(path.scope), before, place.policy)
    return _committed(place, place.policy, (change,), rule, before, replaced=name_of_replaced)


def _without_file_name(after: bytes, path: CanonicalPath) -> bytes:
    """Return the text without a `name` that only repeats the name of its file, which others have chosen."""
    entry = parse(after)
    stem = path.name.removesuffix(FILE_SUFFIX)
    fields = entry.front.fields if entry.front is not None and entry.name == one_line(stem) else ()
    for field in fields:
        if field.key == "name":
            return (entry.text[: field.start] + entry.text[field.end :]).encode()
    return after


def path_after(done: Commit, path: CanonicalPath) -> str:
    """Return the path of an entry after an edit of it, which may have given it another name."""
    return next((each.path for each in done.changes if each.kind != "delete"), path.text)


def with_body(before: bytes, body: str) -> bytes:
    """The bytes of an entry with another body, below the front matter that it has.

    Raises:
        ToolError: they are not UTF-8; what is no text in them would be lost.
    """
    entry = parse(decode(before))
    return (entry.text[: len(entry.text) - len(entry.body)] + body).encode()


def is_pinned(path: CanonicalPath) -> bool:
    """Whether an entry stands where no run changes it."""
    return fold(path.rel.partition("/")[0]) == PINNED and "/" in path.rel


def moved_to_pinned(place: Place, path: CanonicalPath) -> tuple[CanonicalPath, Run, Commit]:
    """Pin an entry, or take one that is pinned back to where it was; its new path.

    Whose text it is does not change, and nothing that is held back is moved: it waits for no review.

    Raises as `edited`, but for that, and NotFound: nothing is there.
    """
    rel = path.rel.partition("/")[2] if is_pinned(path) else f"{PINNED}/{path.rel}"
    other = canonicalise(CanonicalPath(path.scope, RelPath(rel)).text, place.policy.scopes)
    try:
        policy = for_move(place.policy, (path, other))
    except Refusal as error:
        raise RememberRefused(f"the change was refused: {error}") from error
    before = place.read(path)
    with suppress(NotFound):
        place.read(other)
        raise RememberRefused(f"{other.text} stands there already; rename one of the two")
    found = place.assessed(path, before)
    if found.held is not None:  # What a commit wrote is held back no more.
        told = f"{path.text} is held back from models ({found.held}), and would not be once it is moved"
        raise RememberRefused(f"{told}; change what it says first")
    changes = (FileChange(path, digest(before), None), FileChange(other, None, before))
    run, done = _committed(place, policy, changes, constant(found.trust), before, reviewed=True)
    return other, run, done


def for_move(policy: Policy, paths: Sequence[CanonicalPath]) -> Policy:
    """The policy under which its owner moves an entry between two paths: `policy`, unless to pin or unpin it.

    That one grants both paths and nothing else; all other terms are those of `policy`.

    Raises:
        Refused: `policy` does not let the place that is not pinned be made, changed and removed.
    """
    pins = {(each.scope, each.rel.partition("/")[2]) for each in paths if is_pinned(each)}
    outside = [each for each in paths if (each.scope, each.rel) in pins]
    if len(paths) != 2 or len(outside) != 1:  # noqa: PLR2004  from, to
        return policy
    judge = Judge(policy)
    judge.require(Verb.CREATE, outside[0])
    judge.require_removal(outside[0])
    return granting(policy, [Verb.CREATE, Verb.MODIFY], paths)


def _committed(
    place: Place,
    policy: Policy,
    changes: tuple[FileChange, ...],
    rule: TrustRule,
    before: bytes,
    *,
    reviewed: bool = False,
    replaced: NewName | None = None,
) -> tuple[Run, Commit]:
    """Commit what the owner does to the entry that was `before`."""
    run = run_of(place, EDIT, id_of_task(EDIT, None), Trust.OWNER, PERSON)
    patience = place.patience()

    def stamped(data: bytes, _base: bytes | None, path: CanonicalPath, by: Run) -> bytes:
        return stamp(data, before, path, by)  # It stays the same entry, whatever it is called.

    terms = replace(terms_of(place, run, patience, rule), policy=policy, stamp=stamped)
    return run, commit_edit(changes, replace(terms, reviewed=reviewed, replaced=replaced))
