"""What a client asks of the daemon, as plans (see `exchange`) that return values; does no I/O.

C1 Each task is queued under an idempotency key, the caller's or one that belongs to the call alone.
C2 A wait lasts as long as it was told to, whatever becomes of the daemon meanwhile. Without a limit it ends
   once the daemon was silent, or said "not now", for the time of one call.

Source of `Prefer: wait`: RFC 7240, 4.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, assert_never, cast, get_args
from urllib.parse import quote, urlencode

from muniment.client import results
from muniment.client.errors import (
    BadAnswer,
    Problem,
    Unreachable,
    WaitTimeout,
    told_as,
)
from muniment.client.finding import check_word
from muniment.client.results import (
    KINDS,
    AuditHead,
    Decided,
    Document,
    DreamResult,
    ErasePlan,
    EraseReceipt,
    Event,
    Explained,
    ForgetResult,
    KeptEntry,
    Kind,
    Recalled,
    RecalledEntry,
    RememberResult,
    RemovedEntry,
    Result,
    Review,
    ReviewShown,
    Status,
    SupersededEntry,
    Task,
    TaskError,
    UiOpened,
    Undone,
)
from muniment.errors import NOT_NOW, ConfigInvalid
from muniment.names import __version__

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# -- exchange ----------------------------------------------------------------------------------------
#
# One request, its answer, and when it is sent again; without doing any I/O.
#
# A plan is a generator that yields each `Try`, is sent what came of it, and returns the result. The two
# shells carry tries out, one by threads, one by asyncio, and decide nothing.
#
# X1 What may have arrived is sent again only where that changes nothing: a GET, a DELETE, a POST that
# recalls, and one that queues a task, whose one Idempotency-Key goes with every try, so that no task is
# doubled. X2 429 and 503 are asked again after their Retry-After, or after a pause that doubles; no other
# answer is. X3 No try begins past the deadline of its call, and none is given more than what is left of it,
# or `GRACE_SECONDS` where that is more. A "not now" whose time lies past the deadline is raised at once.

TRY_SECONDS: Final = 10.0
"""Seconds of one try; the daemon answers in milliseconds."""

GRACE_SECONDS: Final = 1.0
"""Seconds that a try is given though less is left, so that a wait of 0 s is an answer."""

FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 2.0
"""Seconds between tries: the first pause, and what doubling it leads to at most."""

MAX_RETRY_AFTER: Final = 60.0
"""Seconds of a Retry-After that are obeyed."""

MIN_SECRET: Final = 20
"""Characters of the shortest token of a daemon. What is shorter may be a word of the contract itself."""

OK: Final = 200
_BROKEN_OFF: Final = 400


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        path: percent-encoded, with its query.
        repeatable: whether it may be sent again though it may have arrived (X1).
        hold: seconds for which the daemon may keep it waiting on purpose.
        workspace: that it is about, for messages.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    repeatable: bool = True
    hold: float = 0.0
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """One answer.

    Attributes:
        headers: names in lower case.
        secret: what it must not tell again; "": nothing.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer.

    Attributes:
        why: in words of ours.
        may_have_arrived: whether the request may have reached the daemon.
        is_stranger: whether somebody took the connection who did not prove to be the daemon.
    """

    why: str
    may_have_arrived: bool
    is_stranger: bool = False


@dataclass(frozen=True, slots=True)
class Try:
    """What a shell is to do: wait, look where the daemon is now, send.

    Attributes:
        pause: seconds to wait before.
        seconds: for the answer.
        afresh: whether the daemon may have moved meanwhile.
    """

    ask: Ask
    seconds: float
    pause: float = 0.0
    afresh: bool = False


Outcome = HttpReply | Lost
S = TypeVar("S")
T = TypeVar("T")
Plan = Generator[Try, Outcome, T]


def exchange(ask: Ask, clock: Callable[[], float], deadline: float, pause: float = 0.0) -> Plan[HttpReply]:
    """Send until there is an answer that is one.

    Args:
        ask: the request.
        clock: seconds, monotonic.
        deadline: on that clock.
        pause: seconds before the first try.

    Raises:
        Unreachable: there was none in time.
        Unreachable: nobody who proves to be the daemon takes the connections.
        Problem: it is that the daemon does not do this.
        BadAnswer: it is none of this contract.
    """
    doubling, afresh = FIRST_PAUSE, False
    while True:
        left = deadline - clock() - pause
        seconds = max(min(left, TRY_SECONDS + ask.hold), GRACE_SECONDS)
        outcome = yield Try(ask, seconds, pause, afresh)
        if isinstance(outcome, HttpReply) and outcome.status not in NOT_NOW:
            return checked(outcome, ask.workspace)
        left = deadline - clock()
        if isinstance(outcome, Lost):
            if outcome.is_stranger and afresh:  # Once more first: the daemon may have moved.
                raise Unreachable(outcome.why, is_stranger=True)
            is_over = left <= 0 or (outcome.may_have_arrived and not ask.repeatable)
            if is_over:
                raise Unreachable(
                    outcome.why, may_have_arrived=outcome.may_have_arrived and ask.method != "GET"
                )
            pause = min(doubling, left)
        else:
            told = retry_after(outcome)
            pause = doubling if told is None else told
            if pause >= left:
                raise_problem(outcome)
        afresh = isinstance(outcome, Lost)
        doubling = min(doubling * 2, LAST_PAUSE)


def checked(reply: HttpReply, workspace: str = "") -> HttpReply:
    """`reply`, which is one that carries out what was asked of a workspace.

    Raises:
        Problem: it says why not.
        BadAnswer: it says neither.
    """
    if reply.status >= _BROKEN_OFF:
        raise_problem(reply, workspace)
    if reply.status not in {OK, 202}:
        raise BadAnswer(f"the answer has the status {reply.status}; it is not followed elsewhere")
    return reply


def raise_problem(reply: HttpReply, workspace: str = "") -> NoReturn:
    """Raise what an answer says of why not, about a workspace.

    Raises:
        Problem: a class of it, by the code.
        BadAnswer: it says nothing that this contract knows.
    """
    try:
        said = document_of(reply)
    except BadAnswer:
        raise BadAnswer(f"the answer has the status {reply.status}, and does not say why") from None
    code, message = said.get("code"), said.get("error")
    if not isinstance(code, str) or not isinstance(message, str):
        raise BadAnswer(f"the answer has the status {reply.status}, and does not say why")
    if code == "untrusted_workspace" and workspace:
        message = f"{message} It was asked for {workspace}."
    fields = {name: said[name] for name in said.keys() - {"type", "title", "status", "error", "code"}}
    raise told_as(Problem, code)(
        code, message, status=reply.status, fields=fields, retry_after=retry_after(reply)
    )


def retry_after(reply: HttpReply) -> float | None:
    """Seconds after which to ask again, if the answer says so in seconds; at most `MAX_RETRY_AFTER`."""
    text = reply.headers.get("retry-after", "")
    if not (text.isascii() and text.isdecimal()):
        return None
    return min(float(text), MAX_RETRY_AFTER)


def then(plan: Plan[S], read: Callable[[S], T]) -> Plan[T]:
    """A plan whose result is read from that of another one."""
    return read((yield from plan))


def document_of(reply: HttpReply) -> dict[str, Any]:
    """The JSON object in an answer.

    Raises:
        BadAnswer: there is none.
    """
    document = decoded(reply.body, reply.secret)
    if not isinstance(document, dict):
        raise BadAnswer("the answer is no JSON object; is this the daemon?")
    return document


def decoded(text: str | bytes, secret: str) -> Any:
    """The value of a JSON text, whose texts no longer have the secret in them; None: it is no JSON.

    Args:
        text: from the daemon.
        secret: a shorter one than `MIN_SECRET` is not looked for.
    """
    try:
        return _without(secret, json.loads(text))
    except (ValueError, RecursionError):
        return None


def without(secret: str, text: str) -> str:
    """A text without the secret, as `decoded`."""
    return text.replace(secret, "[token]") if len(secret) >= MIN_SECRET else text


def _without(secret: str, value: Any) -> Any:
    if isinstance(value, str):
        return without(secret, value)
    if isinstance(value, list):
        return [_without(secret, each) for each in value]
    if isinstance(value, dict):
        return {without(secret, name): _without(secret, each) for name, each in value.items()}
    return value


# -- reading -----------------------------------------------------------------------------------------
#
# Reads what the daemon says into the values of `results`.
#
# Strict about what the contract promises; what it does not name is ignored, since a newer daemon may say
# more.

R = TypeVar("R", bound="DataclassInstance")


def kind_of(task_id: str) -> Kind:
    """The kind of a task, which its id begins with.

    Raises:
        BadAnswer: it begins with none.
    """
    kind = task_id.partition("-")[0]
    for each in KINDS:
        if kind == each:
            return each
    raise BadAnswer("the id of a task does not begin with its kind")


def task_of(document: object) -> Task:
    """A task from what the daemon said.

    Raises:
        BadAnswer: it is none; so do all of these.
    """
    wire = _Object(document, "a task")
    task_id, status = wire.text("taskId"), wire.text("status")
    kind = kind_of(task_id)
    if status not in get_args(Status):
        raise BadAnswer("a task has a status that this client does not know")
    result = error = None
    if status == "completed":
        result = _result(kind, wire.get("result"))
    elif status == "failed":
        error = _error(_Object(wire.get("error"), "an error"), wire.maybe("reviewId"))
    return Task(
        task_id,
        kind,
        cast("Status", status),
        wire.text("createdAt"),
        wire.text("updatedAt"),
        wire.maybe("contextMode"),
        wire.maybe("scope"),
        result,
        error,
    )


def tasks_of(document: object) -> list[Task]:
    """The tasks of a page; those of a kind or status that is newer than this client are left out."""
    listed = _Object(document, "a list of tasks").items("tasks")
    return [task_of(each) for each in listed if _is_known(_Object(each, "a task"))]


def event_of(frame_id: str, document: object) -> Event:
    """An event from the data of a frame."""
    wire = _Object(document, "an event")
    data = wire.get("data")
    if not isinstance(data, dict):
        raise BadAnswer("an event has no data")
    return Event(frame_id, wire.text("type"), data, wire.maybe("originatorClientId"))


def recalled_of(document: object) -> Recalled:
    """What was recalled."""
    wire = _Object(document, "a recall")
    return Recalled(
        tuple(_read(RecalledEntry, each, "a recalled entry") for each in wire.items("entries")),
        wire.text("text"),
        wire.count("tokens"),
        wire.flag("abstained"),
        wire.maybe("error"),
    )


def review_of(document: object) -> ReviewShown:
    """A review as it is shown."""
    return _read(ReviewShown, document, "a review")


def reviews_of(document: object) -> tuple[Review, ...]:
    """The reviews that wait."""
    listed = _Object(document, "a list of reviews").items("reviews")
    return tuple(_read(Review, each, "a review") for each in listed)


def decided_of(document: object) -> Decided:
    """What came of a decision."""
    return _read(Decided, document, "a decision")


def undone_of(document: object) -> Undone:
    """What an undo did."""
    return _read(Undone, document, "an undo")


def erased_of(document: object) -> ErasePlan | EraseReceipt:
    """What an erasure did or would do."""
    if _Object(document, "an erasure").text("status") == "preview":
        return _read(ErasePlan, document, "an erasure")
    return _read(EraseReceipt, document, "an erasure")


def audit_head_of(document: object) -> AuditHead:
    """The end of the chain of records."""
    return _read(AuditHead, document, "the end of the audit")


def ui_of(document: object) -> UiOpened:
    """The page, as the daemon tells where it is."""
    return _read(UiOpened, document, "the page")


def explained_of(document: object) -> Explained:
    """What the policy says."""
    return _read(Explained, document, "an explanation")


class _Object:
    """A JSON object, whose fields are what they should be or raise `BadAnswer`."""

    def __init__(self, document: object, what: str) -> None:
        if not isinstance(document, dict):
            raise BadAnswer(f"{what} is no object")
        self._fields, self._what = document, what

    def get(self, name: str) -> object:
        return self._fields.get(name)

    def text(self, name: str) -> str:
        found = self.maybe(name)
        if found is None:
            raise BadAnswer(f"{self._what} has no {name}")
        return found

    def maybe(self, name: str) -> str | None:
        found = self.get(name)
        if found is not None and not isinstance(found, str):
            raise BadAnswer(f"{name} of {self._what} is no text")
        return found

    def items(self, name: str) -> list[object]:
        found = self.get(name)
        if not isinstance(found, list):
            raise BadAnswer(f"{name} of {self._what} is no list")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        found = self.items(name)
        if not all(isinstance(each, str) for each in found):
            raise BadAnswer(f"{name} of {self._what} holds something else than texts")
        return tuple(cast("list[str]", found))

    def flag(self, name: str) -> bool:
        found = self.get(name)
        if not isinstance(found, bool):
            raise BadAnswer(f"{name} of {self._what} is neither true nor false")
        return found

    def count(self, name: str) -> int:
        found = self.get(name)
        if not isinstance(found, int) or isinstance(found, bool):
            raise BadAnswer(f"{name} of {self._what} is no number")
        return found


def _read(kind: type[R], document: object, what: str) -> R:
    """A value of a dataclass whose fields are read by their types."""
    wire = _Object(document, what)
    readers: dict[str, Callable[[str], object]] = {
        "str": wire.text,
        "str | None": wire.maybe,
        "tuple[str, ...]": wire.texts,
        "int": wire.count,
        "tuple[SupersededEntry, ...]": lambda name: tuple(
            _read(SupersededEntry, each, "what was superseded") for each in wire.items(name)
        ),
        "int | None": wire.count,  # Read where it is there.
    }
    found = {
        each.name: readers[str(each.type)](_camel(each.name))
        for each in fields(kind)
        if each.default is MISSING or wire.get(_camel(each.name)) is not None
    }
    return kind(**found)


def _is_known(task: _Object) -> bool:
    kind = task.text("taskId").partition("-")[0]
    return kind in KINDS and task.text("status") in get_args(Status)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _forgotten(document: object, what: str) -> ForgetResult:
    wire = _Object(document, what)
    return ForgetResult(
        wire.text("summary"),
        tuple(_read(RemovedEntry, each, "a removed entry") for each in wire.items("removedEntries")),
        wire.texts("touchedTopics"),
        wire.texts("touchedScopes"),
        tuple(_read(KeptEntry, each, "a kept entry") for each in wire.items("kept"))
        if wire.get("kept") is not None
        else (),
        wire.texts("near") if wire.get("near") is not None else (),
        wire.texts("notes") if wire.get("notes") is not None else (),
        wire.maybe("digest"),
    )


def _result(kind: Kind, document: object) -> Result:
    match kind:
        case "remember":
            return _read(RememberResult, document, "a result")
        case "forget":
            return _forgotten(document, "a result")
        case "dream":
            return _read(DreamResult, document, "a result")
        case _:
            assert_never(kind)


def _error(wire: _Object, review_id: str | None) -> TaskError:
    return TaskError(
        wire.text("code"),
        wire.maybe("message") or "The daemon does not say why.",
        wire.maybe("reviewId") or review_id,
        wire.texts("paths") if wire.get("paths") is not None else (),
        wire.count("meant") if wire.get("meant") is not None else None,
        wire.count("limit") if wire.get("limit") is not None else None,
    )


# -- sse ---------------------------------------------------------------------------------------------
#
# Reads a stream of server-sent events, piece by piece, wherever the pieces end.
#
# S1 The frames are the same however the bytes are cut, also inside a character or between CR and LF.
# S2 A line and a frame hold at most `MAX_FRAME_BYTES`; what is more raises, and is not kept.
#
# Does no I/O. Source: the HTML standard, 9.2.6, "Interpreting an event stream"; `retry` is ignored, as the
# client has pauses of its own.

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Bytes of one event; those of the daemon hold ids and names, some 300 bytes."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream.

    Attributes:
        id: the newest one that the stream gave; "" if it gave none.
        event: its type; `message` where it has none.
        data: its lines of data; None: it has none, and is no event; it says where the stream stands.
    """

    id: str
    event: str
    data: str | None


