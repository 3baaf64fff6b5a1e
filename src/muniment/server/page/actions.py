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
from muniment.content.gates import clean_foreign_line
from muniment.content.titles import read_current_titles
from muniment.errors import MunimentError, NotFound, PendingReview, StoreConflict
from muniment.kernel.change import digest
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.operations import edit as editing
from muniment.operations import review
from muniment.operations.edit import check_editable, replace_body, replace_text
from muniment.operations.fact_changes import merge_changes, merge_steps
from muniment.operations.job_context import JobContext
from muniment.operations.undoable import load_task_steps
from muniment.server import requests
from muniment.server.contract import HttpProblem
from muniment.server.page import views
from muniment.server.page.call import PageCall
from muniment.server.page.changes import describe_facts, describe_undo
from muniment.server.routes import accept
from muniment.store.review import load_pending
from muniment.store.tasks import OWNER, Originator
from muniment.types import RememberRequest, RememberResult, UndoResult

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
    await accept(call, new_task, OWNER_ORIGINATOR)
    notice = (
        "Accepted. The fact appears under Recent when it is saved. If not, the view Tasks shows the reason."
    )
    return call.redirect("memory", notice)


async def _preview_fact(call: PageCall, fact: Mapping[str, Any]) -> Response:
    from muniment.operations.remember import remember as job

    request = RememberRequest(fact["content"], fact["scope"], fact["context"], dry_run=True)

    def body(context: JobContext, cancel: Cancel) -> RememberResult:
        return job(request, context, call.core.model, cancel=cancel)

    result = await call.run_while_connected(body)

    def build_values(context: JobContext, _: PageCall) -> views.TemplateValues:
        similar = [(each.path, views.read_title(context, each.path)) for each in result.similar]
        changes = [*merge_changes(result.changes)]
        return {"request": request, "result": result, "changes": changes, "similar": similar}

    return await call.render_view("preview.html", build_values)


async def forget(call: PageCall, form: Form) -> Response:
    """Forget one entry. The form must contain its path, because a description could match other entries."""
    path = await call.run_in_context(lambda context, _: _read_entry(context, form.get("path", ""))[0])
    if not path.rel.endswith(FILE_SUFFIX):
        raise NotFound(f"{path.text} is not an entry; use a path such as user/editor.md")
    task = (
        await accept(call, requests.parse_forget({"query": path.text}, call.workspace), OWNER_ORIGINATOR)
    ).task
    return call.redirect("task", id=task.id)


async def dream(call: PageCall, _: Form) -> Response:
    """Tidy the memory."""
    task = (await accept(call, requests.parse_dream({}, call.workspace), OWNER_ORIGINATOR)).task
    return call.redirect("task", id=task.id)


async def edit(call: PageCall, form: Form) -> Response:
    """Save the edited body of an entry; if that fails, show the form again with the reason."""
    path = form.get("path", "")
    body = form.get("body", "")

    def save(context: JobContext, _: Cancel) -> tuple[str, str]:
        """Return the notice, and the path of the entry afterwards."""
        entry_path, before = _read_entry(context, path)
        if digest(before) != form.get("digest"):
            raise StoreConflict((entry_path.text,))
        check_editable(context, entry_path)
        text = _restore_line_ends(parse(before).body, body)
        if text is None:
            return "Nothing was changed.", path
        result = replace_text(context, entry_path, before, replace_body(before, text))
        if result.task_id is None:
            return "Nothing was changed.", result.path
        changes = merge_steps(load_task_steps(context, result.task_id))
        return f"Saved: {describe_facts(changes)}. To reverse this, use Undo.", result.path

    try:
        notice, now = await call.run_in_context(save)
    except PendingReview as waits:
        notice = f"Not saved yet: it needs your approval, because {'; '.join(waits.reasons)}."
        return call.redirect("review", notice, id=waits.review_id)
    except MunimentError as error:
        problem = f"Not saved: {error} [{error.code}]"

        def render_again(context: JobContext, _: PageCall) -> views.TemplateValues:
            return views.build_edit_form(context, path, body, form.get("digest", ""), problem)

        return await call.render_view("edit.html", render_again, status=409)
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

    def move(context: JobContext, _: Cancel) -> tuple[str, str]:
        path, before = _read_entry(context, form.get("path", ""))
        result = editing.toggle_pin(context, path.text)
        title = clean_foreign_line(read_current_titles(parse(before), path.rel).name)
        return f'{"Pinned" if result.pinned else "Unpinned"}: "{title}".', result.path

    notice, path = await call.run_in_context(move)
    return call.redirect("entry", notice, path=path)


async def undo(call: PageCall, form: Form) -> Response:
    """Undo the changes of a task, and return to the view that contains the form."""
    task = form.get("task", "")

    def reverse(context: JobContext, cancel: Cancel) -> tuple[UndoResult, str]:
        result = review.undo_task(task, context, cancel=cancel)
        steps = () if result.error is not None else load_task_steps(context, result.task_id)
        return result, describe_undo([*merge_steps(steps)])

    path = form.get("path")
    view = "timeline" if form.get("view") == "timeline" else "memory" if path is None else "entry"
    call.return_url = call.build_url(view, path=path)
    result, notice = await call.run_in_context(reverse)
    if result.error is not None:
        raise result.error
    remaining_paths = [each.path for each in result.changes if each.kind != "delete"]
    if path is not None and path not in remaining_paths and len(remaining_paths) == 1:
        path = remaining_paths[0]  # The entry has its earlier name again.
    return call.redirect(view, notice, path=path)


async def approve(call: PageCall, form: Form) -> Response:
    """Commit a pending review exactly as it was displayed."""
    review_id, digest = form.get("id", ""), form.get("digest", "")
    done = await call.run_in_context(
        lambda context, cancel: review.approve_review(review_id, digest, context, cancel=cancel)
    )
    return call.redirect("reviews", f"Approved: {describe_facts(merge_changes(done.changes))}.")


async def reject(call: PageCall, form: Form) -> Response:
    """Reject a pending review permanently."""
    review_id = form.get("id", "")

    def decide(context: JobContext, cancel: Cancel) -> str:
        facts = describe_facts(views.list_proposed_facts(load_pending(context.state, review_id)))
        review.reject_review(review_id, context, cancel=cancel)
        return facts

    facts = await call.run_in_context(decide)
    return call.redirect("reviews", f"Rejected: {facts}. Nothing was written.")


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
