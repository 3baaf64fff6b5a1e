"""The views of the page: each function reads the memory and returns the values for its template."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate, takewhile
from typing import Any, Final
from urllib.parse import quote_plus

from muniment.content.entry import PROVENANCE_KEY, parse
from muniment.content.gates import decode, one_line
from muniment.errors import Erased, MunimentError, NotFound
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import digest
from muniment.kernel.names import Verb
from muniment.kernel.path import CanonicalPath
from muniment.lab.attempts.offer import advice, look_around
from muniment.lab.attempts.trial import Trial, try_all
from muniment.lab.explain import explain
from muniment.names import FenceLayer, __version__
from muniment.operations.edit import check_editable, is_pinned
from muniment.operations.place import Place
from muniment.operations.review import STATES, diff_of, history_of, show, waiting, why_of
from muniment.policy.load import ACTS, REMOVAL
from muniment.server import lane_tasks
from muniment.server.contract import MAX_BODY_BYTES, HttpProblem, sentence_of
from muniment.server.page.call import PageCall
from muniment.server.page.rendering import DAYS, markdown, timeline
from muniment.store import tasks as outbox
from muniment.store.audit import head, records, verify
from muniment.store.catalog import CatalogEntry, View
from muniment.store.ledger import CommitRow, count_by_day, of_task
from muniment.store.tasks import QueuedTask
from muniment.store.upkeep import view_of
from muniment.types import CommittedStep

ON_PAGE: Final = 100
"""Entries, tasks or records in one view."""

LATELY: Final = 8
"""Recent changes in the first view."""

STEPS: Final = 20
"""Changes of an entry that are displayed with their diff."""

STEP_CHARS: Final = 20_000
"""Characters of one diff, rounded up to the end of a line."""

MAX_TOPICS: Final = 200
"""Folders in the list."""

MAX_ODD: Final = 50
"""Skipped names in the list."""

FOUND: Final = 20
"""Entries in the results of a search."""

FOUND_TOKENS: Final = 4_000
"""Tokens of all their texts together."""

TRIAL_SECONDS: Final = 60.0
"""Seconds for all attempts against the fence; they take half a second."""

Shown = Mapping[str, Any]
Body = Callable[[Place, PageCall], Shown]


# -- memory ------------------------------------------------------------------------------------------


def memory(place: Place, call: PageCall) -> Shown:
    """Return the entries, by scope and folder."""
    scope = call.query("scope") or next(iter(place.roots), "")
    views = {each: view_of(place.state, bound, place.policy) for each, bound in place.roots.items()}
    shown = next((view for each, view in views.items() if each == scope), None)
    if shown is None:
        raise HttpProblem("invalid_scope")
    topic = call.query("topic") if "topic" in call.request.query_params else None
    found = shown.entries_after(call.query("after"), ON_PAGE + 1, topic)
    topics = shown.topics()
    return {
        "scope": scope,
        "counts": [(each, view.usage().files) for each, view in views.items()],
        "topic": topic,
        "topics": topics[:MAX_TOPICS],
        "topics_left": max(0, len(topics) - MAX_TOPICS),
        "entries": found[:ON_PAGE],
        "more": found[ON_PAGE - 1].rel if len(found) > ON_PAGE else "",
        "after": call.query("after"),
        "skipped": shown.odd()[:MAX_ODD],
        "recent": history_of(place, limit=LATELY),
        "is_complete": shown.complete,
    }


# -- entry -------------------------------------------------------------------------------------------


def entry(place: Place, call: PageCall) -> Shown:
    """Return one entry: its text, its origin and its history."""
    path, data = _read(place, call.query("path"))
    steps = history_of(place, path.text, STEPS)
    if data is None and not steps:
        raise NotFound(f"entry {path.text} not found, now or in the history")
    return {
        "path": path.text,
        "why": _why(place, path.text),
        "states": STATES,
        "row": _row(place, path),
        "is_raw": bool(call.query("raw")),
        "is_pinned": is_pinned(path),
        "is_editable": data is not None and _is_editable(place, path, data),
        "is_too_long": data is not None and not _fits_form(data),
        "name": _name(path, data),
        "text": None if data is None else data.decode("utf-8", "replace"),
        "html": None if data is None else markdown(parse(data).body),
        "history": [_step(place, path, step) for step in steps],
        "is_cut": len(steps) == STEPS,
    }


def edit(place: Place, call: PageCall) -> Shown:
    """Return the form for the body of an entry."""
    path, data = _read(place, call.query("path"))
    if data is None:
        raise NotFound(f"entry {path.text} not found")
    check_editable(place, path)
    if not _fits_form(data):
        raise HttpProblem("body_too_large")
    return editing(place, path.text, parse(decode(data)).body, digest(data))


def editing(place: Place, path: str, body: str, read: str, problem: str = "") -> Shown:
    """Return the values of the form: a body, the digest of the original file, and why it was not saved.

    The user who saves it is responsible for the whole file, so the front matter above the body is displayed
    too.
    """
    above: list[str] = []
    with suppress(MunimentError):  # If the entry was deleted or the path is invalid, `problem` explains it.
        entry = parse(_read(place, path)[1] or b"")
        lines = entry.text[: len(entry.text) - len(entry.body)].splitlines()[1:-1]
        above = [line for line in lines if not line.startswith(f"{PROVENANCE_KEY}:")]
    return {"path": path, "front_matter": "\n".join(above), "body": body, "digest": read, "problem": problem}


def _read(place: Place, unsafe_path: str) -> tuple[CanonicalPath, bytes | None]:
    """Return a path and the bytes of its file, or None if the file is missing."""
    path = place.path(unsafe_path)
    try:
        return path, place.read(path)
    except NotFound:
        return path, None


def _row(place: Place, path: CanonicalPath) -> CatalogEntry | None:
    return view_of(place.state, place.roots[path.scope], place.policy).entry(path.rel)


def _why(place: Place, path: str) -> object:
    with suppress(NotFound, Erased):
        return why_of(place, path)
    return None


def _name(path: CanonicalPath, data: bytes | None) -> str:
    return one_line((data is not None and parse(data).name) or path.name.removesuffix(".md"))


def _is_editable(place: Place, path: CanonicalPath, data: bytes) -> bool:
    try:
        check_editable(place, path)
        decode(data)
    except MunimentError:
        return False
    return True


def _fits_form(data: bytes) -> bool:
    """Return whether a browser can send it back; each byte may be encoded as three."""
    return len(quote_plus(data)) < MAX_BODY_BYTES // 2


def _step(place: Place, path: CanonicalPath, step: CommittedStep) -> Shown:
    """Return a change of an entry: the first lines of the diff, and the number of remaining lines.

    If the lines are no longer known, they are None, which differs from no lines.
    """
    if not step.is_erased:
        with suppress(Erased, NotFound):
            lines = diff_of(place, path.text, step.task)
            ends = accumulate(len(line) for line in lines)
            shown = sum(1 for _ in takewhile(lambda end: end <= STEP_CHARS, ends)) + 1
            return {"step": step, "lines": lines[:shown], "left": max(0, len(lines) - shown)}
    return {"step": step, "lines": None, "left": 0}


# -- search ------------------------------------------------------------------------------------------


def search(_: Place, call: PageCall) -> Shown:
    """Return the entries that match a query. A search by a user is not recorded, unlike an agent's recall."""
    query = call.query("q").strip()
    patience = Patience(time.monotonic() + TRIAL_SECONDS)
    recaller = call.workspace.recaller()
    found = recaller.recall(query, limit=FOUND, budget=FOUND_TOKENS, patience=patience) if query else None
    if found is not None and found.error is not None:
        raise found.error
    return {"q": query, "found": found}


