"""Edit: the owner changes one entry by hand. The change is a commit, and can be viewed, explained and undone.

If code generated the title and description from the old text, it generates them again from the new text
(`content/titles.py`). It replaces the file name if the name no longer fits the text (`operations/naming.py`).

To pin an entry means to move it into the folder `pinned/` of its scope. Runs cannot change files in this
folder, and recall searches it first. The trust of the entry stays the same. The policy must allow to create,
modify and delete the entry at its path outside `pinned/`. The rules about `pinned/` itself apply to runs, and
are not checked here. Both paths must be visible under the policy. Otherwise a move could show an entry that
is hidden at one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from muniment.cancelling import Cancel
from muniment.content.entry import PINNED_FOLDER, is_pinned, parse
from muniment.content.exact_json import replace_lone_surrogates
from muniment.content.gates import clean_line, decode
from muniment.errors import InvalidContent, NotFound, Refusal, RememberRefused, StoreConflict, printable
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import RelPath, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.entries import build_file_text
from muniment.operations.job import EDIT, choose_task_id, commit_edit, create_commit_options, create_run
from muniment.operations.job_context import JobContext, is_visible
from muniment.operations.naming import choose_path, is_name_generated
from muniment.operations.renames import read_entry_file
from muniment.operations.visibility import Reader, Visibility, resolve_for_owner
from muniment.store.commit import CommitOptions, grant_listed_files
from muniment.store.ledger import Run
from muniment.store.passages import PERSON
from muniment.store.trust import TrustRule, build_constant_rule, build_edit_rule, stamp_entry
from muniment.types import EditResult, PinResult


def check_editable(context: JobContext, path: CanonicalPath) -> None:
    """Raise `RememberRefused` if the policy does not allow to change the entry at a path."""
    try:
        PolicyEvaluator(context.policy).require(Verb.MODIFY, path)
    except Refusal as error:
        why = (
            f"{path.text} is pinned; unpin it first"
            if is_pinned(path.rel)
            else f"the change was denied: {error}"
        )
        raise RememberRefused(why) from error


def edit_entry(
    context: JobContext,
    unsafe_path: str,
    text: str,
    *,
    read_digest: str | None = None,
    dry_run: bool = False,
    cancel: Cancel | None = None,
) -> EditResult:
    """Replace the text of an entry by hand; its front matter stays.

    Args:
        context: the memory; the caller closes it.
        unsafe_path: the path of an entry, its address or its handle.
        text: the new text, without front matter.
        read_digest: the digest of the file that the caller read; None: do not check that it is unchanged.
        dry_run: judge and report; commit nothing.
        cancel: cancels the call, before anything is written.

    Raises:
        InvalidContent: the text is empty.
        NotFound: the entry does not exist.
        RememberRefused: a gate or the policy denies the new text.
        StoreConflict: the digest of the entry is not `read_digest`, or the entry changed in the meantime.
        PendingReview: the policy requires a review of every change.
        PathEscape, Refusal, ToolError: the path is invalid, or its file is not a readable text.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
    """
    path = resolve_for_owner(context, unsafe_path)
    check_editable(context, path)
    before = read_entry_file(context, path)
    if read_digest is not None and read_digest != digest(before):
        raise StoreConflict((path.text,))
    after = replace_body(before, replace_lone_surrogates(text))
    return replace_text(context, path, before, after, dry_run=dry_run, cancel=cancel)


def replace_text(
    context: JobContext,
    path: CanonicalPath,
    before: bytes,
    after: bytes,
    *,
    dry_run: bool = False,
    cancel: Cancel | None = None,
) -> EditResult:
    """Commit new bytes of an entry that was read; only new text gets the owner's trust.

    Args:
        context: the memory; the caller closes it.
        path: the path of the entry, in a bound scope.
        before: the bytes of the entry that were read.
        after: the bytes to write.
        dry_run: judge and report; commit nothing.
        cancel: cancels the call, before anything is written.

    Raises:
        InvalidContent: the new text is empty.
        RememberRefused: a gate or the policy denies the new text.
        StoreConflict: the entry changed in the meantime.
        PendingReview: the policy requires a review of every change.
        ManagedMemoryUnavailable, DeadlineExceeded, PathEscape: as `store.commit`.
    """
    if after == before:
        return EditResult(path=path.text, changed=False)
    if not parse(after).body.strip():
        raise InvalidContent(f"the new text of {path.text} is empty; to remove an entry, use forget")
    if not context.assess(path, before).trust.satisfies(Trust.OWNER):
        after = _without_file_name(after, path)
    change = FileChange(path, digest(before), after)
    rule = build_edit_rule(context.state, context.read_root_key(path.scope), before, context.policy)
    options = _create_commit_options(context, rule, before, cancel, dry_run=dry_run)
    done = commit_edit((change,), replace(options, rename_replaced=choose_path))
    final_path = next((each.path for each in done.changes if each.kind != "delete"), path.text)
    task_id = None if dry_run else options.run.task
    return EditResult(task_id=task_id, path=final_path, changed=True, notes=done.notes)


def _without_file_name(after: bytes, path: CanonicalPath) -> bytes:
    """Return an entry without a `name` that only repeats its file name, which another author chose.

    Args:
        after: the bytes of the entry.
        path: the path of the entry.
    """
    entry = parse(after)
    stem = path.name.removesuffix(FILE_SUFFIX)
    fields = entry.front.fields if entry.front is not None and entry.name == clean_line(stem) else ()
    for field in fields:
        if field.key == "name":
            return (entry.text[: field.start] + entry.text[field.end :]).encode()
    return after


def replace_body(before: bytes, body: str) -> bytes:
    """Return the bytes of an entry with another body; the front matter stays.

    Args:
        before: the bytes of the entry.
        body: the new body.

    Raises:
        ToolError: `before` is not UTF-8, so parts of it would be lost.
    """
    entry = parse(decode(before))
    front_text = entry.text[: len(entry.text) - len(entry.body)]
    return (front_text + body if front_text or body == entry.text else build_file_text(body)).encode()


def toggle_pin(
    context: JobContext,
    unsafe_path: str,
    *,
    recallable_only: bool = False,
    dry_run: bool = False,
    cancel: Cancel | None = None,
) -> PinResult:
    """Move an entry into `pinned/` of its scope, or move a pinned entry back.

    Its trust stays the same. A withheld entry is not moved, so no review is needed.

    Args:
        context: the memory; the caller closes it.
        unsafe_path: the path of an entry, its address or its handle.
        recallable_only: the caller is a program: treat an entry that no recall may return as missing.
        dry_run: judge and report; commit nothing.
        cancel: cancels the call, before anything is written.

    Raises:
        NotFound: the entry does not exist, or the policy hides its path or the new path.
        RememberRefused: the policy denies it, the entry is withheld, or a file exists at the new path.
        PathEscape, Refusal, ToolError: the path is invalid, or its file is not readable.
        StoreConflict: the entry changed in the meantime.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
    """
    path = Visibility(context, Reader(Trust.OWNER)).resolve_entry(
        unsafe_path, recallable_only=recallable_only
    )
    rel = path.rel.partition("/")[2] if is_pinned(path.rel) else f"{PINNED_FOLDER}/{path.rel}"
    new_path = canonicalise(CanonicalPath(path.scope, RelPath(rel)).text, context.policy.scopes)
    if not _can_see_move(context, path, new_path, recallable_only=recallable_only):
        # The same message as `JobContext.read_file` for a missing file.
        raise NotFound(f"{printable(path.text)} not found")
    try:
        policy = widen_for_move(context.policy, (path, new_path))
    except Refusal as error:
        raise RememberRefused(f"the change was denied: {error}") from error
    before = context.read_file(path)
    with suppress(NotFound):
        context.read_file(new_path)
        raise RememberRefused(f"{new_path.text} exists already; rename one of the two")
    assessment = context.assess(path, before)
    if assessment.held is not None:  # A commit would release the entry.
        message = f"{path.text} is withheld from models ({assessment.held}), and a move would release it"
        raise RememberRefused(f"{message}; change its text first")
    changes = (FileChange(path, digest(before), None), FileChange(new_path, None, before))
    options = _create_commit_options(
        context, build_constant_rule(assessment.trust), before, cancel, dry_run=dry_run
    )
    done = commit_edit(changes, replace(options, policy=policy, is_reviewed=True))
    return PinResult(
        task_id=None if dry_run else options.run.task,
        path=new_path.text,
        previous_path=path.text,
        pinned=is_pinned(new_path.rel),
        notes=done.notes,
    )


def _can_see_move(
    context: JobContext, path: CanonicalPath, new_path: CanonicalPath, *, recallable_only: bool
) -> bool:
    """Return whether the caller may know that an entry exists at `path` or at `new_path`.

    Args:
        context: the memory.
        path: the present path of the entry.
        new_path: the path after the move.
        recallable_only: also require that a recall may return the entry.
    """
    judge = PolicyEvaluator(context.policy)
    if not (is_visible(judge, path) and is_visible(judge, new_path)):
        return False
    return not recallable_only or Visibility(context, Reader(Trust.OWNER)).load_entry(path) is not None


def widen_for_move(policy: Policy, paths: Sequence[CanonicalPath]) -> Policy:
    """Return a policy that lets the owner pin or unpin an entry, if a change of `paths` does this.

    It grants creating and modifying these two paths only; its other options are those of `policy`. For any
    other change, the result is `policy` itself.

    Raises:
        Refused: `policy` does not let the path outside `pinned/` be created, modified and deleted.
    """
    pinned_paths = {(each.scope, each.rel.partition("/")[2]) for each in paths if is_pinned(each.rel)}
    outside = [each for each in paths if (each.scope, each.rel) in pinned_paths]
    if len(paths) != 2 or len(outside) != 1:  # noqa: PLR2004  from, to
        return policy
    judge = PolicyEvaluator(policy)
    judge.require(Verb.CREATE, outside[0])
    judge.require_removal(outside[0])
    return grant_listed_files(policy, [Verb.CREATE, Verb.MODIFY], paths)


def _create_commit_options(
    context: JobContext, rule: TrustRule, before: bytes, cancel: Cancel | None, *, dry_run: bool
) -> CommitOptions:
    """Return the options for a change by the owner to one entry, which keeps its id.

    Args:
        context: the memory.
        rule: returns the trust of the new bytes.
        before: the bytes of the entry before the change.
        cancel: cancels the commit, before anything is written.
        dry_run: write nothing.
    """
    run = create_run(context, EDIT, choose_task_id(EDIT, None), Trust.OWNER, PERSON)

    def stamp_change(data: bytes, _base: bytes | None, path: CanonicalPath, committing_run: Run) -> bytes:
        return stamp_entry(data, before, path, committing_run, is_name_new=is_name_generated(data, path))

    return replace(
        create_commit_options(context, run, context.start_deadline(cancel), rule),
        stamp=stamp_change,
        dry_run=dry_run,
    )