class Frames:
    """The frames of one connection.

    Args:
        last_id: the one that the connection went on from.

    Attributes:
        last_id: that of the newest frame that came as a whole; what a further connection goes on from.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = self._id = last_id
        self._line = bytearray()
        self._after_cr = False
        self._is_first = True
        self._event = ""
        self._data: list[str] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that `chunk` completes.

        Raises:
            BadAnswer: there is no end to a line or a frame (S2).
        """
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        *lines, rest = _LINE_END.split(chunk)
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        for end in lines:
            self._grow(end)
            line = bytes(self._line)
            self._line.clear()
            if (frame := self._take(line)) is not None:
                yield frame
        self._grow(rest)

    def _grow(self, piece: bytes) -> None:
        if len(self._line) + len(piece) + self._bytes > MAX_FRAME_BYTES:
            raise BadAnswer(f"the stream has an event of more than {MAX_FRAME_BYTES} bytes")
        self._line += piece

    def _take(self, line: bytes) -> Frame | None:
        if self._is_first:
            line, self._is_first = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode(errors="replace")
        match name:
            case b"data":
                self._data.append(text)
                self._bytes += len(line) + 1
            case b"event":
                self._event = text
            case b"id" if "\0" not in text:
                self._id = text
            case _:
                pass  # A comment, such as a heartbeat, or a field that means nothing to us.
        return None

    def _dispatch(self) -> Frame | None:
        data, event, has_moved = self._data, self._event, self._id != self.last_id
        self._data, self._event, self._bytes, self.last_id = [], "", 0, self._id
        if data:
            return Frame(self.last_id, event or "message", "\n".join(data))
        return Frame(self.last_id, event, None) if has_moved else None


