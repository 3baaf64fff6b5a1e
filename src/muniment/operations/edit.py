"""Edit: the owner changes one entry by hand, as a commit that can be seen, explained and undone.

What code had made of the old text, its title and description, is made of the new one (`content/titles.py`),
and its name if that no longer fits (`operations/naming.py`).
To pin an entry is to move it into the folder `pinned/` of its scope, where no run changes anything, and where
recall looks first; it is as trusted there as it was. The policy has to let its other place be made, changed
and removed, and is not asked about `pinned/`, which it keeps from runs. It has to let both places be seen:
else what a rule hides by its path would be shown at the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from muniment.cancelling import Cancel
from muniment.content.entry import parse
from muniment.content.exact_json import whole_text
from muniment.content.gates import decode, one_line
from muniment.errors import InvalidContent, NotFound, Refusal, RememberRefused, StoreConflict, printable
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import RelPath, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise, fold
from muniment.operations.entries import with_front
from muniment.operations.job import EDIT, commit_edit, id_of_task, run_of, terms_of
from muniment.operations.naming import name_of_replaced
from muniment.operations.place import Place, may_see
from muniment.operations.visibility import Reader, Visibility
from muniment.recall.context import PINNED
from muniment.store.commit import Terms, granting
from muniment.store.ledger import Run
from muniment.store.passages import PERSON
from muniment.store.trust import TrustRule, by_person, constant, stamp
from muniment.types import EditResult, PinResult


def check_editable(place: Place, path: CanonicalPath) -> None:
    """Raise `RememberRefused` where the policy lets nobody change what stands at a path."""
    try:
        Judge(place.policy).require(Verb.MODIFY, path)
    except Refusal as error:
        why = (
            f"{path.text} is pinned; unpin it first"
            if is_pinned(path)
            else f"the change was refused: {error}"
        )
        raise RememberRefused(why) from error


def edit(
    place: Place,
    unsafe_path: str,
    text: str,
    *,
    read_digest: str | None = None,
    dry_run: bool = False,
    cancel: Cancel | None = None,
) -> EditResult:
    """Give an entry another text under the front matter that it has.

    Args:
        place: the memory; stays the caller's.
        unsafe_path: the path of an entry, or its address.
        text: the new text, without front matter.
        read_digest: of the file from which the old text was read; None: whatever is there now is replaced.
        dry_run: judge and report, commit nothing.
        cancel: ends it early, before anything is written.

    Raises:
        InvalidContent: the text is empty.
        NotFound: no entry is there.
        RememberRefused: a gate or the policy does not allow it.
        StoreConflict: the entry is not the one of `read_digest`, or changed meanwhile.
        PendingReview: the policy requires a review of every change.
        PathEscape, Refusal, ToolError: not a path of the memory, or not a readable text.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
    """
    path = place.path(unsafe_path)
    check_editable(place, path)
    before = place.read(path)
    if read_digest is not None and read_digest != digest(before):
        raise StoreConflict((path.text,))
    after = with_body(before, whole_text(text))
    return replace_text(place, path, before, after, dry_run=dry_run, cancel=cancel)


def replace_text(
    place: Place,
    path: CanonicalPath,
    before: bytes,
    after: bytes,
    *,
    dry_run: bool = False,
    cancel: Cancel | None = None,
) -> EditResult:
    """Commit new bytes of an entry instead of those that were read; only new text gets the owner's trust.

    Args:
        place: the memory; stays the caller's.
        path: of the entry, in a scope that is bound.
        before: the bytes that were read there.
        after: the bytes to write.
        dry_run: judge and report, commit nothing.
        cancel: ends it early, before anything is written.

    Raises:
        InvalidContent: the new text is empty.
        RememberRefused: a gate or the policy does not allow it.
        StoreConflict: the entry changed meanwhile.
        PendingReview: the policy requires a review of every change.
        ManagedMemoryUnavailable, DeadlineExceeded, PathEscape: as `commit`.
    """
    if after == before:
        return EditResult(path=path.text, changed=False)
    if not parse(after).body.strip():
        raise InvalidContent(f"the new text of {path.text} is empty; to remove an entry, use forget")
    if not place.assessed(path, before).trust.satisfies(Trust.OWNER):
        after = _without_file_name(after, path)
    change = FileChange(path, digest(before), after)
    rule = by_person(place.state, place.key(path.scope), before, place.policy)
    terms = _terms(place, rule, before, cancel, dry_run=dry_run)
    done = commit_edit((change,), replace(terms, replaced=name_of_replaced))
    path_now = next((each.path for each in done.changes if each.kind != "delete"), path.text)
    task_id = None if dry_run else terms.run.task
    return EditResult(task_id=task_id, path=path_now, changed=True, notes=done.notes)


def _without_file_name(after: bytes, path: CanonicalPath) -> bytes:
    """Return the text without a `name` that only repeats the name of its file, which others have chosen."""
    entry = parse(after)
    stem = path.name.removesuffix(FILE_SUFFIX)
    fields = entry.front.fields if entry.front is not None and entry.name == one_line(stem) else ()
    for field in fields:
        if field.key == "name":
            return (entry.text[: field.start] + entry.text[field.end :]).encode()
    return after


def with_body(before: bytes, body: str) -> bytes:
    """Return the bytes of an entry with another body, under the front matter that it has.

    Raises:
        ToolError: `before` is not UTF-8, so that parts of it would be lost.
    """
    entry = parse(decode(before))
    above = entry.text[: len(entry.text) - len(entry.body)]
    return (above + body if above or body == entry.text else with_front(body)).encode()


def is_pinned(path: CanonicalPath) -> bool:
    """Whether an entry stands where no run changes it."""
    return fold(path.rel.partition("/")[0]) == PINNED and "/" in path.rel


def pin(
    place: Place,
    unsafe_path: str,
    *,
    recallable_only: bool = False,
    dry_run: bool = False,
    cancel: Cancel | None = None,
) -> PinResult:
    """Move an entry into `pinned/` of its scope, or a pinned one back to its place before.

    Its trust stays the same. An entry that is withheld is not moved, so no review is needed.

    Args:
        place: the memory; stays the caller's.
        unsafe_path: the path of an entry, or its address.
        recallable_only: to the caller, which is a program, an entry that no recall may show is missing.
        dry_run: judge and report, commit nothing.
        cancel: ends it early, before anything is written.

    Raises:
        NotFound: no entry is there, or the policy hides its path or the new one.
        RememberRefused: the policy does not allow it, the entry is withheld, or the new path is taken.
        PathEscape, Refusal, ToolError: not a path of the memory, or not a readable file.
        StoreConflict: the entry changed meanwhile.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
    """
    path = place.path(unsafe_path)
    rel = path.rel.partition("/")[2] if is_pinned(path) else f"{PINNED}/{path.rel}"
    other = canonicalise(CanonicalPath(path.scope, RelPath(rel)).text, place.policy.scopes)
    if not _may_move(place, path, other, recallable_only=recallable_only):
        raise NotFound(f"{printable(path.text)} does not exist")  # As `Place.read` says of a missing one.
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
    terms = _terms(place, constant(found.trust), before, cancel, dry_run=dry_run)
    done = commit_edit(changes, replace(terms, policy=policy, reviewed=True))
    return PinResult(
        task_id=None if dry_run else terms.run.task,
        path=other.text,
        previous_path=path.text,
        pinned=is_pinned(other),
        notes=done.notes,
    )


def _may_move(place: Place, path: CanonicalPath, other: CanonicalPath, *, recallable_only: bool) -> bool:
    """Return whether the caller may know of the entry at `path`, and of what would stand at `other`."""
    judge = Judge(place.policy)
    if not (may_see(judge, path) and may_see(judge, other)):
        return False
    return not recallable_only or Visibility(place, Reader(Trust.OWNER)).entry(path) is not None


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


def _terms(place: Place, rule: TrustRule, before: bytes, cancel: Cancel | None, *, dry_run: bool) -> Terms:
    """Return the terms of a change by the owner to the entry that was `before`; it stays the same entry."""
    run = run_of(place, EDIT, id_of_task(EDIT, None), Trust.OWNER, PERSON)

    def stamped(data: bytes, _base: bytes | None, path: CanonicalPath, by: Run) -> bytes:
        return stamp(data, before, path, by)

    return replace(terms_of(place, run, place.patience(cancel), rule), stamp=stamped, dry_run=dry_run)