# -- reviews -----------------------------------------------------------------------------------------


def reviews(place: Place, _: PageCall) -> Shown:
    """Return the pending reviews."""
    return {"reviews": waiting(place)}


def review(place: Place, call: PageCall) -> Shown:
    """Return one pending review, as it would be approved."""
    shown = show(call.query("id"), place)
    return {"id": shown.review_id, "lines": shown.text.splitlines(), "digest": shown.digest}


# -- tasks -------------------------------------------------------------------------------------------


def tasks(place: Place, call: PageCall) -> Shown:
    """Return the tasks, newest first."""
    before = call.query("before")
    if before and not before.isdecimal():
        raise HttpProblem("invalid_request")
    at = int(before[:18]) if before else None
    found = lane_tasks.tasks(place.state.ledger, call.workspace.key, before=at, limit=ON_PAGE + 1)
    return {
        "tasks": [_told(each) for each in found[:ON_PAGE]],
        "more": str(found[ON_PAGE - 1].seq) if len(found) > ON_PAGE else "",
    }


def task(place: Place, call: PageCall) -> Shown:
    """Return one task and its turns."""
    task_id = call.query("id")
    found = lane_tasks.find(place.state.ledger, call.workspace.key, task_id)
    done = of_task(place.state, task_id)
    if found is None and (done is None or not _is_of(place, done)):
        raise HttpProblem("task_not_found")
    events = [each.data for each in outbox.of_task(place.state.ledger, task_id) if each.type == "task"]
    error = {name: value for name, value in ((found and found.error) or {}).items() if name != "code"}
    return {
        "id": task_id,
        "details": found and _told(found),
        "run": done and done.run,
        "turns": [each for each in events if "turn" in each],
        "detail": json.dumps(error, ensure_ascii=False) if error else "",
        "changes": () if done is None else done.known,
        "similar": ((found and found.result) or {}).get("similar", ()),
    }