# -- core --------------------------------------------------------------------------------------------

CALL_SECONDS: Final = 30.0
"""Seconds of a call with all its tries: a daemon that is started again is back in one or two."""

HOLD_SECONDS: Final = 20
"""Seconds that the daemon is asked to hold a request for a task that is not over."""

LAST_POLL_PAUSE: Final = 1.0
"""The longest pause, in seconds, between two looks at a task, where the daemon does not hold requests."""

OWNER_SECONDS: Final = 60
"""Seconds that the daemon may take for what the owner asks: it waits for whoever holds the memory."""

MAX_PAGES: Final = 100
"""Pages of one list; a daemon keeps 1000 tasks."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the daemon said when it took a task.

    Attributes:
        replayed: whether it had taken the same request before, under the same key.
    """

    task: Task
    replayed: bool


class ClientCore:
    """The requests of one client.

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
        context_mode: str | None = None,
        trust: str | None = None,
        ref: str | None = None,
        expires: str | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[Accepted]:
        """Queue a fact."""
        source = _given(trust=trust, ref=ref)
        more = _given(contextMode=context_mode, scope=scope, source=source or None, expires=expires)
        return self._queue("remember", {"content": content, **more}, idempotency_key)

    def forget(
        self,
        query: str,
        *,
        scope: str | None = None,
        dry_run: bool = False,
        digest: str | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[Accepted]:
        """Queue that something is forgotten."""
        body = {"query": query, **_given(scope=scope, dryRun=dry_run or None, digest=digest)}
        return self._queue("forget", body, idempotency_key)

    def dream(self, *, idempotency_key: str | None = None) -> Plan[Accepted]:
        """Queue that the memory is tidied."""
        return self._queue("dream", {}, idempotency_key)

    def get(self, task_id: str, kind: Kind | None = None) -> Plan[Task]:
        """A task as it is now."""
        return then(self._told(self._of_task("GET", task_id, kind)), task_of)

    def cancel(self, task_id: str) -> Plan[Task]:
        """End a task; one that is over stays as it is."""
        return then(self._told(self._of_task("DELETE", task_id)), task_of)

    def wait(self, task_id: str, timeout: float | None) -> Plan[Result]:
        """The result of a task, once it is over (C2).

        Raises:
            WaitTimeout: it was not over in time.
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

    def tasks(self, status: str | None) -> Plan[tuple[Task, ...]]:
        """The tasks that this client may see, the newest first."""
        found: list[Task] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = yield from self.read("tasks", _given(status=status, cursor=cursor))
            found += tasks_of(page)
            cursor = page.get("nextCursor")
            if cursor is None:
                return tuple(found)
            if not isinstance(cursor, str):
                raise BadAnswer("a list of tasks goes on at no text")
        raise BadAnswer(f"a list of tasks has more than {MAX_PAGES} pages")

    # -- the rest ------------------------------------------------------------------------------------------

    def recall(self, query: str, *, exclude: Iterable[str] = (), limit: int | None = None) -> Plan[Recalled]:
        """What of the memory helps with a message; repeated, since that changes nothing in it."""
        body = {"query": query, **_given(exclude=list(exclude) or None, limit=limit)}
        return then(self._told(self._ask("POST", f"{self._base}/recall", body)), recalled_of)

    def capabilities(self) -> Plan[Document]:
        """What the daemon offers."""
        return self._told(self._ask("GET", "/capabilities"))

    def open_ui(self) -> Plan[UiOpened]:
        """Where the page is, and a code to sign in with; repeated, since each code works once."""
        return then(self._told(self._ask("POST", "/ui", {})), ui_of)

    def read(self, path: str, query: Mapping[str, str] | None = None) -> Plan[Document]:
        """What the daemon says at a path of the workspace."""
        return self._told(self._ask("GET", _with(f"{self._base}/{path}", query or {})))

    def do(self, path: str, body: Document) -> Plan[Document]:
        """Do something at once; not repeated where it may have arrived."""
        ask = self._ask("POST", f"{self._base}/{path}", body, repeatable=False, hold=OWNER_SECONDS)
        return self._told(ask)

    def follow_ask(self, last_id: str) -> Ask:
        """The request for the stream of events after one."""
        headers = {**self._headers, "accept": "text/event-stream"}
        if last_id:
            headers["last-event-id"] = check_word("id of an event", last_id)
        return Ask("GET", f"{self._base}/events", headers, workspace=self._workspace)

    # -- how ----------------------------------------------------------------------------------------------

    def _queue(self, kind: Kind, body: Document, key: str | None) -> Plan[Accepted]:
        key = check_word("idempotency key", key) if key is not None else self._new_key()
        ask = self._ask("POST", f"{self._base}/{kind}", body, headers={"idempotency-key": key})
        return then(
            self._call(ask),
            lambda reply: Accepted(
                task_of(document_of(reply)), reply.headers.get("idempotency-replayed", "").lower() == "true"
            ),
        )

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


