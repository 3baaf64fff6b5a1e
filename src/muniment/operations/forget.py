"""Forget: remove the entries and list items that a query matches, and no other byte.

1. The query is checked: a query without a significant word is rejected.
2. The path or the handle of an entry matches that entry, without a query to a model. For other queries code
   searches the files themselves; the full-text rows of the catalog only show which files need not be read.
3. Some matches are retained, with a reason: the policy protects them, their trust is higher than the
   request's, or their removal would change the meaning of the rest. Texts that negate the words of the query,
   or state that these no longer apply, are retained too, unless the query does so itself
   (`content/negation.py`). A request below the owner's trust matches only entries that a recall may return
   (`operations/visibility.py`).
4. A language model, if configured, chooses the entries that the query describes. It sees the remaining
   matches, and then near entries, which share a word with the query (`recall/description_search.py`). It
   returns ids that code assigned, and cannot choose other entries (`agent/questions.py`). It has no tools and
   sees no path, so no confined worker is needed. Withheld and expired entries are not shown to it, and stay.
   If the model fails, the rules decide, unless the operator prefers an error (`JobContext.on_model_failure`).
5. Without a model, all remaining matches are removed. If none remains, the query may describe one entry in
   other words (`content/description.py`). This entry is removed if it is the only one with all words of the
   query in the same form, apart from question words, articles and auxiliary verbs. Either both or neither of
   query and entry must contain a negation. Otherwise the result lists near entries.
6. If there are more than `max_forget` matches, the query is too broad, and nothing is removed.
7. One commit removes all or none: a file is deleted, or loses the lines of its items and no other byte. If
   its name repeats the removed text, it is renamed (`operations/naming.py`). If a file changed in the
   meantime, the job is repeated once. A dry run writes nothing. A request with the digest of a preview
   removes exactly what the preview listed, or nothing. So does a request with chosen entries of a preview
   (`operations/matched_parts.py`): nothing is searched, and no model is queried, but every check of the
   policy and the trust is repeated.

After a failure of any kind nothing is removed. `undo` restores forgotten entries until they are erased.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import Final

from muniment import events
from muniment.agent.filing import RuleWriter
from muniment.agent.model import Model, ModelError
from muniment.agent.questions import MAX_OPTIONS, ModelQuery
from muniment.cancelling import Cancel
from muniment.content.admission import replace_if_rejected
from muniment.content.description import DescribedWords, SplitText, compute_weights
from muniment.content.entry import read_titles, shorten
from muniment.content.expiry import is_expired
from muniment.content.gates import clean_foreign_line, drop_invisible
from muniment.content.markdown import build_outline
from muniment.content.negation import has_denial, is_denied, is_ended
from muniment.content.words import build_vocabulary, find_significant_words
from muniment.errors import InvalidContent, JobFailed, MunimentError, StoreConflict
from muniment.kernel.change import FileChange
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.job import (
    MODEL_ADVICE,
    Job,
    describe_model_failure,
    determine_status,
    log_end,
    log_retry_or_raise,
    start_task,
)
from muniment.operations.job_context import (
    JobContext,
    LoadedEntry,
    find_removal_obstacle,
    load_entry,
)
from muniment.operations.matched_parts import (
    MatchedPart,
    build_change_set,
    find_part_obstacle,
    match_chosen,
    match_parts,
    match_whole_entry,
)
from muniment.operations.matching import (
    ForgetMatch,
    find_near_parts,
    is_one_passage,
    iterate_innermost,
    match_entry,
)
from muniment.operations.naming import choose_path
from muniment.operations.removals import (
    check_preview,
    compute_preview_digest,
    create_preview_error,
    list_forgotten,
)
from muniment.operations.renames import describe_renames, find_new_path
from muniment.operations.request import MAX_LISTED_PATHS, MAX_QUERY_BYTES, MAX_QUERY_WORDS, count_bytes
from muniment.operations.visibility import Reader, Visibility
from muniment.recall.description_search import DescriptionQuery, find_candidates
from muniment.recall.stems import Stemmer
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.commit import commit
from muniment.store.ledger import CommitRow
from muniment.store.passages import PERSON
from muniment.store.trust import TrustDecision
from muniment.store.upkeep import open_view
from muniment.types import EntryPart, ForgetRequest, ForgetResult, RemovedEntry, RetainedEntry
from muniment.types.keys import RootKey

KIND: Final = "forget"

ParsedQuery = CanonicalPath | Sequence[str]
"""A parsed query: the path of an entry, or words that must all be found."""

MAX_NEAR_ENTRIES: Final = 10
"""Maximum number of near entries that are searched for a model, and of those with lower trust."""

MAX_COMPARED_ENTRIES: Final = 40
"""Maximum number of near entries that the rules compare with a description, and of those with lower trust."""

_OUTDATED: Final = "it states that this no longer applies, and is the current fact"
_OPPOSITE: Final = "it states the opposite"
_HOW_TO_REMOVE: Final = "; to remove it, use its exact words or its path"

MAX_OFFERED: Final = 20
"""Maximum number of entries and parts that a result shows with their texts, so that a person can choose."""

MAX_QUERY_CHARS: Final = 1_000
"""Maximum number of characters of a query that a model sees, and that a result quotes."""


class _ForgetJob(Job):
    """One forget task, with the entries that its last attempt retained. All attempts use the same object."""

    kind = KIND

    def __init__(self, request: ForgetRequest, context: JobContext, model: Model, cancel: Cancel) -> None:
        super().__init__(context, model, cancel, request.trust, request.task_id, is_dry=request.dry_run)
        self.request = request
        self.query = drop_invisible(request.query).strip()
        self.retained: list[RetainedEntry] = []
        self.near: tuple[str, ...] = ()
        self.near_parts: tuple[EntryPart, ...] = ()
        self.failure_notes: list[str] = []
        self.visibility = Visibility(context, Reader(request.trust))

    def create_result(self) -> ForgetResult:
        """Return the result of this task for the case that it removed nothing."""
        return ForgetResult(
            **self.create_common_members(),
            status="preview" if self.is_dry else "completed",
            removed_entries=(),
            touched_topics=(),
            kept=tuple(self.retained),
            near=self.near,
            entries=self.near_parts,
        )

    def set_near(self, matches: Iterable[MatchedPart], parts: Iterable[MatchedPart]) -> None:
        """Set the near entries of the result.

        Args:
            matches: the near entries, the best first.
            parts: the same entries, or the parts of them that are near.
        """
        self.near = tuple(dict.fromkeys(each.removed.path for each in matches))[:MAX_LISTED_PATHS]
        listed_parts = (each.shown for each in parts if each.removed.path in self.near)
        self.near_parts = tuple(islice(listed_parts, MAX_OFFERED))

    def retain_trust(self, _draft: FileChange, previous_trust: Trust | None) -> TrustDecision:
        """Return the trust of a file that loses some items: the trust of its text before."""
        return TrustDecision(
            self.trust if previous_trust is None else previous_trust, author_trust=self.trust
        )


def forget(
    request: ForgetRequest, context: JobContext, model: Model, *, cancel: Cancel | None = None
) -> ForgetResult:
    """Remove what a query matches; return an error in the result's `error`, never raise it.

    Args:
        request: the query to forget.
        context: the policy, roots and state; the caller closes them.
        model: chooses the entries that the query describes; the embedded rules choose those with all its
            words.
        cancel: cancels the task; a commit that has begun to write is completed.

    Cost: a check of every file's status, and a read of those that may contain the words.
    """
    with start_task(KIND, "forgetting", cancel) as (used_cancel, task_span):
        job = _ForgetJob(request, context, model, used_cancel)
        try:
            result = _run_forget(job)
        except (MunimentError, ModelError) as problem:
            error = job.record_failure(problem)
            result = replace(job.create_result(), status=determine_status(error), error=error)
        removed = len(result.removed_entries) if result.status == "completed" else 0
        seconds = round(result.seconds, 3)
        log_end(KIND, result, task_span, removed=removed, turns=result.turns, seconds=seconds)
    return result


def _run_forget(task: _ForgetJob) -> ForgetResult:
    """Check the request and remove the matches; if the model fails, start again with the rules."""
    size = count_bytes(task.query)
    if size > MAX_QUERY_BYTES:
        raise InvalidContent(f"the query has {size} bytes; use at most {MAX_QUERY_BYTES}")
    earlier = task.find_earlier(task.context.state.compute_keyed_digest(task.query))
    if earlier is not None:
        return _create_repeated_result(task, earlier)
    scopes = task.context.select_scopes(task.request.scope)
    if task.request.chosen:
        task.decided_by = PERSON if task.trust is Trust.OWNER else RuleWriter.name
        task.start_budget(task.context.policy.limits)
        return _run_with_retry(task, (), scopes)
    named_entry = Visibility(task.context, task.visibility.reader).find_named_entry(task.query)
    parsed_query = named_entry or _parse_words(task.query)
    task.start_budget(task.context.policy.limits)
    try:
        return _run_with_retry(task, parsed_query, scopes)
    except ModelError as problem:
        if task.uses_rules or task.context.on_model_failure == "fail":
            raise
        why = clean_foreign_line(replace_if_rejected(str(problem), "it returned no valid response"))
    task.failure_notes = [
        f"{describe_model_failure(task.model.name, why)}; the rules decided; {MODEL_ADVICE}"
    ]
    events.emit("forget_by_rules", task_id=task.id, model=task.model.name)
    task.model = RuleWriter()
    task.decided_by = task.model.name
    return _run_with_retry(task, parsed_query, scopes)


def _create_repeated_result(task: _ForgetJob, done: CommitRow) -> ForgetResult:
    """Return the result of a task that committed earlier, from its commit in the ledger."""
    removed = list_forgotten(task.context, done)
    task.retained, task.notes = [], list(done.notes)
    return replace(
        task.create_result(),
        summary=f"already forgotten by this task: {_join_paths(removed) or 'erased since'}",
        repeated=True,
        removed_entries=removed,
        touched_topics=_list_topics(removed) if done.touched_scopes else (),
        touched_scopes=done.touched_scopes,
    )


def _run_with_retry(task: _ForgetJob, parsed_query: ParsedQuery, scopes: Sequence[Scope]) -> ForgetResult:
    """Run one attempt; if another process wrote during the commit, retry once."""
    try:
        return _run_attempt(task, parsed_query, scopes)
    except StoreConflict as conflict:
        log_retry_or_raise(task.context.policy, KIND, task.id, conflict)
    return _run_attempt(task, parsed_query, scopes)


def _parse_words(query: str) -> tuple[str, ...]:
    """Return the words of a query, which a match must all contain.

    Raises:
        InvalidContent: the query has no significant word, or too many.
    """
    words = find_significant_words(query)
    if words:  # One letter or digit distinguishes "rack B" from "rack C".
        words += tuple(word for word in DescribedWords.from_text(query).words if len(word) == 1)
    else:
        raise InvalidContent(
            "the query contains no significant word; nothing was removed; describe what to forget"
        )
    if len(words) > MAX_QUERY_WORDS:
        raise InvalidContent(f"the query has {len(words)} significant words; use at most {MAX_QUERY_WORDS}")
    return words


def _run_attempt(task: _ForgetJob, parsed_query: ParsedQuery, scopes: Sequence[Scope]) -> ForgetResult:
    """Find the matches once, choose among them and commit their removal."""
    task.retained, task.notes, task.near, task.near_parts = [], [*task.failure_notes], (), ()
    context = task.context
    task.visibility = Visibility(context, Reader(task.trust))
    views = [open_view(context.state, context.roots[scope], context.policy, sweep=True) for scope in scopes]
    matches = _load_chosen(task, views) if task.request.chosen else _search(task, views, parsed_query)
    # Check this before anything is removed from a text: that parses the whole file for each item.
    if (problem := _find_excess(matches, task.context.policy.changes.max_forget)) is not None:
        return _reject_excess(task, matches, problem)
    change_set, separable = build_change_set(matches, task.retained)
    if task.request.chosen and len(separable) < len(matches):
        raise JobFailed(f"{task.retained[-1].reason}; nothing was removed", code="forget_failed")
    removed, entries = _describe_matches(separable)
    digest = compute_preview_digest(context, KIND, [change_set])
    check_preview(task.request.digest, digest, is_dry=task.is_dry)
    options = replace(
        task.create_commit_options(task.retain_trust),
        rename_replaced=choose_path,
        is_reviewed=task.trust is Trust.OWNER,
    )
    done = commit([change_set], options)
    if (earlier := task.find_faster_commit(done)) is not None:
        return _create_repeated_result(task, earlier)
    task.notes += [*done.notes, *describe_renames(done.changes)]
    verb = "would forget" if task.is_dry else "forgot"
    return replace(
        task.create_result(),
        removed_entries=removed,
        entries=entries or task.near_parts,
        touched_topics=_list_topics(removed) if done.touched_scopes and not task.is_dry else (),
        touched_scopes=() if task.is_dry else done.touched_scopes,
        digest=digest if task.is_dry else None,
        summary=f"{verb} {len(removed)}: {_join_paths(removed)}"
        if removed
        else _describe_no_match(task, parsed_query),
    )


def _search(task: _ForgetJob, views: Sequence[View], parsed_query: ParsedQuery) -> list[MatchedPart]:
    """Return the entries and parts that a query matches and that may be removed."""
    matches = [match for view in views for match in _find_matches(task, view, parsed_query)]
    if isinstance(parsed_query, CanonicalPath):
        return matches
    matches = _exclude_negated(task, matches, parsed_query)
    if matches and task.uses_rules:
        return matches
    with closing(Stemmer()) as stemmer:
        description = DescriptionQuery(task.query, stemmer)
        near = _find_near(task, views, matches, description)
        if task.uses_rules:
            return _find_described(task, near, description)
        return _query_described(task, matches, near)


def _load_chosen(task: _ForgetJob, views: Sequence[View]) -> list[MatchedPart]:
    """Return the entries and parts that a person chose from a preview.

    Raises:
        JobError: an entry changed, or may not be removed by this request; its code is `preview_changed`.
    """
    chosen: dict[CanonicalPath, list[EntryPart]] = {}
    for part in task.request.chosen:
        chosen.setdefault(task.context.resolve_path(part.path), []).append(part)
    judge, found = PolicyEvaluator(task.context.policy), list[MatchedPart]()
    for path, parts in chosen.items():
        task.budget.check()
        row = next((view.entry(path.rel) for view in views if view.scope == path.scope), None)
        loaded = None if row is None else load_entry(task.context, path.scope, row)
        matches = None
        if row is not None and loaded is not None and loaded.is_unchanged:
            is_open = task.visibility.can_list(path, row) and task.visibility.can_quote(loaded)
            obstacle = find_removal_obstacle(judge, path, loaded.highest_trust, task.request.trust)
            matches = match_chosen(loaded, parts) if is_open and obstacle is None else None
        if matches is None:
            raise create_preview_error()
        found += matches
    return found


def _describe_matches(
    matches: Sequence[MatchedPart],
) -> tuple[tuple[RemovedEntry, ...], tuple[EntryPart, ...]]:
    """Return matches as a result reports their removal, and as texts for a person; too many have no texts."""
    shown = tuple(match.shown for match in matches) if len(matches) <= MAX_OFFERED else ()
    return tuple(match.removed for match in matches), shown


def _describe_no_match(task: _ForgetJob, parsed_query: ParsedQuery) -> str:
    """Return the summary of a forget that removed nothing.

    The summary does not show whether entries matched and were retained, or none matched. So it discloses
    nothing to a reader without access.
    """
    if isinstance(parsed_query, CanonicalPath):
        new_path = find_new_path(task.context, parsed_query) if task.trust is Trust.OWNER else None
        hint = "" if new_path is None else f"; it is now {new_path.text}"
        return f"entry {parsed_query.text} not found{hint}"
    word_list = shorten(", ".join(parsed_query), MAX_QUERY_CHARS)
    summary = f"no single entry matches: {word_list}; use its path or more of its words"
    if not task.uses_rules:
        summary = "this describes no entry that may be removed"
    return f"{summary}; similar entries: {', '.join(task.near)}" if task.near else summary


def _join_paths(removed: Iterable[RemovedEntry]) -> str:
    return ", ".join(dict.fromkeys(each.path for each in removed))


def _list_topics(removed: Iterable[RemovedEntry]) -> tuple[str, ...]:
    return tuple(sorted({each.topic for each in removed}))


def _find_excess(matches: Sequence[MatchedPart], limit: int) -> str | None:
    """Return the problem if more entries match than one forget may remove, else None."""
    if len(matches) <= limit:
        return None
    return f"this matches {len(matches)} items, and one forget may remove {limit}; use more words"


def _reject_excess(task: _ForgetJob, matches: Sequence[MatchedPart], problem: str) -> ForgetResult:
    """Return a preview of too many matches in a dry run; otherwise raise an error that lists some of them."""
    if task.is_dry:
        task.notes.append(problem)
        removed, entries = _describe_matches(matches)
        return replace(task.create_result(), removed_entries=removed, entries=entries, summary=problem)
    paths = list(dict.fromkeys(match.removed.path for match in matches))
    listed_paths, more = paths[:MAX_LISTED_PATHS], ", …" if len(paths) > MAX_LISTED_PATHS else ""
    raise JobFailed(
        f"{problem}; nothing was removed. Matches: {', '.join(listed_paths)}{more}",
        code="forget_failed",
        paths=listed_paths,
        meant=len(matches),
        limit=task.context.policy.changes.max_forget,
    )


def _find_matches(task: _ForgetJob, view: View, parsed_query: ParsedQuery) -> Iterator[MatchedPart]:
    """Yield the matches in one scope that may be removed; add the others to the retained entries."""
    context, judge, scope = task.context, PolicyEvaluator(task.context.policy), view.scope
    requested_path = parsed_query if isinstance(parsed_query, CanonicalPath) else None
    candidates = (
        None
        if isinstance(parsed_query, CanonicalPath)
        else find_candidates(context.state, view, parsed_query)
    )
    for row in view.entries():
        if requested_path is not None and (scope, row.rel) != (requested_path.scope, requested_path.rel):
            continue
        if candidates is not None and row.rel not in candidates and row.held is None:
            continue
        if not task.visibility.can_list(CanonicalPath(scope, row.rel), row):
            continue
        task.budget.check()
        loaded = load_entry(context, scope, row)
        if loaded is None:
            continue
        if not loaded.is_unchanged:
            raise StoreConflict(
                (loaded.path.text,)
            )  # Edited since the view was created: the attempt is repeated.
        if not task.visibility.can_quote(loaded):
            continue
        yield from _match_entry(task, judge, loaded, parsed_query)


def _match_entry(
    task: _ForgetJob, judge: PolicyEvaluator, loaded: LoadedEntry, parsed_query: ParsedQuery
) -> Iterator[MatchedPart]:
    path, entry = loaded.path, loaded.entry
    found = (
        ForgetMatch(is_whole=True)
        if isinstance(parsed_query, CanonicalPath)
        else match_entry(entry, path.rel, parsed_query)
    )
    if found is None:
        return
    reason = find_removal_obstacle(judge, path, loaded.highest_trust, task.request.trust)
    if reason is None and not found.is_whole:
        if not found.items and not task.uses_rules:
            return  # The model sees its parts.
        reason = find_part_obstacle(loaded, found.items)
    if reason is not None:
        task.retained.append(RetainedEntry(path.text, reason))
        return
    if found.is_whole:
        yield match_whole_entry(loaded)
    if found.is_labelled:
        task.notes.append(f"{path.text}: its name or description also contains it, and stays")
    yield from match_parts(loaded, entry, found.items)


def _exclude_negated(
    task: _ForgetJob, matches: Sequence[MatchedPart], words: Sequence[str]
) -> list[MatchedPart]:
    """Return the matches that do not state the opposite of the query or that it no longer applies.

    The other matches are added to the retained entries. If all matches are negated, the query is about them,
    and all are returned.
    """
    if has_denial(task.query):
        return list(matches)

    def find_words(text: str) -> frozenset[str]:
        text_words = build_vocabulary(text)
        return frozenset(word for word in words if text_words.contains_all([word]))

    remaining: list[MatchedPart] = []
    for match in matches:
        if match.loaded.row.held is None and is_ended(match.body, find_words):
            task.retained.append(RetainedEntry(match.removed.path, f"{_OUTDATED}{_HOW_TO_REMOVE}"))
        else:
            remaining.append(match)
    negated = [
        match for match in remaining if match.loaded.row.held is None and is_denied(match.body, find_words)
    ]
    if len(negated) == len(remaining):
        return remaining
    newest = max(match.loaded.written_at for match in remaining if match not in negated)
    for match in negated:
        is_current = match.loaded.written_at > newest
        why = f"{_OPPOSITE}{', and is the current fact' if is_current else ''}{_HOW_TO_REMOVE}"
        task.retained.append(RetainedEntry(match.removed.path, why))
    return [match for match in remaining if match not in negated]


def _find_near(
    task: _ForgetJob, views: Sequence[View], matches: Sequence[MatchedPart], description: DescriptionQuery
) -> Iterator[MatchedPart]:
    """Yield near entries, which share a word with the query, the best first.

    Entries that match, are retained or may not be removed are omitted.
    """
    context, judge, by_key = (
        task.context,
        PolicyEvaluator(task.context.policy),
        {RootKey(view.key): view for view in views},
    )
    excluded_paths = {match.removed.path for match in matches} | {each.path for each in task.retained}
    skip_outdated = not has_denial(task.query)
    search_options: tuple[int, Iterable[str]] = (MAX_NEAR_ENTRIES, ())
    if task.uses_rules:
        search_options = (MAX_COMPARED_ENTRIES, DescribedWords.from_text(task.query).list_prefixes())
    for key, rel in description.find_nearest(context.state, tuple(by_key), timestamp(), *search_options):
        task.budget.check()
        view = by_key[key]
        row = view.entry(rel)
        loaded = None if row is None else load_entry(context, view.scope, row)
        if row is None or loaded is None or not loaded.is_unchanged:
            continue
        if not task.visibility.can_list(loaded.path, row) or not task.visibility.can_quote(loaded):
            continue
        if loaded.path.text in excluded_paths:
            continue
        if find_removal_obstacle(judge, loaded.path, loaded.highest_trust, task.request.trust) is not None:
            continue
        yield from (
            each
            for each in _find_near_parts(loaded, None if task.uses_rules else description)
            if not (skip_outdated and is_ended(each.body, description.find_words_in))
        )


def _find_near_parts(loaded: LoadedEntry, description: DescriptionQuery | None) -> Iterator[MatchedPart]:
    """Yield the parts of an entry that are near a description, or the whole entry.

    If `description` is None, it is always the whole entry.
    """
    entry = loaded.entry
    parts = None if description is None else find_near_parts(entry, description.find_words_in)
    if parts is None:
        yield match_whole_entry(loaded)
    elif parts and find_part_obstacle(loaded, parts) is None:
        yield from match_parts(loaded, entry, parts)


def _find_described(
    task: _ForgetJob, found_near: Iterable[MatchedPart], description: DescriptionQuery
) -> list[MatchedPart]:
    """Return the one match that the query describes in other words; if none or several, list near entries.

    Args:
        task: the job; no entry contains all words of its query.
        found_near: the near entries that may be removed, each as a whole.
        description: the query, which finds the near parts of these entries.
    """
    near = list(found_near)
    words = DescribedWords.from_text(task.query)
    texts = [SplitText.from_text(each.model_text) for each in near]
    described = [match for match, text in zip(near, texts, strict=True) if words.is_contained_in(text)]
    if len(described) == 1 and words.is_specific and not task.retained:
        (match,) = described
        found = _find_described_part(match, words)
        if found is not None and has_denial(found.body) is has_denial(task.query):
            task.notes.append(
                "no entry has all of these words; only this one has all except question words and articles"
            )
            return [found]
    weights = compute_weights(words, texts)
    ordered = sorted(zip(near, texts, strict=True), key=lambda each: -words.compute_share(each[1], weights))
    persons = [match for match, _ in ordered if match.loaded.trust.satisfies(Trust.WORKSPACE)]
    others = [match for match, _ in ordered if not match.loaded.trust.satisfies(Trust.WORKSPACE)]
    # Entries of agents get at most every other position, however many there are.
    near = [match for pair in zip_longest(persons, others) for match in pair if match is not None]
    task.set_near(near, chain.from_iterable(_find_near_parts(each.loaded, description) for each in near))
    return []


def _find_described_part(match: MatchedPart, words: DescribedWords) -> MatchedPart | None:
    """Return the described entry, or its only part with the words; None if neither can be removed."""
    loaded, entry = match.loaded, match.loaded.entry
    parts = build_outline(entry.body).parts
    if is_one_passage(parts):
        return match
    label = "\n".join([read_titles(entry, loaded.path.rel).name, *entry.keywords])
    described = [
        part
        for part in iterate_innermost(parts)
        if words.is_contained_in(SplitText.from_text(f"{label}\n{part.own_text}"))
    ]
    if (
        len(described) != 1
        or words.is_contained_in(SplitText.from_text(label))
        or find_part_obstacle(loaded, described)
    ):
        return None
    (found,) = match_parts(loaded, entry, described)
    return found


def _query_described(
    task: _ForgetJob, matches: Sequence[MatchedPart], near: Iterable[MatchedPart]
) -> list[MatchedPart]:
    """Return the entries that a model chooses among the matches and the near entries."""
    now = timestamp()
    visible: list[MatchedPart] = []
    for match in matches:
        row = match.loaded.row
        if row.held is not None:
            task.retained.append(RetainedEntry(match.removed.path, "its text is withheld from models"))
        elif is_expired(row.expires, now):
            task.retained.append(
                RetainedEntry(match.removed.path, "it has expired: the next dream removes it")
            )
        else:
            visible.append(match)
    if len(visible) > MAX_OPTIONS:
        return visible  # Too many for one query are also too many to be removed.
    options = [*visible, *islice(near, MAX_OPTIONS - len(visible))]
    if not options:
        return []
    query = ModelQuery(task.model, task.budget)
    chosen = query.choose_forgotten(
        shorten(task.query, MAX_QUERY_CHARS), [each.model_text for each in options]
    )
    omitted_count = len(visible) - sum(number < len(visible) for number in chosen)
    if omitted_count:
        task.notes.append(
            f"{task.model.name} left out {omitted_count} of {len(visible)} that contain these words"
        )
    if not chosen:
        task.set_near(options, options)
    return [options[number] for number in chosen]
