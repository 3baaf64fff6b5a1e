"""The views of the page: each function reads the memory and returns the values for its template."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate, islice, takewhile
from typing import Any, Final
from urllib.parse import quote_plus

from muniment.content.entry import PROVENANCE_KEY, is_pinned, parse
from muniment.content.gates import clean_foreign_line, clean_line, decode
from muniment.content.titles import derive_title, read_current_titles
from muniment.errors import Erased, MunimentError, NotFound, PendingReview
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import digest
from muniment.kernel.names import RelPath, Scope, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.lab.attempts.offer import inspect_system, suggest_remedy
from muniment.lab.attempts.trial import Trial, run_trial
from muniment.lab.explain import explain_decision
from muniment.names import FenceLayer, __version__
from muniment.operations.edit import check_editable
from muniment.operations.fact_changes import FactChange, merge_changes, merge_steps
from muniment.operations.job_context import JobContext
from muniment.operations.review import STATE_TEXTS, list_pending, load_history, load_origin, show_review
from muniment.operations.undoable import load_task_steps
from muniment.policy.load import ACTS, REMOVAL
from muniment.server import lane_tasks
from muniment.server.contract import MAX_BODY_BYTES, HttpProblem, get_sentence
from muniment.server.page.call import PageCall
from muniment.server.page.changes import (
    TaskItem,
    hide_titles,
    list_task_items,
)
from muniment.server.page.rendering import DAYS, build_timeline, render_markdown
from muniment.store import tasks as outbox
from muniment.store.audit import read_head, read_records, verify
from muniment.store.catalog import CatalogEntry, View
from muniment.store.handles import build_task_handle
from muniment.store.ledger import (
    CommitRow,
    build_changes,
    count_by_day,
    find_commit,
    find_redos,
    find_undoing_task,
    read_content_after,
    read_content_before,
)
from muniment.store.review import PendingChange, find_pending, format_difference, load_pending
from muniment.store.tasks import QueuedTask
from muniment.store.upkeep import open_view
from muniment.types import CommittedStep

PAGE_SIZE: Final = 100
"""Maximum number of entries, tasks or records in one view."""

MAX_RECENT_ITEMS: Final = 5
"""Maximum number of tasks in the list of recent changes of the first view."""

MAX_RECENT_STEPS: Final = 40
"""Maximum number of steps that this list reads."""

MAX_HISTORY_STEPS: Final = 20
"""Maximum number of changes in the history of an entry; each is displayed with its diff."""

MAX_DIFF_CHARS: Final = 20_000
"""Maximum characters of one diff, rounded up to the end of a line."""

MAX_TOPICS: Final = 200
"""Maximum number of folders in the list of folders."""

MAX_SKIPPED: Final = 50
"""Maximum number of skipped names in the list."""

MAX_RESULTS: Final = 20
"""Maximum number of entries in the results of a search."""

MAX_RESULT_TOKENS: Final = 4_000
"""Maximum number of tokens of all texts in the results of a search together."""

ATTEMPT_SECONDS: Final = 60.0
"""Time limit in seconds for all attempts to break the confinement together; they take half a second."""

TemplateValues = Mapping[str, Any]
BuildValues = Callable[[JobContext, PageCall], TemplateValues]


# -- memory ------------------------------------------------------------------------------------------


def memory(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for the list of entries of a scope, with its topics and the recent changes."""
    scope = call.query("scope") or next(iter(context.roots), "")
    views = _open_views(context)
    selected = views.get(Scope(scope))
    if selected is None:
        raise HttpProblem("invalid_scope")
    topic = call.query("topic") if "topic" in call.request.query_params else None
    found = selected.entries_after(call.query("after"), PAGE_SIZE + 1, topic)
    topics = selected.topics()
    counts = [(each, view.usage().files) for each, view in views.items()]
    recent, is_withheld = load_history(context, limit=MAX_RECENT_STEPS), _create_withheld_check(views)
    redos = find_redos(context.state)
    return {
        "scope": scope,
        "counts": counts,
        "is_new": not (recent or any(count for _, count in counts)),
        "topic": topic,
        "topics": topics[:MAX_TOPICS],
        "topics_left": max(0, len(topics) - MAX_TOPICS),
        "entries": [_describe_entry(scope, each) for each in found[:PAGE_SIZE]],
        "more": found[PAGE_SIZE - 1].rel if len(found) > PAGE_SIZE else "",
        "after": call.query("after"),
        "skipped": selected.list_odd_names()[:MAX_SKIPPED],
        "recent": [*islice(list_task_items(recent, is_withheld, redos, MAX_RECENT_STEPS), MAX_RECENT_ITEMS)],
        "is_complete": selected.is_complete,
    }


