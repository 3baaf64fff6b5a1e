"""The broker's end of the protocol: it exchanges messages with a worker and trusts none of them.

Before a message is used, its size is checked, and a table that accepts no unknown member checks its content.
An invalid message ends the worker (`WorkerLost`). The content of a message (texts, decisions, a change set)
is input for the language model and for the judge, never a decision.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, get_args

from muniment.errors import BadArguments, PathEscape, Refusal, TooLarge, ToolError, WorkerLost
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, read_proposal
from muniment.kernel.decide import Policy
from muniment.kernel.names import MAX_FILE_BYTES, MAX_PATH_BYTES, Digest, Scope, Via
from muniment.names import Confinement, FenceLayer
from muniment.policy.grammar import NO_LINKS, Links
from muniment.sandbox.fence.evidence import determine_confinement, read_status
from muniment.sandbox.fence.pool import Worker
from muniment.sandbox.tools.calls import Outcome, ToolVerdict, build_error_outcome, check_sizes, check_tool
from muniment.sandbox.tools.overlay import NOTHING_INJECTED, InjectedDigests
from muniment.sandbox.tools.schemas import Schema, Schemas, find_problem
from muniment.sandbox.tools.service import MAX_CALL_BYTES

MAX_RESULT_BYTES: Final = 1 << 20
"""Maximum bytes of the text of one result; the tools return far less."""

_DIGEST: Final[Schema] = {"type": "string", "pattern": "[0-9a-f]{64}"}
_DIGEST_OR_NULL: Final[Schema] = {**_DIGEST, "nullable": True}
_PATH: Final[Schema] = {"type": "string", "maxLength": 4 * MAX_PATH_BYTES}

_MESSAGES: Final[Mapping[str, Schemas]] = {
    "hello": {
        "missing": {
            "type": "object",
            "properties": {layer: {"type": "integer", "default": 0} for layer in FenceLayer},
        }
    },
    "ready": {"digest": _DIGEST},
    "result": {
        "n": {"type": "integer"},
        "verdict": {"type": "string", "enum": get_args(ToolVerdict)},
        "code": {"type": "string", "pattern": "[a-z_]{1,40}", "nullable": True},
        "rule": {"type": "string", "maxLength": 100, "nullable": True},
        "via": {"type": "string", "enum": tuple(Via), "nullable": True},
    },
    "change": {"path": _PATH, "base": _DIGEST_OR_NULL},
    "claim": {"path": _PATH, "digest": _DIGEST_OR_NULL},
    "end": {},
}
"""The members of each message of a worker, without its type `t`."""


class ToolExecutor(Protocol):
    """Executes the tool calls of a run, in this process (`Workbench`) or in a worker (`RemoteExecutor`)."""

    def call(self, tool: object, arguments: object) -> Outcome:
        """Execute one tool call."""
        ...

    def change_set(self) -> ChangeSet:
        """Return the changes that the run has proposed until now."""
        ...


def receive_hello(worker: Worker, deadline: Deadline) -> Confinement:
    """Receive the first message of a fresh worker, and return the confinement of the worker.

    Raises:
        WorkerLost: the worker died, or sent another message.
        DeadlineExceeded, Cancelled: the wait ended. The worker was ended.
    """
    header, _ = worker.receive(max_body=0, deadline=deadline)
    hello = _check_message(worker, header, "hello")
    status = read_status(worker.pid)
    worker.check_alive()
    missing = {FenceLayer(name): error for name, error in hello["missing"].items()}
    return determine_confinement(missing, status, read_status(os.getpid()))


def _check_message(
    worker: Worker, header: Mapping[str, Any], *expected: str, label: str | None = None
) -> Mapping[str, Any]:
    """Return `header` if it is a valid message of an expected type; otherwise end the worker."""
    members = dict(header)
    kind = members.pop("t", None)
    if kind not in expected or find_problem(_MESSAGES[kind], members) is not None:
        raise _end_worker(worker, f"sent an invalid {label or expected[0]}")
    return header


def _end_worker(worker: Worker, problem: str) -> WorkerLost:
    worker.kill()
    return WorkerLost(f"the worker {problem}")


class RemoteExecutor:
    """Executes the tool calls of a run in a worker.

    Args:
        worker: a fresh worker after `receive_hello`, without further messages.
        policy: the effective policy of the run.
        scopes: the scopes of the run.
        must_read: whether a file must be read before it may be replaced.
        get_deadline: called before every wait; returns the deadline.
        links: links by scope, for the scopes whose links are resolved.
        injected: entries that count as read, with the digests of the injected files.
    """

    def __init__(
        self,
        worker: Worker,
        policy: Policy,
        scopes: tuple[Scope, ...],
        *,
        must_read: bool,
        get_deadline: Callable[[], Deadline],
        links: Mapping[Scope, Links] = NO_LINKS,
        injected: InjectedDigests = NOTHING_INJECTED,
    ) -> None:
        self._worker, self._policy, self._get_deadline, self._scopes = worker, policy, get_deadline, scopes
        self._call_count, self._injected_count = 0, len(injected)
        init_message = {
            "t": "init",
            "policy": policy.name,
            "scopes": list(scopes),
            "must_read": must_read,
            "links": list(links),
            "shown": [[path.scope, path.rel, seen] for path, seen in injected.items()],
        }
        worker.send(init_message, policy.text.encode(), deadline=get_deadline())
        for mapped in links.values():
            worker.send({"t": "links"}, json.dumps(mapped).encode(), deadline=get_deadline())
        header, _ = worker.receive(max_body=0, deadline=get_deadline())
        if _check_message(worker, header, "ready")["digest"] != policy.digest:
            raise _end_worker(worker, "loaded another policy than the one that was sent")

    def call(self, tool: object, arguments: object) -> Outcome:
        """Execute one tool call in the worker.

        Raises:
            DeadlineExceeded, Cancelled: the wait ended. The worker was ended.
            WorkerLost: the worker died or broke the protocol.
        """
        try:
            name = check_tool(tool)
            check_sizes(arguments)
            body = _encode_arguments(arguments)
        except (PathEscape, Refusal, ToolError) as error:
            return build_error_outcome(error)
        self._call_count += 1
        request = {"t": "call", "n": self._call_count, "tool": name}
        header, response = self._worker.request(
            request, body, max_body=MAX_RESULT_BYTES, deadline=self._get_deadline()
        )
        result = _check_message(self._worker, header, "result")
        if result["n"] != self._call_count:
            raise _end_worker(self._worker, "returned the result of another call")
        if (result["verdict"] == "allow") != (result["code"] is None):
            raise _end_worker(self._worker, "returned a verdict that contradicts its code")
        try:
            text = response.decode()
        except UnicodeDecodeError:
            raise _end_worker(self._worker, "returned bytes that are not text") from None
        via = None if result["via"] is None else Via(result["via"])
        return Outcome(result["verdict"], result["code"], text, rule=result["rule"], via=via)

    def change_set(self) -> ChangeSet:
        """Fetch the changes that the worker proposes.

        The number of changes and bytes is bounded by the policy. The number of claims is bounded by the
        number of injected entries and calls, because each of them adds at most one claim.

        Raises:
            DeadlineExceeded, Cancelled: the wait ended. The worker was ended.
            WorkerLost: the worker died, broke the protocol, or proposed more than allowed.
            PathEscape, BadName, Refused: a proposed path is invalid, as described in `read_proposal`.
        """
        changes: list[tuple[str, Digest | None, bytes]] = []
        claims: list[tuple[str, Digest | None]] = []
        limits = self._policy.limits
        remaining_bytes = limits.write_bytes
        deadline = self._get_deadline()
        self._worker.send({"t": "changes"}, deadline=deadline)
        while True:
            header, content = self._worker.receive(
                max_body=min(remaining_bytes, MAX_FILE_BYTES), deadline=deadline
            )
            item = _check_message(self._worker, header, "change", "claim", "end", label="change-set")
            match item["t"]:
                case "end":
                    return read_proposal(changes, claims, self._scopes)
                case "change":
                    remaining_bytes -= len(content)
                    changes.append((item["path"], item["base"], content))
                case _:
                    claims.append((item["path"], item["digest"]))
            if len(changes) > limits.files_written or len(claims) > self._call_count + self._injected_count:
                raise _end_worker(self._worker, "proposed more than its budget")


def _encode_arguments(arguments: object) -> bytes:
    try:
        body = json.dumps(arguments, allow_nan=False).encode()
    except ValueError:
        raise BadArguments("the arguments contain NaN or infinity; use finite numbers") from None
    if len(body) > MAX_CALL_BYTES:
        raise TooLarge("the arguments are too large; shorten them")
    return body
