"""The requests of a client, as plans (see `exchange`) that return values; this module does no I/O.

C1 Each task is queued under an idempotency key: the caller's, or a new one for each call.
C2 A wait lasts until its timeout, even if the daemon stops in the meantime. Without a timeout it ends if the
   daemon does not respond, or responds that it is busy, for the time of one call.

Source of `Prefer: wait`: RFC 7240, 4.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date
from os import PathLike
from typing import IO, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from muniment.client.errors import BadAnswer, Problem, Unreachable, WaitTimeout
from muniment.client.exchange import (
    FIRST_PAUSE,
    LAST_PAUSE,
    OK,
    Ask,
    Frames,
    HttpReply,
    Lost,
    Plan,
    Try,
    checked,
    decoded,
    document_of,
    exchange,
    retry_after,
    then,
    without,
)
from muniment.client.finding import check_word
from muniment.client.results import KINDS, STATUSES, Document, Event, Result, Task
from muniment.errors import NOT_NOW, ConfigInvalid
from muniment.files import new_file
from muniment.names import MAX_RECALLED, ContextMode, __version__
from muniment.types import (
    AuditHead,
    CommittedStep,
    DreamResult,
    EditResult,
    EntryList,
    EntryShown,
    ErasePlan,
    EraseResult,
    Explained,
    ExportResult,
    ForgetResult,
    HistoryList,
    IndexResult,
    Kind,
    ListedEntry,
    Origin,
    PinResult,
    Recalled,
    RememberResult,
    Review,
    ReviewDecision,
    ReviewList,
    ReviewShown,
    TaskError,
    UiOpened,
    UndoResult,
)
from muniment.types.arguments import check_optional_texts, check_texts, parse_whole_number
from muniment.types.documents import WireAnswer, read

# -- reading -----------------------------------------------------------------------------------------
#
# Reads the daemon's responses into the values of `results`, see `types.documents.read`.

A = TypeVar("A", bound=WireAnswer)
R = TypeVar("R", bound=Result)

_RESULTS: Final[Mapping[Kind, type[Result]]] = {
    "remember": RememberResult,
    "forget": ForgetResult,
    "dream": DreamResult,
}


def answer_of(kind: type[A], said: object, what: str) -> A:
    """Return a response of a kind, read from a JSON value of the daemon.

    Raises:
        BadAnswer: invalid response; the other functions here raise this too.
    """
    try:
        return read(kind, said, what)
    except ValueError as error:
        raise BadAnswer(str(error)) from None


def kind_of(task_id: str) -> Kind:
    """Return the kind of a task, which is the beginning of its id."""
    kind = task_id.partition("-")[0]
    for each in KINDS:
        if kind == each:
            return each
    raise BadAnswer("invalid task id: it must begin with remember-, forget- or dream-")


def task_of(said: object) -> Task:
    """Return a task, read from a JSON value of the daemon."""
    told = said if isinstance(said, dict) else {}
    bare = {**told, "kind": _kind(told), "result": None, "error": None}
    task = answer_of(Task, bare if told else said, "a task")
    kind, error = kind_of(task.task_id), told.get("error")
    if task.status not in STATUSES:
        raise BadAnswer("a task has an unknown status; a newer client may know it")
    if task.status == "completed":
        result = answer_of(_RESULTS[kind], told.get("result"), "a result")
        return replace(task, result=replace(result, task_id=task.task_id))
    if task.status != "failed":
        return task
    if isinstance(error, dict):
        instead = {"message": "The daemon returned no reason.", "reviewId": task.review_id}
        error |= {name: value for name, value in instead.items() if error.get(name) in {None, ""}}
    return replace(task, error=answer_of(TaskError, error, "an error"))


def tasks_of(page: Document) -> list[Task]:
    """Return the tasks of a page, without those whose kind or status is newer than this client."""
    listed = page.get("tasks")
    if not isinstance(listed, list):
        raise BadAnswer("`tasks` of a task list is not a list")
    return [task_of(each) for each in listed if not _is_newer(each)]


def _is_newer(said: object) -> bool:
    if not isinstance(said, dict) or not all(
        isinstance(said.get(each), str) for each in ("taskId", "status")
    ):
        return False  # It is invalid, which `task_of` reports.
    return _kind(said) not in KINDS or said["status"] not in STATUSES


def _kind(task: Mapping[str, Any]) -> str:
    return str(task.get("taskId")).partition("-")[0]


def event_of(frame_id: str, said: object) -> Event:
    """Return an event, read from the data of a frame."""
    return answer_of(Event, {**said, "id": frame_id} if isinstance(said, dict) else said, "an event")


# -- core --------------------------------------------------------------------------------------------

CALL_SECONDS: Final = 30.0
"""Seconds of a call with all its tries; a restarted daemon is available again after one or two."""

HOLD_SECONDS: Final = 20
"""Seconds for which the daemon is requested to delay its response for an unfinished task."""

LAST_POLL_PAUSE: Final = 1.0
"""Longest pause in seconds between two requests for a task, if the daemon does not delay its responses."""

OWNER_SECONDS: Final = 60
"""Extra seconds for operations of the owner, which may wait for another process to release the memory."""

MAX_LISTED: Final = 1_000
"""Entries of one page of a list."""

EXPORT_HEADER: Final = "x-muniment-export"
"""Header of an export that contains its result, as JSON."""

MAX_PAGES: Final = 100
"""Maximum pages of one list; a daemon stores 1000 tasks."""


@dataclass(frozen=True, slots=True)
class Accepted(Generic[R]):
    """The response to an accepted task, whose result will be an `R`.

    Attributes:
        replayed: whether the same request was accepted before, with the same key.
    """

    task: Task
    replayed: bool


@dataclass(frozen=True, slots=True)
class Exported:
    """A received export, and the file to write it to."""

    result: ExportResult
    data: bytes
    file: str | PathLike[str] | IO[bytes]

    def write(self) -> ExportResult:
        """Write the file, and return the result.

        Raises:
            ConfigInvalid: the file exists or cannot be written.
        """
        file = self.file
        with new_file(file) if isinstance(file, str | PathLike) else nullcontext(file) as target:
            target.write(self.data)
        return self.result


class ClientCore:
    """The requests of one client; its methods document them.

    Args:
        new_key: creates a new idempotency key.
        clock: returns monotonic seconds.
        client_id: sent with every request.
        workspace: its key or real path, see `finding.name_workspace`; None: the daemon's only one.
        timeout: seconds of a call with all its tries.

    Raises:
        ConfigInvalid: invalid argument.
    """

    def __init__(
        self,
        *,
        new_key: Callable[[], str],
        clock: Callable[[], float],
        client_id: str | None = None,
        workspace: str | None = None,
        timeout: float = CALL_SECONDS,
    ) -> None:
        if not timeout > 0:
            raise ConfigInvalid(f"invalid timeout {timeout!r}: use more than 0 seconds")
        self.clock, self.timeout, self._new_key = clock, timeout, new_key
        self._headers = {"accept": "application/json", "user-agent": f"muniment/{__version__}"}
        if client_id is not None:
            self._headers["x-muniment-client-id"] = check_word("client id", client_id)
        self._base, self._workspace = "/workspace/memory", workspace or ""
        if workspace is not None:
            self._base = f"/workspaces/{segment(workspace)}/memory"

    # -- tasks ---------------------------------------------------------------------------------------------

    def remember(
        self,
        content: str,
        *,
        scope: str | None = None,
        context: str | None = ContextMode.WORKSPACE,
        trust: str | None = "owner",
        ref: str | None = None,
        expires: str | date | None = None,
        task_id: str | None = None,
    ) -> Plan[Accepted[RememberResult]]:
        """Remember a fact.

        Args:
            content: 1 to 65536 bytes of UTF-8 after trimming.
            scope: a scope of the policy; None: the daemon chooses.
            context: `workspace`, or `clean`: the agent does not see the memory.
            trust: who the fact comes from, limited to the token's trust: `owner`, `workspace`, `agent`,
                `external`.
            ref: reference to the source, as free text.
            expires: the last day on which it is recalled, such as `2026-12-31`, or a number of days, such as
                `30d`;
                None: it never expires, even if its text contains a date.
            task_id: idempotency key: the same request with the same key runs once, also if another client
                object sends it. The daemon stores it for this token and 24 hours. The task has a different
                id, which the returned handle contains. None: each call is a new task.
        """
        check_texts(content=content)
        check_optional_texts(scope=scope, context=context, trust=trust, ref=ref)
        source = _given(trust=None if trust == "owner" else trust, ref=ref)
        mode = None if context == ContextMode.WORKSPACE else context
        until = None if expires is None else str(expires)
        more = _given(contextMode=mode, scope=scope, source=source or None, expires=until)
        return self._queue("remember", {"content": content, **more}, task_id)

    def forget(
        self,
        query: str,
        *,
        scope: str | None = None,
        dry_run: bool = False,
        digest: str | None = None,
        task_id: str | None = None,
    ) -> Plan[Accepted[ForgetResult]]:
        """Forget an entry, given by its path, or the entries that match `query`.

        Args:
            query: the path, or words of the entries.
            scope: the only scope to search; None: all.
            dry_run: only list what would be deleted.
            digest: digest of a dry run's result; if the matches have changed since, nothing is deleted.
            task_id: as in `remember`.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope, digest=digest)
        body = {"query": query, **_given(scope=scope, dryRun=dry_run or None, digest=digest)}
        return self._queue("forget", body, task_id)

    def dream(
        self, *, scope: str | None = None, dry_run: bool = False, task_id: str | None = None
    ) -> Plan[Accepted[DreamResult]]:
        """Tidy the memory.

        Args:
            scope: the only scope to tidy; None: all.
            dry_run: only report the changes.
            task_id: as in `remember`.
        """
        check_optional_texts(scope=scope)
        return self._queue("dream", _given(scope=scope, dryRun=dry_run or None), task_id)

    def get(self, task_id: str) -> Plan[Task]:
        """Return the current state of a task."""
        return then(self._told(self._of_task("GET", task_id)), task_of)

    def cancel(self, task_id: str) -> Plan[Task]:
        """Cancel a task if it is not over; return its state after that."""
        return then(self._told(self._of_task("DELETE", task_id)), task_of)

    def wait(self, task_id: str, timeout: float | None = None) -> Plan[Result]:
        """Wait until a task is over, and return its result; the daemon may restart in the meantime (C2).

        Args:
            task_id: id of the task.
            timeout: seconds; None: no limit, as long as the daemon responds within the time of a call.

        Raises:
            TaskFailed: the task failed or was cancelled; a subclass states the reason.
            WaitTimeout: it is not over yet. With a timeout, `Unreachable` is not raised before it.
        """
        end = None if timeout is None else self.clock() + timeout
        status, pause = None, 0.0
        while True:
            left = HOLD_SECONDS if end is None else min(end - self.clock() - pause, HOLD_SECONDS)
            hold = max(int(left), 0)
            ask = self._of_task("GET", task_id, hold=hold)
            asked = self.clock() + pause
            try:
                limit = asked + hold + self.timeout if end is None else end
                task = task_of(document_of((yield from exchange(ask, self.clock, limit, pause))))
            except (Unreachable, Problem) as problem:
                if end is None or (isinstance(problem, Problem) and problem.status not in NOT_NOW):
                    raise
                if self.clock() >= end:
                    raise WaitTimeout(task_id, status) from problem
                pause = end - self.clock()  # Retry after the end, for a last request.
                continue
            if task.is_over:
                return task.outcome
            status = task.status
            # If the daemon does not delay its responses, or only briefly, the intervals grow.
            was_held = self.clock() - asked >= 1
            pause = FIRST_PAUSE if was_held or not pause else min(pause * 2, LAST_POLL_PAUSE)
            if end is not None:
                if self.clock() >= end:
                    raise WaitTimeout(task_id, status)
                pause = min(pause, end - self.clock())

    def tasks(self, status: str | None = None) -> Plan[tuple[Task, ...]]:
        """Return the tasks that this client may see, newest first; optionally only those with one status."""
        found: list[Task] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = yield from self._seen("tasks", **_given(status=status, cursor=cursor))
            found += tasks_of(page)
            cursor = page.get("nextCursor")
            if cursor is None:
                return tuple(found)
            if not isinstance(cursor, str):
                raise BadAnswer("`nextCursor` of a task list is not a string")
        raise BadAnswer(f"a list of tasks has more than {MAX_PAGES} pages")

    # -- the names that existing clients use ----------------------------------------------------------------

    def remember_workspace_memory(
        self, content: str, *, context_mode: str | None = None, scope: str | None = None
    ) -> Plan[Task]:
        """Remember a fact, as `remember`, but return the accepted task."""
        context = context_mode or ContextMode.WORKSPACE
        return then(self.remember(content, scope=scope, context=context), _task)

    def forget_workspace_memory(self, query: str, *, scope: str | None = None) -> Plan[Task]:
        """Forget entries, as `forget`, but return the accepted task."""
        return then(self.forget(query, scope=scope), _task)

    def dream_workspace_memory(self) -> Plan[Task]:
        """Tidy the memory, as `dream`, but return the accepted task."""
        return then(self.dream(), _task)

    def get_workspace_memory_remember_task(self, task_id: str) -> Plan[Task]:
        """Return the current state of a remember task."""
        return then(self._told(self._of_task("GET", task_id, "remember")), task_of)

    def get_workspace_memory_forget_task(self, task_id: str) -> Plan[Task]:
        """Return the current state of a forget task."""
        return then(self._told(self._of_task("GET", task_id, "forget")), task_of)

    def get_workspace_memory_dream_task(self, task_id: str) -> Plan[Task]:
        """Return the current state of a dream task."""
        return then(self._told(self._of_task("GET", task_id, "dream")), task_of)

    # -- the rest ------------------------------------------------------------------------------------------

    def recall(
        self,
        query: str,
        *,
        exclude: Iterable[str] | None = (),
        scope: str | None = None,
        limit: float | None = None,
    ) -> Plan[Recalled]:
        """Return entries that help with a message; put the `text` of the result before the model unchanged.

        If the memory has a problem, the result is empty and `error` contains the reason; no exception is
        raised.

        Args:
            query: the message, or search terms: 1 to 65536 bytes of UTF-8 after trimming.
            exclude: ids of entries that the model has seen, at most 500. An entry that has changed since is
                returned again; unknown ids have no effect.
            scope: the only scope to search; None: all.
            limit: maximum number of entries, 1 to 20; None: 5.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope)
        if limit is not None:
            limit = parse_whole_number("limit", limit, least=1, most=MAX_RECALLED)
        body = {"query": query, **_given(exclude=list(exclude or ()) or None, scope=scope, limit=limit)}
        # Safe to repeat: it changes nothing.
        asked = self._told(self._ask("POST", f"{self._base}/recall", body))
        return _answer(asked, Recalled, "a recall")

    def list(
        self, scope: str | None = None, *, limit: int | None = None, expired: bool = False
    ) -> Plan[EntryList]:
        """List the entries that this token may see, sorted by path.

        Args:
            scope: the only scope to list; None: all.
            limit: maximum number of entries; None: all.
            expired: include expired entries; owner only.
        """
        check_optional_texts(scope=scope)
        if limit is not None:
            limit = parse_whole_number("limit", limit, least=1)
        found = list[ListedEntry]()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            number = MAX_LISTED if limit is None else min(limit - len(found), MAX_LISTED)
            asked = _given(scope=scope, cursor=cursor, expired="true" if expired else None)
            said = yield from self._seen("entries", limit=str(number), **asked)
            page = answer_of(EntryList, said, "a list of entries")
            found += page.entries
            cursor = page.next_cursor
            if cursor is None or len(found) == limit:
                return replace(page, entries=tuple(found))
        raise BadAnswer(f"a list of entries has more than {MAX_PAGES} pages")

    def show(self, path: str) -> Plan[EntryShown]:
        """Show one entry that this token may see: its text is data.

        Args:
            path: path of the entry, such as `user/editor.md`, or its address (`muniment://…`).
        """
        check_texts(path=path)
        return _answer(self._seen("entry", path=path), EntryShown, "an entry")

    def export(
        self,
        file: str | PathLike[str] | IO[bytes],
        *,
        scope: str | None = None,
        format: str | None = "tar",  # noqa: A002  as the command names it
    ) -> Plan[Exported]:
        """Write the entries that this token may see, with their origin, to one file that can be imported.

        Args:
            file: the path of a new file, which only this user can read, or an open binary file.
            scope: the only scope to export; None: all.
            format: `tar` or `jsonl`.

        Raises:
            ConfigInvalid: the file exists or cannot be written.
        """
        check_optional_texts(scope=scope, format=format)
        query = _query(_given(scope=scope, format=format))
        ask = self._ask("GET", f"{self._base}/export?{query}", hold=OWNER_SECONDS)

        def exported(reply: HttpReply) -> Exported:
            told = decoded(reply.headers.get(EXPORT_HEADER, ""), reply.secret)
            return Exported(answer_of(ExportResult, told, "an export"), reply.body, file)

        return then(self._call(ask), exported)

    def capabilities(self) -> Plan[Document]:
        """Return the daemon's features and limits, under its names."""
        return self._told(self._ask("GET", "/capabilities"))

    def open_ui(self) -> Plan[UiOpened]:
        """Open the page of the daemon, and return its URL with a sign-in code."""
        asked = self._told(self._ask("POST", "/ui", {}))  # Safe to repeat: each code works once.
        return _answer(asked, UiOpened, "the page")

    def follow_ask(self, last_id: str) -> Ask:
        """Return the request for the stream of events after the given one."""
        headers = {**self._headers, "accept": "text/event-stream"}
        if last_id:
            headers["last-event-id"] = check_word("id of an event", last_id)
        return Ask("GET", f"{self._base}/events", headers, workspace=self._workspace)

    # -- the owner's ---------------------------------------------------------------------------------------

    def edit(
        self, path: str, text: str, *, digest: str | None = None, dry_run: bool = False
    ) -> Plan[EditResult]:
        """Replace the text of an entry, as its owner; its front matter stays unchanged.

        Args:
            path: path of the entry, or its address.
            text: the new text, without front matter.
            digest: digest that `show` returned with the old text; None: replace the current text in any case.
            dry_run: judge and report, but write nothing.
        """
        check_texts(path=path, text=text)
        check_optional_texts(digest=digest)
        body = _given(path=path, text=text, digest=digest, dryRun=dry_run or None)
        return _answer(self._done("edit", **body), EditResult, "an edit")

    def pin(self, path: str, *, dry_run: bool = False) -> Plan[PinResult]:
        """Pin an entry, so that no run changes it and recall prefers it; unpin a pinned one.

        Args:
            path: path of the entry, or its address; for a pinned one, the path in `pinned/`.
            dry_run: judge and report, but write nothing.
        """
        check_texts(path=path)
        return _answer(self._done("pin", path=path, dryRun=dry_run), PinResult, "a pin")

    def index(self, *, dry_run: bool = False) -> Plan[IndexResult]:
        """Rebuild the indexes from the entries, and verify them.

        Args:
            dry_run: only verify the indexes.
        """
        return _answer(self._done("index", dryRun=dry_run), IndexResult, "the state of the indexes")

    def history(self, path: str | None = None) -> Plan[tuple[CommittedStep, ...]]:
        """List the committed changes of an entry, folder or scope, newest first; None: all."""
        check_optional_texts(path=path)
        asked = _answer(self._seen("history", **_given(path=path)), HistoryList, "a history")
        return then(asked, lambda listed: listed.steps)

    def why(self, path: str) -> Plan[Origin]:
        """Return the origin of an entry, and whether it was edited by hand since."""
        check_texts(path=path)
        return _answer(self._seen("why", path=path), Origin, "an origin")

    def reviews(self) -> Plan[tuple[Review, ...]]:
        """Return the pending reviews."""
        asked = _answer(self._seen("review"), ReviewList, "a list of reviews")
        return then(asked, lambda listed: listed.reviews)

    def review(self, review_id: str) -> Plan[ReviewShown]:
        """Return a pending review as it would be approved now, with its digest."""
        check_texts(review_id=review_id)
        return _answer(self._seen(f"review/{segment(review_id)}"), ReviewShown, "a review")

    def approve(self, review_id: str, digest: str) -> Plan[ReviewDecision]:
        """Commit a change set exactly as `review` showed it."""
        check_texts(review_id=review_id, digest=digest)
        asked = self._done(f"review/{segment(review_id)}/approve", digest=digest)
        return _answer(asked, ReviewDecision, "a decision")

    def reject(self, review_id: str) -> Plan[ReviewDecision]:
        """Reject a change set."""
        check_texts(review_id=review_id)
        return _answer(self._done(f"review/{segment(review_id)}/reject"), ReviewDecision, "a decision")

    def undo(self, task_id: str) -> Plan[UndoResult]:
        """Undo the changes of a task."""
        check_texts(task_id=task_id)
        return _answer(self._done("undo", taskId=task_id), UndoResult, "an undo")

    def erase(self, target: str, *, dry_run: bool = False) -> Plan[ErasePlan | EraseResult]:
        """Erase an entry, or the files that a task wrote, permanently and with their history.

        Args:
            target: the path of an entry, its address, or the id of a task.
            dry_run: report what would be erased, and erase nothing.

        Raises:
            ConfigInvalid: `dry_run` is not a boolean.
        """
        check_texts(target=target)
        if not isinstance(dry_run, bool):
            raise ConfigInvalid("invalid dry_run: use True or False")
        return then(self._done("erase", target=target, dryRun=dry_run), erased_of)

    def audit_head(self) -> Plan[AuditHead]:
        """Return the head of the audit chain."""
        return _answer(self._seen("audit/head"), AuditHead, "the end of the audit")

    def explain(self, verb: str, path: str) -> Plan[Explained]:
        """Explain how the policy decides `list`, `read`, `create`, `modify` or `delete` on a path."""
        check_texts(verb=verb, path=path)
        return _answer(self._seen("policy/explain", verb=verb, path=path), Explained, "an explanation")

    # -- helpers ------------------------------------------------------------------------------------------

    def _queue(self, kind: Kind, body: Document, key: str | None) -> Plan[Accepted[R]]:
        key = check_word("id of a task", key) if key is not None else self._new_key()
        ask = self._ask("POST", f"{self._base}/{kind}", body, headers={"idempotency-key": key})

        def accepted(reply: HttpReply) -> Accepted[R]:
            replayed = reply.headers.get("idempotency-replayed", "").lower() == "true"
            return Accepted(task_of(document_of(reply)), replayed)

        return then(self._call(ask), accepted)

    def _seen(self, path: str, /, **query: str) -> Plan[Document]:
        """Return the daemon's response to a GET on a path of the workspace. Raises as `_query`."""
        asked = f"?{_query(query)}" if query else ""
        return self._told(self._ask("GET", f"{self._base}/{path}{asked}"))

    def _done(self, path: str, /, **body: Any) -> Plan[Document]:
        """Return the daemon's response to a POST, which is not repeated if it may have arrived."""
        ask = self._ask("POST", f"{self._base}/{path}", body, repeatable=False, hold=OWNER_SECONDS)
        return self._told(ask)

    def _of_task(self, method: str, task_id: str, kind: Kind | None = None, *, hold: int = 0) -> Ask:
        path = f"{self._base}/{kind or named_kind(task_id)}/{segment(task_id)}"
        return self._ask(method, path, headers={"prefer": f"wait={hold}"} if hold else None, hold=hold)

    def _ask(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        hold: float = 0.0,
    ) -> Ask:
        sent = {**self._headers, **(headers or {})}
        content = None
        if body is not None:
            sent["content-type"] = "application/json"
            content = json.dumps(body).encode()
        return Ask(method, path, sent, content, repeatable, hold, self._workspace)

    def _told(self, ask: Ask) -> Plan[Document]:
        return then(self._call(ask), document_of)

    def _call(self, ask: Ask) -> Plan[HttpReply]:
        return exchange(ask, self.clock, self.clock() + self.timeout + ask.hold)


