"""What a client asks of the daemon, as plans (see `exchange`) that return values; does no I/O.

C1 Each task is queued under an idempotency key, the caller's or one that belongs to the call alone.
C2 A wait lasts as long as it was told to, whatever becomes of the daemon meanwhile. Without a limit it ends
   once the daemon was silent, or said "not now", for the time of one call.

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
# Reads what the daemon says into the values of `results`, see `types.documents.read`.

A = TypeVar("A", bound=WireAnswer)
R = TypeVar("R", bound=Result)

_RESULTS: Final[Mapping[Kind, type[Result]]] = {
    "remember": RememberResult,
    "forget": ForgetResult,
    "dream": DreamResult,
}


def answer_of(kind: type[A], said: object, what: str) -> A:
    """An answer of a kind from what the daemon said.

    Raises:
        BadAnswer: it is none; so do all of these.
    """
    try:
        return read(kind, said, what)
    except ValueError as error:
        raise BadAnswer(str(error)) from None


def kind_of(task_id: str) -> Kind:
    """The kind of a task, which its id begins with."""
    kind = task_id.partition("-")[0]
    for each in KINDS:
        if kind == each:
            return each
    raise BadAnswer("the id of a task does not begin with its kind")


def task_of(said: object) -> Task:
    """A task from what the daemon said."""
    told = said if isinstance(said, dict) else {}
    bare = {**told, "kind": _kind(told), "result": None, "error": None}
    task = answer_of(Task, bare if told else said, "a task")
    kind, error = kind_of(task.task_id), told.get("error")
    if task.status not in STATUSES:
        raise BadAnswer("a task has a status that this client does not know")
    if task.status == "completed":
        result = answer_of(_RESULTS[kind], told.get("result"), "a result")
        return replace(task, result=replace(result, task_id=task.task_id))
    if task.status != "failed":
        return task
    if isinstance(error, dict):
        instead = {"message": "The daemon does not say why.", "reviewId": task.review_id}
        error |= {name: value for name, value in instead.items() if error.get(name) in {None, ""}}
    return replace(task, error=answer_of(TaskError, error, "an error"))


def tasks_of(page: Document) -> list[Task]:
    """The tasks of a page; those of a kind or status that is newer than this client are left out."""
    listed = page.get("tasks")
    if not isinstance(listed, list):
        raise BadAnswer("tasks of a list of tasks is no list")
    return [task_of(each) for each in listed if not _is_newer(each)]


def _is_newer(said: object) -> bool:
    if not isinstance(said, dict) or not all(
        isinstance(said.get(each), str) for each in ("taskId", "status")
    ):
        return False  # It is none, and is told to be.
    return _kind(said) not in KINDS or said["status"] not in STATUSES


def _kind(task: Mapping[str, Any]) -> str:
    return str(task.get("taskId")).partition("-")[0]


def event_of(frame_id: str, said: object) -> Event:
    """An event from the data of a frame."""
    return answer_of(Event, {**said, "id": frame_id} if isinstance(said, dict) else said, "an event")


# -- core --------------------------------------------------------------------------------------------

CALL_SECONDS: Final = 30.0
"""Seconds of a call with all its tries: a daemon that is started again is back in one or two."""

HOLD_SECONDS: Final = 20
"""Seconds that the daemon is asked to hold a request for a task that is not over."""

LAST_POLL_PAUSE: Final = 1.0
"""The longest pause, in seconds, between two looks at a task, where the daemon does not hold requests."""

OWNER_SECONDS: Final = 60
"""Seconds that the daemon may take for what the owner asks: it waits for whoever holds the memory."""

MAX_LISTED: Final = 1_000
"""Entries of one page of a list."""

EXPORT_HEADER: Final = "x-muniment-export"
"""Header of an export: its result, as JSON."""

MAX_PAGES: Final = 100
"""Pages of one list; a daemon keeps 1000 tasks."""


@dataclass(frozen=True, slots=True)
class Accepted(Generic[R]):
    """What the daemon said when it took a task, whose result will be an `R`.

    Attributes:
        replayed: whether it had taken the same request before, under the same key.
    """

    task: Task
    replayed: bool


@dataclass(frozen=True, slots=True)
class Exported:
    """An export that was received, and the file that it is for."""

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
    """The requests of one client, as its methods are documented.

    Args:
        new_key: makes an idempotency key; another one each time.
        clock: seconds, monotonic.
        client_id: goes with every request.
        workspace: its key or real path, see `finding.name_workspace`; None: the daemon's only one.
        timeout: seconds of a call with all its tries.

    Raises:
        ConfigInvalid: an argument cannot be sent.
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
            raise ConfigInvalid("the timeout of a client must be more than 0 seconds")
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
        """Have a fact remembered.

        Args:
            content: 1 to 65536 bytes of UTF-8 after trimming.
            scope: one of the policy; None: the daemon chooses.
            context: `workspace`, or `clean`: the agent sees nothing of the memory.
            trust: who it comes from, up to the token's trust: `owner`, `workspace`, `agent`, `external`.
            ref: where it comes from, in the caller's words.
            expires: the last day on which it is shown, such as `2026-12-31`, or in how many days, such as
                `30d`; None: it is never hidden, whatever its words say.
            task_id: chosen by the caller, so that the same request made twice is carried out once, also from
                another client object: the daemon knows it for this token and 24 hours. The task has an id
                of the daemon, which its handle returns. None: each call is a task.
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
        """Have an entry removed by its path, or what holds the words of `query`.

        Args:
            query: the path, or the words.
            scope: where alone to look; None: everywhere.
            dry_run: only say what would go.
            digest: that a dry run's result has: where something else would go by now, nothing does.
            task_id: as of `remember`.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope, digest=digest)
        body = {"query": query, **_given(scope=scope, dryRun=dry_run or None, digest=digest)}
        return self._queue("forget", body, task_id)

    def dream(
        self, *, scope: str | None = None, dry_run: bool = False, task_id: str | None = None
    ) -> Plan[Accepted[DreamResult]]:
        """Have the memory tidied.

        Args:
            scope: the only scope to tidy; None: all.
            dry_run: only report what would be done.
            task_id: as of `remember`.
        """
        check_optional_texts(scope=scope)
        return self._queue("dream", _given(scope=scope, dryRun=dry_run or None), task_id)

    def get(self, task_id: str) -> Plan[Task]:
        """A task as it is now."""
        return then(self._told(self._of_task("GET", task_id)), task_of)

    def cancel(self, task_id: str) -> Plan[Task]:
        """End a task, if it is not over; the task as it is then."""
        return then(self._told(self._of_task("DELETE", task_id)), task_of)

    def wait(self, task_id: str, timeout: float | None = None) -> Plan[Result]:
        """What a task did, once it is over; the daemon may be started anew meanwhile (C2).

        Args:
            task_id: which task.
            timeout: seconds; None: as long as the daemon is not silent for the time of a call.

        Raises:
            TaskFailed: nothing; a class of it says why.
            WaitTimeout: it is not over yet. Until then no `Unreachable` is raised where there is a timeout.
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
                pause = end - self.clock()  # Told to come back after the end, where it looks once more.
                continue
            if task.is_over:
                return task.outcome
            status = task.status
            # Whoever does not hold requests, or not for long, is asked at growing intervals.
            was_held = self.clock() - asked >= 1
            pause = FIRST_PAUSE if was_held or not pause else min(pause * 2, LAST_POLL_PAUSE)
            if end is not None:
                if self.clock() >= end:
                    raise WaitTimeout(task_id, status)
                pause = min(pause, end - self.clock())

    def tasks(self, status: str | None = None) -> Plan[tuple[Task, ...]]:
        """The tasks that this client may see, the newest first; those of one status, if it is given."""
        found: list[Task] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = yield from self._seen("tasks", **_given(status=status, cursor=cursor))
            found += tasks_of(page)
            cursor = page.get("nextCursor")
            if cursor is None:
                return tuple(found)
            if not isinstance(cursor, str):
                raise BadAnswer("a list of tasks goes on at no text")
        raise BadAnswer(f"a list of tasks has more than {MAX_PAGES} pages")

    # -- the names that existing clients use ----------------------------------------------------------------

    def remember_workspace_memory(
        self, content: str, *, context_mode: str | None = None, scope: str | None = None
    ) -> Plan[Task]:
        """As `remember`, but gives the task as it was accepted."""
        context = context_mode or ContextMode.WORKSPACE
        return then(self.remember(content, scope=scope, context=context), _task)

    def forget_workspace_memory(self, query: str, *, scope: str | None = None) -> Plan[Task]:
        """As `forget`, but gives the task as it was accepted."""
        return then(self.forget(query, scope=scope), _task)

    def dream_workspace_memory(self) -> Plan[Task]:
        """As `dream`, but gives the task as it was accepted."""
        return then(self.dream(), _task)

    def get_workspace_memory_remember_task(self, task_id: str) -> Plan[Task]:
        """A task that remembers, as it is now."""
        return then(self._told(self._of_task("GET", task_id, "remember")), task_of)

    def get_workspace_memory_forget_task(self, task_id: str) -> Plan[Task]:
        """A task that forgets, as it is now."""
        return then(self._told(self._of_task("GET", task_id, "forget")), task_of)

    def get_workspace_memory_dream_task(self, task_id: str) -> Plan[Task]:
        """A task that tidies, as it is now."""
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
        """What of the memory helps with a message; put its `text` before the model as it is.

        What is wrong with the memory leaves it empty, with the reason in `error`; nothing is raised for that.

        Args:
            query: the message, or some words: 1 to 65536 bytes of UTF-8 after trimming.
            exclude: ids of entries that the model has seen, at most 500; one that was changed since comes
                again, and what is the id of none leaves nothing out.
            scope: the only scope to search; None: all.
            limit: how many entries at most, 1 to 20; None: 5.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope)
        if limit is not None:
            limit = parse_whole_number("limit", limit, least=1, most=MAX_RECALLED)
        body = {"query": query, **_given(exclude=list(exclude or ()) or None, scope=scope, limit=limit)}
        asked = self._told(self._ask("POST", f"{self._base}/recall", body))  # Repeated: it changes nothing.
        return _answer(asked, Recalled, "a recall")

    def list(
        self, scope: str | None = None, *, limit: int | None = None, expired: bool = False
    ) -> Plan[EntryList]:
        """List the entries that this token may see, sorted by path.

        Args:
            scope: the only scope to list; None: all.
            limit: the most entries to list; None: all.
            expired: list expired entries too, for the owner.
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
        """Show one entry, if this token may see it: its text is data.

        Args:
            path: of the entry, such as `user/editor.md`, or its address (`muniment://…`).
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
        """Write the entries that this token may see, with their origin, to one file that an import reads.

        Args:
            file: the path of a new file, which this user alone can read, or an open binary file.
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
        """What the daemon offers, under its own names."""
        return self._told(self._ask("GET", "/capabilities"))

    def open_ui(self) -> Plan[UiOpened]:
        """Open the page of the daemon, with a code to sign in there."""
        asked = self._told(self._ask("POST", "/ui", {}))  # Repeated: each code works once.
        return _answer(asked, UiOpened, "the page")

    def follow_ask(self, last_id: str) -> Ask:
        """The request for the stream of events after one."""
        headers = {**self._headers, "accept": "text/event-stream"}
        if last_id:
            headers["last-event-id"] = check_word("id of an event", last_id)
        return Ask("GET", f"{self._base}/events", headers, workspace=self._workspace)

    # -- the owner's ---------------------------------------------------------------------------------------

    def edit(
        self, path: str, text: str, *, digest: str | None = None, dry_run: bool = False
    ) -> Plan[EditResult]:
        """Give an entry another text, as its owner; its front matter stays.

        Args:
            path: of the entry, or its address.
            text: the new text, without front matter.
            digest: that `show` returned with the old text; None: replace whatever is there now.
            dry_run: judge and report, write nothing.
        """
        check_texts(path=path, text=text)
        check_optional_texts(digest=digest)
        body = _given(path=path, text=text, digest=digest, dryRun=dry_run or None)
        return _answer(self._done("edit", **body), EditResult, "an edit")

    def pin(self, path: str, *, dry_run: bool = False) -> Plan[PinResult]:
        """Pin an entry, so that no run changes it and recall looks at it first; unpin a pinned one.

        Args:
            path: of the entry, or its address; of a pinned one, the path in `pinned/`.
            dry_run: judge and report, write nothing.
        """
        check_texts(path=path)
        return _answer(self._done("pin", path=path, dryRun=dry_run), PinResult, "a pin")

    def index(self, *, dry_run: bool = False) -> Plan[IndexResult]:
        """Write the indexes anew from the entries, and verify them.

        Args:
            dry_run: only verify the indexes as they are.
        """
        return _answer(self._done("index", dryRun=dry_run), IndexResult, "the state of the indexes")

    def history(self, path: str | None = None) -> Plan[tuple[CommittedStep, ...]]:
        """List what was committed, the newest first: of an entry, folder or scope; None: everything."""
        check_optional_texts(path=path)
        asked = _answer(self._seen("history", **_given(path=path)), HistoryList, "a history")
        return then(asked, lambda listed: listed.steps)

    def why(self, path: str) -> Plan[Origin]:
        """Return the origin of an entry, and whether it was edited by hand since."""
        check_texts(path=path)
        return _answer(self._seen("why", path=path), Origin, "an origin")

    def reviews(self) -> Plan[tuple[Review, ...]]:
        """The change-sets that wait for the owner."""
        asked = _answer(self._seen("review"), ReviewList, "a list of reviews")
        return then(asked, lambda listed: listed.reviews)

    def review(self, review_id: str) -> Plan[ReviewShown]:
        """A change-set as it would be approved now, with the digest to approve."""
        check_texts(review_id=review_id)
        return _answer(self._seen(f"review/{segment(review_id)}"), ReviewShown, "a review")

    def approve(self, review_id: str, digest: str) -> Plan[ReviewDecision]:
        """Commit a change-set exactly as `review` showed it."""
        check_texts(review_id=review_id, digest=digest)
        asked = self._done(f"review/{segment(review_id)}/approve", digest=digest)
        return _answer(asked, ReviewDecision, "a decision")

    def reject(self, review_id: str) -> Plan[ReviewDecision]:
        """Turn a change-set down."""
        check_texts(review_id=review_id)
        return _answer(self._done(f"review/{segment(review_id)}/reject"), ReviewDecision, "a decision")

    def undo(self, task_id: str) -> Plan[UndoResult]:
        """Take back what a task changed."""
        check_texts(task_id=task_id)
        return _answer(self._done("undo", taskId=task_id), UndoResult, "an undo")

    def erase(self, target: str, *, dry_run: bool = False) -> Plan[ErasePlan | EraseResult]:
        """Erase an entry, or the files that a task wrote, with the whole history, for good.

        Args:
            target: the path of an entry, its address, or the id of a task.
            dry_run: report what would be erased, and erase nothing.

        Raises:
            ConfigInvalid: `dry_run` is neither True nor False.
        """
        check_texts(target=target)
        if not isinstance(dry_run, bool):
            raise ConfigInvalid("invalid dry_run: use True or False")
        return then(self._done("erase", target=target, dryRun=dry_run), erased_of)

    def audit_head(self) -> Plan[AuditHead]:
        """The end of the chain of records."""
        return _answer(self._seen("audit/head"), AuditHead, "the end of the audit")

    def explain(self, verb: str, path: str) -> Plan[Explained]:
        """What the policy says to `list`, `read`, `create`, `modify` or `delete` on a path."""
        check_texts(verb=verb, path=path)
        return _answer(self._seen("policy/explain", verb=verb, path=path), Explained, "an explanation")

    # -- how ----------------------------------------------------------------------------------------------

    def _queue(self, kind: Kind, body: Document, key: str | None) -> Plan[Accepted[R]]:
        key = check_word("id of a task", key) if key is not None else self._new_key()
        ask = self._ask("POST", f"{self._base}/{kind}", body, headers={"idempotency-key": key})

        def accepted(reply: HttpReply) -> Accepted[R]:
            replayed = reply.headers.get("idempotency-replayed", "").lower() == "true"
            return Accepted(task_of(document_of(reply)), replayed)

        return then(self._call(ask), accepted)

    def _seen(self, path: str, /, **query: str) -> Plan[Document]:
        """What the daemon says at a path of the workspace. Raises as `_query`."""
        asked = f"?{_query(query)}" if query else ""
        return self._told(self._ask("GET", f"{self._base}/{path}{asked}"))

    def _done(self, path: str, /, **body: Any) -> Plan[Document]:
        """What the daemon says once it has done something; not repeated where it may have arrived."""
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
    """What an erasure did or would do."""
    if isinstance(said, dict) and said.get("status") == "preview":
        return answer_of(ErasePlan, said, "an erasure")
    return answer_of(EraseResult, said, "an erasure")


def _answer(plan: Plan[Document], kind: type[A], what: str) -> Plan[A]:
    return then(plan, lambda said: answer_of(kind, said, what))


def _task(accepted: Accepted[Any]) -> Task:
    return accepted.task


def named_kind(task_id: str) -> Kind:
    """The kind of a task that the caller names.

    Raises:
        ConfigInvalid: its id can be none.
    """
    try:
        return kind_of(task_id)
    except BadAnswer:
        raise ConfigInvalid("the id of a task begins with remember-, forget- or dream-") from None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _query(fields: Mapping[str, str]) -> str:
    """Return fields as a query.

    Raises:
        ConfigInvalid: one has half a character.
    """
    try:
        return urlencode(fields)
    except UnicodeEncodeError:
        raise ConfigInvalid("an argument cannot have half a character") from None


def segment(text: str) -> str:
    """A segment of a path.

    Raises:
        ConfigInvalid: there can be none of this text.
    """
    try:
        encoded = quote(text, safe="")
    except UnicodeEncodeError:
        encoded = ""
    if encoded in {"", ".", ".."}:
        raise ConfigInvalid("an id or workspace cannot be empty, dots or half a character")
    return encoded


# -- following ---------------------------------------------------------------------------------------
#
# Follows the events of a workspace over any number of connections; decides, but does no I/O.
#
# V1 Each connection goes on after the newest event that was given out, so that none is missed or given
# twice; where the daemon cannot, it says `resync`. V2 It ends with an error once the daemon was away for
# the time of one call, or refuses.

QUIET_SECONDS: Final = 45.0
"""Seconds of silence after which a connection is taken for dead: the daemon says something every 15."""

MARK: Final = ""
"""The type of what is no event."""


class Following:
    """One follower.

    Args:
        core: of the client.
        after: the id of an event; None: from now on.
    """

    def __init__(self, core: ClientCore, after: str | None) -> None:
        self._core = core
        self._frames = Frames(after or "")
        self._pause, self._doubling, self._afresh = 0.0, FIRST_PAUSE, False
        self._away_since: float | None = None
        self._secret, self._workspace = "", core.follow_ask("").workspace

    def again(self) -> Try:
        """The next connection."""
        self._frames = Frames(self._frames.last_id)
        return Try(self._core.follow_ask(self._frames.last_id), QUIET_SECONDS, self._pause, self._afresh)

    def answered(self, reply: HttpReply) -> bool:
        """Whether a stream begins with this answer; the body of one that does not is there as a whole.

        Raises:
            Problem, BadAnswer: it does not, nor will another one.
        """
        self._secret = reply.secret
        if reply.status == OK:
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                raise BadAnswer("the answer is no stream of events; is this the daemon?")
            return True
        if reply.status not in NOT_NOW or self._is_away_too_long():
            checked(reply, self._workspace)
            raise BadAnswer(f"the answer has the status {reply.status}; it is no stream of events")
        self._wait(retry_after(reply))
        return False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that a piece of the stream completes; one of no type only says where it stands.

        Raises:
            BadAnswer: it is no such stream.
        """
        self._away_since, self._doubling = None, FIRST_PAUSE
        for frame in self._frames.feed(chunk):
            event_id = without(self._secret, frame.id)
            if frame.data is None:
                yield Event(event_id, MARK, {})
            else:
                yield event_of(event_id, decoded(frame.data, self._secret))

    def lost(self, lost: Lost) -> None:
        """Note that a connection ended, or was not made.

        Raises:
            Unreachable: too many times (V2).
            Unreachable: nobody who proves to be the daemon takes the connections.
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
