"""The forms of the page: one function for each, which calls the same jobs as the API and the command line.

Separate from `views`, which change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.responses import Response

from muniment.cancelling import Cancel
from muniment.content.entry import parse
from muniment.errors import MunimentError, NotFound, PendingReview, StoreConflict
from muniment.kernel.change import digest
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.operations import edit as editing
from muniment.operations import review
from muniment.operations.edit import check_editable, replace_text, with_body
from muniment.operations.place import Place
from muniment.server import asking
from muniment.server.contract import HttpProblem
from muniment.server.page import views
from muniment.server.page.call import PageCall
from muniment.server.routes import accept
from muniment.store.tasks import OWNER, Originator
from muniment.types import RememberRequest, RememberResult

US: Final = Originator(OWNER)

Form = Mapping[str, str]

_ENDS: Final = re.compile(r"\r\n?")


async def remember(call: PageCall, form: Form) -> Response:
    """Accept a fact or, if the user requested a preview, preview the changes."""
    # Browsers send only this line end in forms.
    document = {"content": form.get("content", "").replace("\r\n", "\n")}
    if form.get("scope"):
        document["scope"] = form["scope"]
    asked = asking.remember(document, call.workspace)
    if form.get("try"):
        return await _tried(call, asked.arguments)
    task = (await accept(call, asked, US)).task
    return call.go("memory", f"Accepted as {task.id}; Tasks shows the result.")


async def _tried(call: PageCall, fact: Mapping[str, Any]) -> Response:
    from muniment.operations.remember import remember as job

    asked = RememberRequest(fact["content"], fact["scope"], fact["context"], dry_run=True)

    def body(place: Place, cancel: Cancel) -> RememberResult:
        return job(asked, place, call.core.model, cancel=cancel)

    result = await call.while_awaited(body)
    return await call.show("preview.html", lambda *_: {"request": asked, "result": result})


async def forget(call: PageCall, form: Form) -> Response:
    """Forget one entry, given by its path; other texts are rejected, since they could match any entry."""
    path = await call.at_place(lambda place, _: _present(place, form.get("path", ""))[0])
    if not path.rel.endswith(FILE_SUFFIX):
        raise NotFound(f"{path.text} is not an entry")
    task = (await accept(call, asking.forget({"query": path.text}, call.workspace), US)).task
    return call.go("task", "Accepted.", id=task.id)


async def dream(call: PageCall, _: Form) -> Response:
    """Tidy the memory."""
    task = (await accept(call, asking.dream({}, call.workspace), US)).task
    return call.go("task", "Accepted.", id=task.id)


async def edit(call: PageCall, form: Form) -> Response:
    """Save the edited body of an entry; if that fails, show the form again with the reason."""
    path = form.get("path", "")
    body = form.get("body", "")

    def save(place: Place, _: Cancel) -> tuple[str, str]:
        at, before = _present(place, path)
        if digest(before) != form.get("digest"):
            raise StoreConflict((at.text,))
        check_editable(place, at)
        text = _as_lines_end(parse(before).body, body)
        if text is None:
            return "", path
        result = replace_text(place, at, before, with_body(before, text))
        return result.task_id or "", result.path

    try:
        task, now = await call.at_place(save)
    except PendingReview as waits:
        told = f"Not saved yet, it needs your review: {'; '.join(waits.reasons)}."
        return call.go("review", told, id=waits.review_id)
    except MunimentError as error:
        problem = f"Not saved: {error} [{error.code}]"

        def again(place: Place, _: PageCall) -> views.Shown:
            return views.editing(place, path, body, form.get("digest", ""), problem)

        return await call.show("edit.html", again, status=409)
    told = f"Saved; to revert it, undo {task}." if task else "Nothing was changed."
    return call.go("entry", told, path=now)


def _as_lines_end(before: str, sent: str) -> str | None:
    """Return the text of a browser with the line ends of the original; None if the text is unchanged."""
    text, was = (_ENDS.sub("\n", each) for each in (sent, before))
    if was.endswith("\n") and not text.endswith("\n"):
        text += "\n"  # Users often omit the last line end in a form.
    if text == was:
        return None
    return text.replace("\n", "\r\n") if "\r\n" in before else text


async def pin(call: PageCall, form: Form) -> Response:
    """Pin an entry, or unpin a pinned one."""

    def move(place: Place, _: Cancel) -> str:
        path, _before = _present(place, form.get("path", ""))
        return editing.pin(place, path.text).path

    path = await call.at_place(move)
    return call.go("entry", f"The entry is now {path}.", path=path)


async def undo(call: PageCall, form: Form) -> Response:
    """Undo the changes of a task."""
    task = form.get("task", "")
    result = await call.at_place(lambda place, cancel: review.undo(task, place, cancel=cancel))
    if result.error is not None:
        raise result.error
    told = f"Undid {task}; to restore it, undo {result.task_id}."
    path = form.get("path")
    there = [each.path for each in result.changes if each.kind != "delete"]
    if path not in there and len(there) == 1:
        path = there[0]  # The entry has its earlier name again.
    return call.go("entry" if "path" in form else "memory", told, path=path)


async def approve(call: PageCall, form: Form) -> Response:
    """Commit a pending review exactly as it was displayed."""
    review_id, shown = form.get("id", ""), form.get("digest", "")
    done = await call.at_place(lambda place, cancel: review.approve(review_id, shown, place, cancel=cancel))
    return call.go("reviews", f"Approved {done.review_id} as {done.task_id}.")


async def reject(call: PageCall, form: Form) -> Response:
    """Reject a pending review permanently."""
    review_id = form.get("id", "")
    done = await call.at_place(lambda place, cancel: review.reject(review_id, place, cancel=cancel))
    return call.go("reviews", f"Rejected {done.review_id}; nothing was written.")


async def cancel_task(call: PageCall, form: Form) -> Response:
    """Cancel a task."""
    try:
        call.wait()
        task = await call.core.cancel(call.workspace, form.get("id", ""), US)
    except NotFound:
        raise HttpProblem("task_not_found") from None
    told = "Cancelled." if task.status == "cancelled" else f"The task is {task.status}."
    return call.go("task", told, id=task.id)


def _present(place: Place, unsafe_path: str) -> tuple[CanonicalPath, bytes]:
    """Return a path and the bytes of its file."""
    path = place.path(unsafe_path)
    return path, place.read(path)


ACTIONS: Final[Mapping[str, tuple[Callable[[PageCall, Form], Awaitable[Response]], str]]] = {
    "/remember": (remember, "memory"),
    "/forget": (forget, "entry"),
    "/dream": (dream, "tasks"),
    "/edit": (edit, "edit"),
    "/pin": (pin, "entry"),
    "/undo": (undo, "entry"),
    "/approve": (approve, "review"),
    "/reject": (reject, "review"),
    "/cancel": (cancel_task, "task"),
}
"""The function of each form by its path, and the view to return to if it fails."""
