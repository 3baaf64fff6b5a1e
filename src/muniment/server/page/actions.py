"""The forms of the page: one function for each, which calls the same jobs as the API and the command line.

This module is separate from `views`, whose functions change nothing.
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
from muniment.operations.edit import check_editable, replace_body, replace_text
from muniment.operations.job_context import JobContext
from muniment.server import requests
from muniment.server.contract import HttpProblem
from muniment.server.page import views
from muniment.server.page.call import PageCall
from muniment.server.routes import accept
from muniment.store.tasks import OWNER, Originator
from muniment.types import RememberRequest, RememberResult

OWNER_ORIGINATOR: Final = Originator(OWNER)

Form = Mapping[str, str]

_ENDS: Final = re.compile(r"\r\n?")


async def remember(call: PageCall, form: Form) -> Response:
    """Accept a fact that the user wants remembered. If the user chose "Preview", only show the changes."""
    # Browsers send only this line end in forms.
    document = {"content": form.get("content", "").replace("\r\n", "\n")}
    if form.get("scope"):
        document["scope"] = form["scope"]
    new_task = requests.parse_remember(document, call.workspace)
    if form.get("try"):
        return await _preview_fact(call, new_task.arguments)
    task = (await accept(call, new_task, OWNER_ORIGINATOR)).task
    return call.redirect("memory", f"Accepted as {task.id}; the view Tasks shows the result.")


async def _preview_fact(call: PageCall, fact: Mapping[str, Any]) -> Response:
    from muniment.operations.remember import remember as job

    request = RememberRequest(fact["content"], fact["scope"], fact["context"], dry_run=True)

    def body(context: JobContext, cancel: Cancel) -> RememberResult:
        return job(request, context, call.core.model, cancel=cancel)

    result = await call.run_while_connected(body)
    return await call.render_view("preview.html", lambda *_: {"request": request, "result": result})


async def forget(call: PageCall, form: Form) -> Response:
    """Forget one entry. The form must contain its path, because a description could match other entries."""
    path = await call.run_in_context(lambda context, _: _read_entry(context, form.get("path", ""))[0])
    if not path.rel.endswith(FILE_SUFFIX):
        raise NotFound(f"{path.text} is not an entry; use a path such as user/editor.md")
    task = (
        await accept(call, requests.parse_forget({"query": path.text}, call.workspace), OWNER_ORIGINATOR)
    ).task
    return call.redirect("task", "Accepted.", id=task.id)


async def dream(call: PageCall, _: Form) -> Response:
    """Tidy the memory."""
    task = (await accept(call, requests.parse_dream({}, call.workspace), OWNER_ORIGINATOR)).task
    return call.redirect("task", "Accepted.", id=task.id)


async def edit(call: PageCall, form: Form) -> Response:
    """Save the edited body of an entry; if that fails, show the form again with the reason."""
    path = form.get("path", "")
    body = form.get("body", "")

    def save(context: JobContext, _: Cancel) -> tuple[str, str]:
        entry_path, before = _read_entry(context, path)
        if digest(before) != form.get("digest"):
            raise StoreConflict((entry_path.text,))
        check_editable(context, entry_path)
        text = _restore_line_ends(parse(before).body, body)
        if text is None:
            return "", path
        result = replace_text(context, entry_path, before, replace_body(before, text))
        return result.task_id or "", result.path

    try:
        task, now = await call.run_in_context(save)
    except PendingReview as waits:
        notice = f"Not saved yet: it needs your approval, because {'; '.join(waits.reasons)}."
        return call.redirect("review", notice, id=waits.review_id)
    except MunimentError as error:
        problem = f"Not saved: {error} [{error.code}]"

        def render_again(context: JobContext, _: PageCall) -> views.TemplateValues:
            return views.build_edit_form(context, path, body, form.get("digest", ""), problem)

        return await call.render_view("edit.html", render_again, status=409)
    notice = f"Saved; to revert it, undo {task}." if task else "Nothing was changed."
    return call.redirect("entry", notice, path=now)


def _restore_line_ends(before: str, sent: str) -> str | None:
    """Return the sent text with the line ends of the original text; None if the text is unchanged."""
    text, was = (_ENDS.sub("\n", each) for each in (sent, before))
    if was.endswith("\n") and not text.endswith("\n"):
        text += "\n"  # Users often omit the last line end in a form.
    if text == was:
        return None
    return text.replace("\n", "\r\n") if "\r\n" in before else text


async def pin(call: PageCall, form: Form) -> Response:
    """Pin an entry, or unpin a pinned one."""

    def move(context: JobContext, _: Cancel) -> str:
        path, _before = _read_entry(context, form.get("path", ""))
        return editing.toggle_pin(context, path.text).path

    path = await call.run_in_context(move)
    return call.redirect("entry", f"The entry is now {path}.", path=path)


async def undo(call: PageCall, form: Form) -> Response:
    """Undo the changes of a task."""
    task = form.get("task", "")
    result = await call.run_in_context(lambda context, cancel: review.undo_task(task, context, cancel=cancel))
    if result.error is not None:
        raise result.error
    notice = f"Undid {task}; to restore it, undo {result.task_id}."
    path = form.get("path")
    remaining_paths = [each.path for each in result.changes if each.kind != "delete"]
    if path not in remaining_paths and len(remaining_paths) == 1:
        path = remaining_paths[0]  # The entry has its earlier name again.
    return call.redirect("entry" if "path" in form else "memory", notice, path=path)


async def approve(call: PageCall, form: Form) -> Response:
    """Commit a pending review exactly as it was displayed."""
    review_id, digest = form.get("id", ""), form.get("digest", "")
    done = await call.run_in_context(
        lambda context, cancel: review.approve_review(review_id, digest, context, cancel=cancel)
    )
    return call.redirect("reviews", f"Approved {done.review_id} as {done.task_id}.")


async def reject(call: PageCall, form: Form) -> Response:
    """Reject a pending review permanently."""
    review_id = form.get("id", "")
    done = await call.run_in_context(
        lambda context, cancel: review.reject_review(review_id, context, cancel=cancel)
    )
    return call.redirect("reviews", f"Rejected {done.review_id}; nothing was written.")


async def cancel_task(call: PageCall, form: Form) -> Response:
    """Cancel a task."""
    try:
        call.wait()
        task = await call.core.cancel(call.workspace, form.get("id", ""), OWNER_ORIGINATOR)
    except NotFound:
        raise HttpProblem("task_not_found") from None
    notice = "Cancelled." if task.status == "cancelled" else f"The task is {task.status}."
    return call.redirect("task", notice, id=task.id)


def _read_entry(context: JobContext, unsafe_path: str) -> tuple[CanonicalPath, bytes]:
    """Return the path of an entry in canonical form, and the bytes of its file."""
    path = context.resolve_path(unsafe_path)
    return path, context.read_file(path)


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
"""For each path of a form: the function that processes the form, and the view to return to if it fails."""