def erased_of(said: object) -> ErasePlan | EraseResult:
    """Return the plan or the result of an erasure."""
    if isinstance(said, dict) and said.get("status") == "preview":
        return answer_of(ErasePlan, said, "an erasure")
    return answer_of(EraseResult, said, "an erasure")


def _answer(plan: Plan[Document], kind: type[A], what: str) -> Plan[A]:
    return then(plan, lambda said: answer_of(kind, said, what))


def _task(accepted: Accepted[Any]) -> Task:
    return accepted.task


def named_kind(task_id: str) -> Kind:
    """Return the kind of a task id from the caller.

    Raises:
        ConfigInvalid: invalid task id.
    """
    try:
        return kind_of(task_id)
    except BadAnswer:
        raise ConfigInvalid("invalid task id: it must begin with remember-, forget- or dream-") from None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _query(fields: Mapping[str, str]) -> str:
    """Return fields as a query string.

    Raises:
        ConfigInvalid: a field contains half a character.
    """
    try:
        return urlencode(fields)
    except UnicodeEncodeError:
        raise ConfigInvalid("invalid argument: it contains a lone surrogate") from None


def segment(text: str) -> str:
    """Return a text as a path segment.

    Raises:
        ConfigInvalid: the text cannot be a segment.
    """
    try:
        encoded = quote(text, safe="")
    except UnicodeEncodeError:
        encoded = ""
    if encoded in {"", ".", ".."}:
        raise ConfigInvalid(
            "invalid id or workspace: it must not be empty, only dots, or contain a lone surrogate"
        )
    return encoded