def _open_views(context: JobContext) -> dict[Scope, View]:
    return {each: open_view(context.state, bound, context.policy) for each, bound in context.roots.items()}


def _describe_entry(scope: str, row: CatalogEntry) -> TemplateValues:
    """Return the values for an entry in a list.

    A title that was cut is replaced by the longer description. A description that only repeats the title is
    omitted. The title of a withheld entry is not shown.
    """
    path = f"{scope}/{row.rel}"
    if row.held or not row.readable:
        return {"row": row, "path": path, "text": row.rel, "about": ""}
    text, about = row.name, row.description
    if about and derive_title(about) == text:
        text, about = (about, "") if text.endswith("…") else (text, "")
    return {"row": row, "path": path, "text": text, "about": "" if about == text else about}


def _create_withheld_check(views: Mapping[Scope, View]) -> Callable[[str], bool]:
    """Return a function that returns whether the entry at a path is withheld from models."""

    def is_withheld(path: str) -> bool:
        scope, _, rel = path.partition("/")
        row = views[Scope(scope)].entry(RelPath(rel))
        return row is not None and row.held is not None

    return is_withheld


# -- entry -------------------------------------------------------------------------------------------


def entry(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for one entry: its text, its history and its origin."""
    path, data = _read_entry(context, call.query("path"))
    steps = load_history(context, path.text, MAX_HISTORY_STEPS)
    if data is None and not steps:
        raise NotFound(f"entry {path.text} not found, now or in the history")
    row = _find_row(context, path)
    items = list_task_items(steps, lambda _: False, find_redos(context.state))
    return {
        "path": path.text,
        "why": _find_origin(context, path.text),
        "states": STATE_TEXTS,
        "row": row,
        "at": row.at if row else steps[0].at if steps else "",
        "handle": row.handle if row else next((each.handle for each in steps), ""),
        "digest": "" if data is None else digest(data),
        "is_raw": bool(call.query("raw")),
        "is_pinned": is_pinned(path.rel),
        "is_editable": data is not None and _is_editable(context, path, data),
        "is_too_long": data is not None and not _fits_form(data),
        "name": _choose_name(path, data, steps),
        "text": None if data is None else data.decode("utf-8", "replace"),
        "html": None if data is None else render_markdown(parse(data).body),
        "history": [_describe_step(context, each) for each in items],
        "is_cut": len(steps) == MAX_HISTORY_STEPS,
    }


def edit(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for the form that edits the body of an entry."""
    path, data = _read_entry(context, call.query("path"))
    if data is None:
        raise NotFound(f"entry {path.text} not found")
    check_editable(context, path)
    if not _fits_form(data):
        raise HttpProblem("body_too_large")
    return build_edit_form(context, path.text, parse(decode(data)).body, digest(data))


def build_edit_form(
    context: JobContext, path: str, body: str, read_digest: str, problem: str = ""
) -> TemplateValues:
    """Return the values for the form that edits the body of an entry.

    The form displays the front matter too, because the user who saves is responsible for the whole file.

    Args:
        context: the policy and the roots.
        path: path of the entry, as the user sent it.
        body: the text in the form.
        read_digest: digest of the file from which the user started.
        problem: why the text was not saved; empty for a new form.
    """
    front_matter: list[str] = []
    name = path
    with suppress(MunimentError):  # If the entry was deleted or the path is invalid, `problem` explains it.
        found, data = _read_entry(context, path)
        name, entry = _choose_name(found, data, ()), parse(data or b"")
        lines = entry.text[: len(entry.text) - len(entry.body)].splitlines()[1:-1]
        front_matter = [line for line in lines if not line.startswith(f"{PROVENANCE_KEY}:")]
    return {
        "path": path,
        "name": name,
        "front_matter": "\n".join(front_matter),
        "body": body,
        "digest": read_digest,
        "problem": problem,
    }


def _read_entry(context: JobContext, unsafe_path: str) -> tuple[CanonicalPath, bytes | None]:
    """Return the path of an entry and the bytes of its file; the bytes are None if the file is missing."""
    path = context.resolve_path(unsafe_path)
    try:
        return path, context.read_file(path)
    except NotFound:
        return path, None


def _find_row(context: JobContext, path: CanonicalPath) -> CatalogEntry | None:
    return open_view(context.state, context.roots[path.scope], context.policy).entry(path.rel)


def _find_origin(context: JobContext, path: str) -> object:
    with suppress(NotFound, Erased):
        return load_origin(context, path)
    return None


def _choose_name(path: CanonicalPath, data: bytes | None, steps: Sequence[CommittedStep]) -> str:
    """Return the title of an entry; of a missing one, its last title."""
    if data is None:
        return next((each.title for each in steps if each.title), path.name.removesuffix(FILE_SUFFIX))
    return clean_line(read_current_titles(parse(data), path.rel).name)


def _is_editable(context: JobContext, path: CanonicalPath, data: bytes) -> bool:
    try:
        check_editable(context, path)
        decode(data)
    except MunimentError:
        return False
    return True


def _fits_form(data: bytes) -> bool:
    """Return whether a browser can send `data` back in a form, which may encode each byte as three."""
    return len(quote_plus(data)) < MAX_BODY_BYTES // 2


def _describe_step(context: JobContext, item: TaskItem) -> TemplateValues:
    """Return the values for a change of an entry: the first lines of its diff, and how many remain.

    If the diff is no longer available, the lines are None, not empty.
    """
    others, lines = 0, None
    if item.can_undo and (done := find_commit(context.state, item.step.task)):
        others = len(done.changes) - len(item.paths)
    if not item.step.is_erased:
        with suppress(Erased, NotFound):
            lines = _diff(context, item.changes[0], item.step.task)
    ends = accumulate(len(line) for line in lines or ())
    line_count = sum(1 for _ in takewhile(lambda end: end <= MAX_DIFF_CHARS, ends)) + 1
    return {
        "item": item,
        "others": others,
        "lines": lines and lines[:line_count],
        "left": max(0, len(lines or ()) - line_count),
    }


def _diff(context: JobContext, change: FactChange, task: str) -> tuple[str, ...]:
    """Return the lines of the difference between two versions of an entry, also if it was renamed.

    Raises:
        Erased, NotFound: the text before or after the change is no longer known.
    """
    new = context.resolve_path(change.path)
    old = context.resolve_path(change.previous_path or change.path)
    key = context.read_root_key(new.scope)
    before = read_content_before(context.state, key, old, task)
    return tuple(format_difference(before, read_content_after(context.state, key, new, task)))


# -- search ------------------------------------------------------------------------------------------


def search(_: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for a search: the matching entries.

    Unlike a recall of an agent, the search is not recorded in the ledger.
    """
    query = call.query("q").strip()
    deadline = Deadline(time.monotonic() + ATTEMPT_SECONDS)
    recaller = call.workspace.get_recaller()
    found = (
        recaller.recall(query, limit=MAX_RESULTS, budget=MAX_RESULT_TOKENS, deadline=deadline)
        if query
        else None
    )
    if found is not None and found.error is not None:
        raise found.error
    return {"q": query, "found": found}


# -- reviews -----------------------------------------------------------------------------------------


def reviews(context: JobContext, _: PageCall) -> TemplateValues:
    """Return the values for the list of pending reviews."""
    return {"reviews": [(each, list_proposed_facts(each)) for each in list_pending(context)]}


def review(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for one pending review, with the changes that an approval would commit."""
    review_id = call.query("id")
    preview = show_review(review_id, context)
    pending = load_pending(context.state, review_id)
    return {
        "review": pending,
        "changes": list_proposed_facts(pending),
        "lines": preview.text.splitlines(),
        "digest": preview.digest,
    }


def list_proposed_facts(pending: PendingChange) -> list[FactChange]:
    """Return the changes of facts that a pending review proposes."""
    items = pending.change_set.changes
    before = {each.path.text: (each.path, each.before) for each in items if each.before is not None}
    found = []
    for each in merge_changes(build_changes(items)):
        if each.kind == "changed" and not each.old and each.path in before:
            path, content = before[each.path]
            old = clean_foreign_line(read_current_titles(parse(content), path.rel).name)
            found.append(replace(each, old=old))
        else:
            found.append(each)
    return found


# -- tasks -------------------------------------------------------------------------------------------


def tasks(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for the list of tasks, newest first."""
    before = call.query("before")
    if before and not before.isdecimal():
        raise HttpProblem("invalid_request")
    before_seq = int(before[:18]) if before else None
    found = lane_tasks.list_tasks(
        context.state.ledger, call.workspace.key, before=before_seq, limit=PAGE_SIZE + 1
    )
    is_withheld = _create_withheld_check(_open_views(context))
    return {
        "tasks": [_describe_task(context, each, is_withheld) for each in found[:PAGE_SIZE]],
        "more": str(found[PAGE_SIZE - 1].seq) if len(found) > PAGE_SIZE else "",
    }


def task(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for one task, its turns and its changes."""
    task_id = call.query("id")
    found = lane_tasks.find_task(context.state.ledger, call.workspace.key, task_id)
    done = find_commit(context.state, task_id)
    if found is None and (done is None or not _is_in_workspace(context, done)):
        raise HttpProblem("task_not_found")
    events = [
        each.data for each in outbox.read_task_events(context.state.ledger, task_id) if each.type == "task"
    ]
    error = {name: value for name, value in ((found and found.error) or {}).items() if name != "code"}
    steps = () if done is None else load_task_steps(context, task_id)
    is_withheld = _create_withheld_check(_open_views(context))
    return {
        "id": task_id,
        "handle": build_task_handle(task_id),
        "details": found and _describe_task(context, found, is_withheld),
        "run": done and done.run,
        "turns": [each for each in events if "turn" in each],
        "detail": json.dumps(error, ensure_ascii=False) if error else "",
        "changes": [hide_titles(each, is_withheld) for each in merge_steps(steps)],
        "is_redo": task_id in find_redos(context.state),
        "undone_by": find_undoing_task(context.state, task_id) if steps else None,
        "similar": [
            (each["path"], read_title(context, each["path"]))
            for each in ((found and found.result) or {}).get("similar", ())
        ],
    }


def read_title(context: JobContext, path: str) -> str:
    """Return the title of an entry for a list; if the entry is missing or withheld, its path."""
    with suppress(MunimentError):
        row = _find_row(context, context.resolve_path(path))
        if row is not None and row.readable and not row.held:
            return clean_line(row.name)
    return path


def _is_in_workspace(context: JobContext, done: CommitRow) -> bool:
    """Return whether all scopes of a commit belong to this workspace; a commit records no workspace."""
    return context.map_keys_to_scopes().keys() >= {each.root for each in done.changes}


def _describe_task(
    context: JobContext, found: QueuedTask, is_withheld: Callable[[str], bool]
) -> TemplateValues:
    """Return the values for a task: its request if it is still stored, its facts, and its result or error."""
    arguments, error = found.arguments or {}, found.error
    problem = f"{get_sentence(error['code'])} [{error['code']}]" if error else ""
    facts: Sequence[FactChange] = ()
    pending = None
    if found.status == "completed":
        steps = load_task_steps(context, found.id)
        facts = [hide_titles(each, is_withheld) for each in merge_steps(steps)]
    elif error is not None and error["code"] == PendingReview.code:
        pending = find_pending(context.state, found.id)
        facts = list_proposed_facts(pending) if pending else ()
    request = clean_line(str(arguments.get("content") or arguments.get("query") or ""))
    summary = problem or str((found.result or {}).get("summary", ""))
    return {
        "task": found,
        "status": "needs review" if pending else found.status,
        "review_id": pending.id if pending else None,
        "request": request,
        "title": facts[0].title if facts else request or summary,
        "others": max(0, len(facts) - 1),
        "summary": summary,
    }


# -- timeline ----------------------------------------------------------------------------------------


def show_timeline(context: JobContext, _: PageCall) -> TemplateValues:
    """Return the values for the timeline: the changes of the memory by day."""
    today = datetime.now(UTC).date()
    counts = count_by_day(
        context.state, context.map_keys_to_scopes(), (today - timedelta(days=DAYS)).isoformat()
    )
    chart = build_timeline(counts, tuple(context.roots), today)
    recent, is_withheld = load_history(context, limit=PAGE_SIZE), _create_withheld_check(_open_views(context))
    return {
        "timeline": chart,
        "recent": [*list_task_items(recent, is_withheld, find_redos(context.state), PAGE_SIZE)],
    }


# -- audit -------------------------------------------------------------------------------------------


def audit(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for the newest audit records; if requested, verify the chain and add the result."""
    found = read_records(context.state, latest=PAGE_SIZE)
    rows = [
        (each, "(erased)" if each.body is None else json.dumps(each.body, ensure_ascii=False))
        for each in reversed(found)
    ]
    return {
        "records": rows,
        "head": str(read_head(context.state)),
        "verified": verify(context.state) if call.query("verify") else None,
    }


# -- health ------------------------------------------------------------------------------------------


_ATTEMPT_LOCK: Final = threading.Lock()


@cache
def _run_attempts() -> tuple[str, Trial]:
    """Run the attempts to break the confinement, and return the current time and the results.

    The return value is cached until the user requests another check.

    Raises:
        MunimentError, OSError: the attempts could not run.
    """
    trial = run_trial(time.monotonic() + ATTEMPT_SECONDS)
    return datetime.now(UTC).isoformat(timespec="seconds"), trial


def health(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for the state of the daemon and the confinement of a worker."""
    problem, checked_at, layers, findings = (
        "",
        "",
        list[tuple[str, bool, str]](),
        list[tuple[str, str, str]](),
    )
    required = context.policy.confinement.require
    confinement = None
    try:
        with _ATTEMPT_LOCK:
            if call.query("again"):
                _run_attempts.cache_clear()
            checked_at, trial = _run_attempts()
    except (MunimentError, OSError) as error:
        problem = str(error)
    else:
        system, confinement = inspect_system(), trial.confinement
        for each in FenceLayer:
            is_active = each not in confinement.missing
            advice_text = "" if is_active else suggest_remedy(each, trial.reported.get(each), system)
            layers.append((each, is_active, advice_text))
        findings = [(each.attempt.what, each.verdict, each.why) for each in trial.findings]
    return {
        "problem": problem,
        "checked_at": checked_at,
        "layers": layers,
        "findings": findings,
        "confinement": confinement,
        "required": required,
        "is_met": confinement is not None and confinement.enforcement.satisfies(required),
        "model": call.core.model.name,
        "version": __version__,
        "notes": context.notes,
        "roots": [
            (scope, str(bound.trusted_path), *_read_usage(context, bound))
            for scope, bound in context.roots.items()
        ],
    }


def _read_usage(context: JobContext, bound: BoundRoot) -> tuple[int, int, bool]:
    view: View = open_view(context.state, bound, context.policy)
    used = view.usage()
    return used.files, used.bytes, view.is_complete


# -- policy ------------------------------------------------------------------------------------------


def policy(context: JobContext, call: PageCall) -> TemplateValues:
    """Return the values for the policy and, if a path was sent, for the policy's decision about it."""
    act, path = call.query("verb") or Verb.READ, call.query("path")
    if act not in ACTS:
        raise HttpProblem("invalid_request")
    explained = (
        explain_decision(context.policy, Verb(act) if act in list(Verb) else REMOVAL, path) if path else None
    )
    return {
        "acts": ACTS,
        "act": act,
        "path": path,
        "explained": explained,
        "text": context.policy.text,
        "digest": context.policy.digest,
    }


VIEWS: Final[Mapping[str, BuildValues]] = {
    "memory": memory,
    "entry": entry,
    "edit": edit,
    "search": search,
    "reviews": reviews,
    "review": review,
    "tasks": tasks,
    "task": task,
    "timeline": show_timeline,
    "audit": audit,
    "health": health,
    "policy": policy,
}
"""For each view, the function that returns the values for its template."""
