"""Dream: tidies the memory. Removes duplicates and expired entries, and counts other problems.

1. Code scans every entry of each scope.
2. Code removes expired entries and exact duplicates. Entries that have ended by their own text stay; the
   result lists them, so that a user may remove them.
3. A language model, if configured, sees groups of almost equal entries; all entries of a group have the same
   trust. It may choose one entry to replace others, unchanged or with a text composed of their words
   (`agent/questions.py`). It has no tools and sees no path, so no confined worker is needed. If its response
   is invalid, its group stays unchanged. If no response arrives, the whole dream fails.
4. All expired entries are removed. Of the other entries of a scope at most the share `max_scope_share`
   changes; one step is always allowed. The rest is left for the next dream.
5. One commit contains all steps. Each step has preconditions on all its entries: it is rejected if one of
   them changed in the meantime, and an entry is removed only if its replacement exists. A dry run writes
   nothing.

A remember may commit during the dream. `undo` restores the entries from before the dream. After a failure of
any kind, nothing is changed.

S1 A step is a part of the commit: it has a precondition on every entry that it depends on, and two steps
   never change the same entry.
S2 In each scope, the dream writes or removes at most the share `max_scope_share` of the entries. One step is
   always allowed, even if its two entries are more than this share. Expired entries are not counted: not as
   changed entries, and not as entries of the scope. All merges by a model together write at most as much as
   one run.
S3 A merge by a model is accepted only if all these conditions are true.
   - The text, or the unchanged entry that stays, consists of whole units of the merged entries, with every
     negation and number (`content.provenance`, P5). Entries of agents may be restated in another order, but
     with all of their words: another day or name is another fact.
   - The text passes the gates.
   - All entries may be removed.
   - The model saw neither external entries nor entries that are too long for a response.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final, Literal

from muniment.agent.model import Model, ModelError
from muniment.agent.questions import Merge, ModelQuery
from muniment.cancelling import Cancel
from muniment.content.admission import check_entry, replace_if_rejected
from muniment.content.entry import MAX_DESCRIPTION_CHARS, complete_front_matter, parse, shorten
from muniment.content.gates import clean_line, encode
from muniment.content.provenance import consists_of
from muniment.content.titles import derive_title
from muniment.content.words import STOP_WORDS, build_comparison_key, extract_features
from muniment.errors import MunimentError, StoreConflict, ToolError
from muniment.events import track_progress
from muniment.kernel.change import ChangeSet, Claim, FileChange
from muniment.kernel.decide import Policy
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.findings import DuplicateGroup, Findings
from muniment.operations.job import Job, determine_status, log_end, log_retry_or_raise, start_task
from muniment.operations.job_context import JobContext, LoadedEntry
from muniment.operations.naming import choose_path, is_name_generated
from muniment.operations.removals import (
    check_preview,
    compute_preview_digest,
    describe_for_person,
    list_expired,
    list_topics,
)
from muniment.store.audit import timestamp
from muniment.store.commit import CommitResult, commit
from muniment.store.erase import is_erased_text
from muniment.store.handles import read_entry_id
from muniment.store.ledger import CommitRow, Run, find_commit
from muniment.store.trust import TrustDecision, is_risky, stamp_entry
from muniment.types import Change, Counts, DreamRequest, DreamResult, TidyStep

KIND: Final = "dream"


class _DreamJob(Job):
    """One dream task. All attempts of the task use the same object.

    Attributes:
        files_left: number of files that a model's merges may still change.
        bytes_left: number of bytes that a model's merges may still write.
    """

    kind = KIND

    def __init__(self, request: DreamRequest, context: JobContext, model: Model, cancel: Cancel) -> None:
        super().__init__(context, model, cancel, request.trust, request.task_id, is_dry=request.dry_run)
        self.request = request
        self.files_left = self.bytes_left = 0

    def create_result(
        self, counts: Counts, removed: Collection[str] = (), expired: Collection[str] = ()
    ) -> DreamResult:
        """Return the result of a task that wrote nothing, or that removed some entries.

        Args:
            counts: the numbers for the result.
            removed: the paths of all removed entries.
            expired: the paths among `removed` that were removed because they had expired.
        """
        merged = tuple(sorted(set(removed).difference(expired)))
        return DreamResult(
            **self.create_common_members(),
            status="preview" if self.is_dry else "completed",
            touched_topics=(),
            counts=counts,
            rejected=counts.rejected,
            deduped_entries=len(merged),
            deduped_paths=merged,
            expired_paths=tuple(sorted(expired)),
        )

    def decide_trust(self, draft: FileChange, previous_trust: Trust | None) -> TrustDecision:
        """Return the trust of merged text: the trust of its entries, capped by the trust of the request.

        The text contains only words of these entries, since `build_merge_step` checks this.
        """
        request_trust = self.trust
        return TrustDecision(
            request_trust
            if draft.after is None or previous_trust is None
            else request_trust.cap(previous_trust)
        )


def dream(
    request: DreamRequest, context: JobContext, model: Model, *, cancel: Cancel | None = None
) -> DreamResult:
    """Tidy the memory; return an error in the result's `error`, never raise it.

    Args:
        request: the scope, and whether it is a preview.
        context: the policy, roots and state; the caller closes them.
        model: may merge similar entries; the embedded rules only count them.
        cancel: cancels the task; a commit that has begun to write is completed.

    Cost: about half a second for a thousand entries, without the time of the model.
    """
    with start_task(KIND, "tidying", cancel) as (used_cancel, task_span):
        job = _DreamJob(request, context, model, used_cancel)
        try:
            result = _run_dream(job)
        except (MunimentError, ModelError) as problem:
            error = job.record_failure(problem)
            result = replace(job.create_result(Counts()), status=determine_status(error), error=error)
        fields = {"turns": result.turns, "seconds": round(result.seconds, 3), **asdict(result.counts)}
        log_end(KIND, result, task_span, **fields)
    return result


def _run_dream(task: _DreamJob) -> DreamResult:
    """Scan, choose the steps and commit them; retry if another process wrote in the meantime."""
    earlier = task.find_earlier(None)  # All dream requests have the same content.
    if earlier is not None:
        return _create_repeated_result(task, earlier)
    scopes = task.context.select_scopes(task.request.scope)
    task.start_budget(task.context.policy.limits)
    try:
        return _run_attempt(task, scopes)
    except StoreConflict as conflict:
        log_retry_or_raise(task.context.policy, KIND, task.id, conflict)
    return _run_attempt(task, scopes)


def _create_repeated_result(task: _DreamJob, done: CommitRow) -> DreamResult:
    """Return the result of a task that committed earlier, from its commit in the ledger."""
    known = done.known_changes
    removed, renamed = _list_removed(known)
    expired = list_expired(task.context, done)
    counts = Counts(
        merged=len(removed - expired),
        removed_expired=len(expired),
        rewritten=len(known) - len(removed) - len(renamed),
    )
    task.notes = list(done.notes)
    return replace(
        task.create_result(counts, removed, expired),
        summary=f"already done by this task: {_describe_changes(counts)}",
        repeated=True,
        touched_topics=list_topics(done.changes),
        touched_scopes=done.touched_scopes,
    )


def _run_attempt(task: _DreamJob, scopes: Sequence[Scope]) -> DreamResult:
    """Scan the scopes once, choose the steps and commit them (steps 1 to 5 in the module docstring)."""
    task.notes, limits = [], task.context.policy.limits
    task.files_left, task.bytes_left = limits.files_written, limits.write_bytes
    now = timestamp()
    found = [Findings(task, scope, now) for scope in scopes]
    removals = [step for each in found for step in find_removal_steps(each)]
    merges = [] if task.uses_rules else [step for each in found for step in _query_merge_steps(task, each)]
    steps = removals + merges
    digest = compute_preview_digest(task.context, KIND, steps)
    check_preview(task.request.digest, digest, is_dry=task.is_dry)
    # The time of the scan: entries that had expired by then are reported as expired.
    options = replace(
        task.create_commit_options(task.decide_trust),
        run=replace(task.create_run(), at=now),
        stamp=_stamp_entry,
        rename_replaced=choose_path,
    )
    done = commit(steps, replace(options, is_attended=task.request.attended))
    if (earlier := task.find_faster_commit(done)) is not None:
        return _create_repeated_result(task, earlier)
    task.notes += done.notes
    removed, _ = _list_removed(done.changes)
    entries = {each.path: each for one in found for each in one.iterate_affected()}
    described = [_describe_step(step, entries, removed, is_merge=False) for step in removals]
    described += [_describe_step(step, entries, removed, is_merge=True) for step in merges]
    return replace(
        _create_result(task, found, done),
        digest=digest if task.is_dry else None,
        steps=tuple(each for each in described if each.removed),
    )


def _describe_step(
    step: ChangeSet, entries: Mapping[CanonicalPath, LoadedEntry], removed: Collection[str], *, is_merge: bool
) -> TidyStep:
    """Return a step of a dream as a preview shows it to a person.

    Args:
        step: the step.
        entries: the entries of all steps, by path.
        removed: the paths of the entries that the commit removed; a step may be rejected.
        is_merge: whether a model merged the entries.
    """
    old = [entries[each.path] for each in step.changes if each.after is None and each.path.text in removed]
    removed_parts = tuple(map(describe_for_person, old))
    rewritten = next((each for each in step.changes if each.after is not None), None)
    survivor = next((claim.path for claim in step.claims), None) if rewritten is None else rewritten.path
    if survivor is None:
        return TidyStep("expired", removed_parts)
    stays, new_text = entries[survivor], ""
    if rewritten is not None and rewritten.after is not None:
        new_text = clean_line(parse(rewritten.after).body)
    key = build_comparison_key(stays.entry.body)
    is_same = all(build_comparison_key(each.entry.body) == key for each in old)
    reason: Literal["merged", "duplicate", "outdated"] = (
        "merged" if is_merge else "duplicate" if is_same else "outdated"
    )
    return TidyStep(reason, removed_parts, describe_for_person(stays), new_text)


def _stamp_entry(data: bytes, before: bytes | None, path: CanonicalPath, run: Run) -> bytes:
    return stamp_entry(data, before, path, run, is_name_new=is_name_generated(data, path))


def _query_merge_steps(task: _DreamJob, found: Findings) -> Iterator[ChangeSet]:
    """Yield the accepted merges that a model proposes for the similar entries of one scope."""
    query = ModelQuery(task.model, task.budget)
    uncompared = 0
    groups = list(found.iterate_queries())
    total = min(len(groups), task.budget.turns_left)
    with track_progress("comparing similar entries", unit="groups", total=total) as progress:
        for number, group in enumerate(groups):
            progress.done = number
            if task.budget.turns_left == 0:
                uncompared += len(group)
                continue
            try:
                merges = query.propose_merges([each.entry.body for each in group])
            except ModelError as problem:
                if not problem.has_answered:
                    raise
                reason = replace_if_rejected(str(problem), "no response")
                task.notes.append(
                    f"{len(group)} similar entries stay unchanged, because the model failed: {reason}"
                )
                continue
            for merge in merges:
                step = build_merge_step(merge, group, task.context.policy)
                if step is None or is_erased_text(task.context.state, merge.text):
                    task.notes.append(
                        f"rejected a text of {task.model.name} for {len(merge.drop) + 1} entries: it states "
                        "more or less than these entries, ends sooner, is rejected by a gate, or was erased"
                    )
                elif _is_within_limits(task, step) and found.allowance.reserve_all(len(step.changes)):
                    task.files_left -= len(step.changes)
                    task.bytes_left -= _count_bytes(step)
                    yield step
    if uncompared:
        task.notes.append(f"{uncompared} similar entries of {found.scope} were not compared: no turns left")


def _is_within_limits(task: _DreamJob, step: ChangeSet) -> bool:
    """Return whether the merges of a model may still change as much as `step` does."""
    size = len(step.changes)
    if size <= task.files_left and _count_bytes(step) <= task.bytes_left:
        return True
    task.notes.append(
        f"skipped a merge of {size} entries: it exceeds what one run may write under the policy"
    )
    return False


def _count_bytes(step: ChangeSet) -> int:
    return sum(item.size for item in step.changes)


def _create_result(task: _DreamJob, found: Sequence[Findings], done: CommitResult) -> DreamResult:
    """Return the result of a dream, from the findings of each scope and the result of the commit."""
    removed, renamed = _list_removed(done.changes)
    expired = {loaded.path.text for each in found for loaded in each.expired} & removed
    groups = [
        tuple(loaded for loaded in group if loaded.path.text not in removed)
        for each in found
        for group in each.similar_groups
    ]
    similar = [group for group in groups if len(group) > 1]
    counts = Counts(
        entries=sum(each.entries for each in found),
        exact_duplicates=sum(each.duplicate_count for each in found),
        near_duplicates=sum(len(group) for each in found for group in each.similar_groups),
        expired=sum(each.expired_count for each in found),
        ended=sum(len(each.ended_paths) for each in found),
        unreadable=sum(each.unreadable for each in found),
        broken_links=sum(each.broken_links for each in found),
        merged=len(removed) - len(expired),
        removed_expired=len(expired),
        rewritten=len(done.changes) - len(removed) - len(renamed),
        left=sum(each.allowance.left for each in found),
        rejected=done.rejected,
    )
    commit_row = find_commit(task.context.state, task.id) if done.changes and not task.is_dry else None
    ended = tuple(sorted({path for each in found for path in each.ended_paths} - removed))
    return replace(
        task.create_result(counts, removed, expired),
        summary=_describe_result(counts, is_preview=task.is_dry),
        ended_entries=len(ended) or None,
        ended_paths=ended,
        similar_paths=tuple(map(_list_paths, similar)),
        similar=tuple(tuple(map(describe_for_person, group)) for group in similar),
        kept=tuple(commit_row for each in found for commit_row in each.retained),
        touched_topics=() if commit_row is None else list_topics(commit_row.changes),
        touched_scopes=() if task.is_dry else done.touched_scopes,
    )


def _list_removed(changes: Collection[Change]) -> tuple[set[str], set[str]]:
    """Return the paths of the entries that some changes remove, and the old paths of those they rename."""
    renamed = {change.renamed_from for change in changes if change.renamed_from is not None}
    return {change.path for change in changes if change.kind == "delete"} - renamed, renamed


def _list_paths(group: Sequence[LoadedEntry]) -> tuple[str, ...]:
    return tuple(each.path.text for each in group)


def _describe_changes(counts: Counts) -> str:
    done = {
        "merged": counts.merged,
        "rewrote": counts.rewritten,
        "removed as expired": counts.removed_expired,
    }
    return ", ".join(f"{what} {number}" for what, number in done.items() if number) or "changed nothing"


def _describe_result(counts: Counts, *, is_preview: bool) -> str:
    left = f"; left {counts.left} for the next dream" if counts.left else ""
    checked = "1 entry" if counts.entries == 1 else f"{counts.entries} entries"
    return f"{'would have ' if is_preview else ''}{_describe_changes(counts)}; {checked} checked{left}"


def find_removal_steps(findings: Findings) -> Iterator[ChangeSet]:
    """Yield the removals that code decides: first expired entries, then duplicates."""
    for loaded in findings.expired:
        yield ChangeSet((_build_deletion(loaded),))
    for same in findings.duplicate_groups:
        if removable := same.removable[: findings.allowance.reserve(len(same.removable))]:
            yield _build_removal_step(DuplicateGroup(same.survivor, removable))


def build_merge_step(merge: Merge, group: Sequence[LoadedEntry], policy: Policy) -> ChangeSet | None:
    """Return the step that carries out a model's merge, or None if the merge is rejected.

    Rule S3 in the module docstring lists the conditions.

    Args:
        merge: the proposed merge; its numbers are indexes in `group`.
        group: the entries in the query to the model.
        policy: determines the gates for the merged text.
    """
    merge = _prefer_stored_entry(merge, group)
    survivor, removable = group[merge.keep], tuple(group[number] for number in merge.drop)
    sources = [each.entry.body for each in (survivor, *removable)]
    if survivor.trust.satisfies(Trust.WORKSPACE) and not consists_of(
        merge.text or survivor.entry.body, sources
    ):
        return None
    if not merge.text:
        if any(each.outlasts(survivor) for each in removable) or not _contains_words(survivor, removable):
            return None
        return _build_removal_step(DuplicateGroup(survivor, removable))
    merged_words, source_words = (
        extract_features(merge.text),
        frozenset.union(*map(extract_features, sources)),
    )
    if not source_words - STOP_WORDS <= merged_words <= source_words | STOP_WORDS:
        return None
    new_file = _build_merged_file(merge.text, survivor, policy)
    if new_file is None:
        return None
    return ChangeSet((FileChange(survivor.path, survivor.digest, new_file), *map(_build_deletion, removable)))


def _prefer_stored_entry(merge: Merge, group: Sequence[LoadedEntry]) -> Merge:
    """Change a merge so that the entry that stays is one that this memory wrote, if one of them is.

    The text that the model chose stays the same.
    """
    survivor = group[merge.keep]
    stored = next((number for number in merge.drop if group[number].written_at), None)
    is_filed = bool(survivor.written_at or read_entry_id(survivor.entry))
    if is_filed or stored is None or {survivor.row.expires, group[stored].row.expires} != {None}:
        return merge
    drop = tuple(merge.keep if number == stored else number for number in merge.drop)
    return replace(merge, keep=stored, drop=drop, text=merge.text or survivor.entry.body)


def _contains_words(survivor: LoadedEntry, removable: Iterable[LoadedEntry]) -> bool:
    """Return whether an entry has all significant words of the entries that would be removed for it.

    Another day or name would be another fact.
    """
    survivor_words = extract_features(survivor.entry.body) | STOP_WORDS
    return all(extract_features(each.entry.body) <= survivor_words for each in removable)


def _build_removal_step(same: DuplicateGroup) -> ChangeSet:
    return ChangeSet(
        tuple(map(_build_deletion, same.removable)), (Claim(same.survivor.path, same.survivor.digest),)
    )


def _build_merged_file(text: str, survivor: LoadedEntry, policy: Policy) -> bytes | None:
    """Return the file of an entry with a merged text, or None if a gate rejects the text.

    Args:
        text: the merged text.
        survivor: the entry whose file gets the text.
        policy: determines the gates.
    """
    description = shorten(clean_line(text), MAX_DESCRIPTION_CHARS)
    kind = survivor.entry.type or "reference"
    try:
        labels = {"name": derive_title(text), "description": description, "type": kind}
        data = encode(complete_front_matter(parse(f"{text}\n"), labels))
        check_entry(data, survivor.path.rel, policy.content)
    except ToolError:
        return None
    if is_risky(text, survivor.trust, policy):
        return None
    return data


def _build_deletion(loaded: LoadedEntry) -> FileChange:
    return FileChange(loaded.path, loaded.digest, None)
