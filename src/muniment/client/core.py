"""What a client asks of the daemon, as plans (see `exchange`) that return values; does no I/O.

C1 Each task is queued under an idempotency key, the caller's or one that belongs to the call alone.
C2 A wait lasts as long as it was told to, whatever becomes of the daemon meanwhile. Without a limit it ends
   once the daemon was silent, or said "not now", for the time of one call.

Source of `Prefer: wait`: RFC 7240, 4.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from muniment.client.errors import BadAnswer, Problem, Unreachable, WaitTimeout
from muniment.client.exchange import FIRST_PAUSE, NOT_NOW, Ask, Plan, Reply, document_of, exchange, then
from muniment.client.finding import check_word
from muniment.client.reading import kind_of, recalled_of, task_of, tasks_of
from muniment.client.results import Document, Kind, Recalled, Result, Task
from muniment.errors import ConfigInvalid
from muniment.names import __version__

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


class Core:
    """The requests of one client.

    Args:
        new_key: makes an idempotency key; another one each time.
        clock: seconds, monotonic.
        client_id: goes with every request.
        workspace: its key or real path, see `finding.name_workspace`; None: the daemon's first.
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
        idempotency_key: str | None = None,
    ) -> Plan[Accepted]:
        """Queue a fact."""
        source = _given(trust=trust, ref=ref)
        return self._queue(
            "remember",
            {"content": content, **_given(contextMode=context_mode, scope=scope, source=source or None)},
            idempotency_key,
        )

    def forget(
        self,
        query: str,
        *,
        scope: str | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Plan[Accepted]:
        """Queue that something is forgotten."""
        body = {"query": query, **_given(scope=scope, dryRun=dry_run or None)}
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

    def _call(self, ask: Ask) -> Plan[Reply]:
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
