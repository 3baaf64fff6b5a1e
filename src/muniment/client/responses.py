"""Convert the daemon's responses to the values of `results` and `types`; this module does no I/O.

`types.documents.parse_document` checks each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from muniment.client.errors import BadAnswer
from muniment.client.results import KINDS, STATUSES, Document, Event, Result, Task
from muniment.types import DreamResult, ErasePlan, EraseResult, ForgetResult, Kind, RememberResult, TaskError
from muniment.types.documents import WireDocument, parse_document

A = TypeVar("A", bound=WireDocument)

_RESULTS: Final[Mapping[Kind, type[Result]]] = {
    "remember": RememberResult,
    "forget": ForgetResult,
    "dream": DreamResult,
}


def read_response(kind: type[A], document: object, what: str) -> A:
    """Convert a JSON value from the daemon to an object of the class `kind`.

    Args:
        kind: the class to return.
        document: the decoded JSON value.
        what: a name of the value for the error message, such as "a task".

    Raises:
        BadAnswer: the value is not valid for this class. Other functions that read responses raise it too.
    """
    try:
        return parse_document(kind, document, what)
    except ValueError as error:
        raise BadAnswer(str(error)) from None


def parse_kind(task_id: str) -> Kind:
    """Return the kind of a task, which its id begins with: `remember`, `forget` or `dream`.

    Raises:
        BadAnswer: the id begins with another word.
    """
    kind = task_id.partition("-")[0]
    for each in KINDS:
        if kind == each:
            return each
    raise BadAnswer("invalid task id: it must begin with remember-, forget- or dream-")


def read_task(document: object) -> Task:
    """Convert a JSON value from the daemon to a `Task`. Raises as `read_response`."""
    members = document if isinstance(document, dict) else {}
    bare = {**members, "kind": _get_kind(members), "result": None, "error": None}
    task = read_response(Task, bare if members else document, "a task")
    kind, error = parse_kind(task.task_id), members.get("error")
    if task.status not in STATUSES:
        raise BadAnswer("the daemon returned a task with an unknown status; update this client")
    if task.status == "completed":
        result = read_response(_RESULTS[kind], members.get("result"), "a result")
        return replace(task, result=replace(result, task_id=task.task_id))
    if task.status != "failed":
        return task
    if isinstance(error, dict):
        instead = {"message": "The daemon returned no reason.", "reviewId": task.review_id}
        error |= {name: value for name, value in instead.items() if error.get(name) in {None, ""}}
    return replace(task, error=read_response(TaskError, error, "an error"))


def read_tasks(page: Document) -> list[Task]:
    """Return the tasks of one page of a list.

    Tasks with a kind or a status that this version of the client does not know are skipped.
    """
    listed = page.get("tasks")
    if not isinstance(listed, list):
        raise BadAnswer("invalid task list from the daemon: `tasks` is not a list")
    return [read_task(each) for each in listed if not _is_newer(each)]


def _is_newer(document: object) -> bool:
    if not isinstance(document, dict) or not all(
        isinstance(document.get(each), str) for each in ("taskId", "status")
    ):
        return False  # The document is invalid, which `read_task` reports.
    return _get_kind(document) not in KINDS or document["status"] not in STATUSES


def _get_kind(task: Mapping[str, Any]) -> str:
    return str(task.get("taskId")).partition("-")[0]


def read_event(frame_id: str, document: object) -> Event:
    """Convert the data of a frame (one message of the event stream) to an `Event`.

    Args:
        frame_id: the id of the frame, which becomes the id of the event.
        document: the decoded JSON value.
    """
    event = {**document, "id": frame_id} if isinstance(document, dict) else document
    return read_response(Event, event, "an event")


def read_erasure(document: object) -> ErasePlan | EraseResult:
    """Convert the response to an erase request: the plan of a dry run, or the result."""
    if isinstance(document, dict) and document.get("status") == "preview":
        return read_response(ErasePlan, document, "an erasure")
    return read_response(EraseResult, document, "an erasure")