def _with(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


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


# -- owner -------------------------------------------------------------------------------------------
#
# Plans for what only the owner may ask: reviews, undo, erase, the audit, the policy.


def reviews(core: ClientCore) -> Plan[tuple[results.Review, ...]]:
    """The change-sets that wait."""
    return then(core.read("review"), reviews_of)


def review(core: ClientCore, review_id: str) -> Plan[results.ReviewShown]:
    """One of them, as it would be approved now."""
    return then(core.read(f"review/{segment(review_id)}"), review_of)


def approve(core: ClientCore, review_id: str, digest: str) -> Plan[results.Decided]:
    """Commit one exactly as it was shown."""
    return then(core.do(f"review/{segment(review_id)}/approve", {"digest": digest}), decided_of)


def reject(core: ClientCore, review_id: str) -> Plan[results.Decided]:
    """Turn one down."""
    return then(core.do(f"review/{segment(review_id)}/reject", {}), decided_of)


def undo(core: ClientCore, task_id: str) -> Plan[results.Undone]:
    """Take back what a task changed."""
    return then(core.do("undo", {"taskId": task_id}), undone_of)


def erase(core: ClientCore, target: str, *, yes: bool) -> Plan[results.ErasePlan | results.EraseReceipt]:
    """Erase what is known of a task or a path, or say what would go."""
    return then(core.do("erase", {"target": target, "yes": yes}), erased_of)


def audit_head(core: ClientCore) -> Plan[results.AuditHead]:
    """The end of the chain of records."""
    return then(core.read("audit/head"), audit_head_of)


def explain(core: ClientCore, verb: str, path: str) -> Plan[results.Explained]:
    """What the policy says to a verb on a path."""
    return then(core.read("policy/explain", {"verb": verb, "path": path}), explained_of)


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