def _is_of(place: Place, done: CommitRow) -> bool:
    """Return whether a commit belongs to this workspace; only tasks of a lane record their workspace."""
    return place.scopes_by_key().keys() >= {each.root for each in done.changes}


def _told(found: QueuedTask) -> Shown:
    """Return a task with its request, as long as that is stored, and its result, for its owner."""
    asked, error = found.arguments or {}, found.error
    problem = f"{sentence_of(error['code'])} [{error['code']}]" if error else ""
    return {
        "task": found,
        "request": one_line(str(asked.get("content") or asked.get("query") or "")),
        "summary": str((found.result or {}).get("summary", "")) or problem,
    }


# -- timeline ----------------------------------------------------------------------------------------


def learned(place: Place, _: PageCall) -> Shown:
    """Return the changes of the memory by day."""
    today = datetime.now(UTC).date()
    counts = count_by_day(place.state, place.scopes_by_key(), (today - timedelta(days=DAYS)).isoformat())
    drawn = timeline(counts, tuple(place.roots), today)
    return {"timeline": drawn, "recent": history_of(place, limit=ON_PAGE)}


# -- audit -------------------------------------------------------------------------------------------


def audit(place: Place, call: PageCall) -> Shown:
    """Return the newest audit records and, if requested, the result of verifying the chain."""
    found = records(place.state, latest=ON_PAGE)
    told = [
        (each, "(erased)" if each.body is None else json.dumps(each.body, ensure_ascii=False))
        for each in reversed(found)
    ]
    return {
        "records": told,
        "head": str(head(place.state)),
        "verified": verify(place.state) if call.query("verify") else None,
    }


# -- health ------------------------------------------------------------------------------------------


_TRYING: Final = threading.Lock()


@cache
def _tried() -> tuple[str, Trial]:
    """Return the results of the attempts against the fence, and their time; cached until repeated.

    Raises:
        MunimentError, OSError: the attempts could not run.
    """
    trial = try_all(time.monotonic() + TRIAL_SECONDS)
    return datetime.now(UTC).isoformat(timespec="seconds"), trial


def health(place: Place, call: PageCall) -> Shown:
    """Return the state of the daemon and the confinement of a worker."""
    problem, tried, layers, findings = "", "", list[tuple[str, bool, str]](), list[tuple[str, str, str]]()
    required = place.policy.confinement.require
    held = None
    try:
        with _TRYING:
            if call.query("again"):
                _tried.cache_clear()
            tried, trial = _tried()
    except (MunimentError, OSError) as error:
        problem = str(error)
    else:
        system, held = look_around(), trial.held
        for each in FenceLayer:
            holds = each not in held.missing
            told = "" if holds else advice(each, trial.reported.get(each), system)
            layers.append((each, holds, told))
        findings = [(each.attempt.what, each.verdict, each.why) for each in trial.findings]
    return {
        "problem": problem,
        "checked_at": tried,
        "layers": layers,
        "findings": findings,
        "confinement": held,
        "required": required,
        "is_met": held is not None and held.enforcement.satisfies(required),
        "model": call.core.model.name,
        "version": __version__,
        "notes": place.notes,
        "roots": [
            (scope, str(bound.trusted_path), *_usage(place, bound)) for scope, bound in place.roots.items()
        ],
    }


def _usage(place: Place, bound: BoundRoot) -> tuple[int, int, bool]:
    view: View = view_of(place.state, bound, place.policy)
    used = view.usage()
    return used.files, used.bytes, view.complete


# -- policy ------------------------------------------------------------------------------------------


def policy(place: Place, call: PageCall) -> Shown:
    """Return the policy, and its decision for a verb on a path."""
    act, path = call.query("verb") or Verb.READ, call.query("path")
    if act not in ACTS:
        raise HttpProblem("invalid_request")
    explained = explain(place.policy, Verb(act) if act in list(Verb) else REMOVAL, path) if path else None
    return {
        "acts": ACTS,
        "act": act,
        "path": path,
        "explained": explained,
        "text": place.policy.text,
        "digest": place.policy.digest,
    }


VIEWS: Final[Mapping[str, Body]] = {
    "memory": memory,
    "entry": entry,
    "edit": edit,
    "search": search,
    "reviews": reviews,
    "review": review,
    "tasks": tasks,
    "task": task,
    "timeline": learned,
    "audit": audit,
    "health": health,
    "policy": policy,
}
"""The functions that return the values of each template, by the name of the view."""