# -- following ---------------------------------------------------------------------------------------
#
# Follows the events of a workspace over any number of connections; makes the decisions, but does no I/O.
#
# V1 Each connection continues after the newest delivered event, so that no event is missing or delivered
# twice; if the daemon cannot continue there, it sends `resync`. V2 Following ends with an error if the daemon
# is not available for the time of one call, or rejects the request.

QUIET_SECONDS: Final = 45.0
"""Seconds of silence after which a connection counts as dead; the daemon sends something every 15."""

MARK: Final = ""
"""The type of a position mark, which is not an event."""


class Following:
    """One follower.

    Args:
        core: core of the client.
        after: the id of an event; None: start now.
    """

    def __init__(self, core: ClientCore, after: str | None) -> None:
        self._core = core
        self._frames = Frames(after or "")
        self._pause, self._doubling, self._afresh = 0.0, FIRST_PAUSE, False
        self._away_since: float | None = None
        self._secret, self._workspace = "", core.follow_ask("").workspace

    def again(self) -> Try:
        """Return the next connection attempt."""
        self._frames = Frames(self._frames.last_id)
        return Try(self._core.follow_ask(self._frames.last_id), QUIET_SECONDS, self._pause, self._afresh)

    def answered(self, reply: HttpReply) -> bool:
        """Return whether a stream begins with this response; otherwise its body is complete.

        Raises:
            Problem, BadAnswer: the request was rejected, and a retry would not help.
        """
        self._secret = reply.secret
        if reply.status == OK:
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                raise BadAnswer("the response is not an event stream; check that this is the daemon")
            return True
        if reply.status not in NOT_NOW or self._is_away_too_long():
            checked(reply, self._workspace)
            raise BadAnswer(f"the response has status {reply.status} and is not an event stream")
        self._wait(retry_after(reply))
        return False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that a piece of the stream completes; an event of type `MARK` is only a position.

        Raises:
            BadAnswer: invalid stream.
        """
        self._away_since, self._doubling = None, FIRST_PAUSE
        for frame in self._frames.feed(chunk):
            event_id = without(self._secret, frame.id)
            if frame.data is None:
                yield Event(event_id, MARK, {})
            else:
                yield event_of(event_id, decoded(frame.data, self._secret))

    def lost(self, lost: Lost) -> None:
        """Record that a connection ended, or was not made.

        Raises:
            Unreachable: the daemon was not available for too long (V2).
            Unreachable: the server that accepts the connections does not prove that it is the daemon.
        """
        if lost.is_stranger and self._afresh:
            raise Unreachable(lost.why, is_stranger=True)
        if self._is_away_too_long():
            raise Unreachable(lost.why)
        self._wait(None)
        self._afresh = True

    def _wait(self, told: float | None) -> None:
        self._pause = self._doubling if told is None else told
        self._doubling = min(self._doubling * 2, LAST_PAUSE)

    def _is_away_too_long(self) -> bool:
        now = self._core.clock()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since >= self._core.timeout
