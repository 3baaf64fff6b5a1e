"""What is done on the page: a function for each form, by the jobs that the API and the command line use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import Response

from muniment.cancelling import Cancel
from muniment.daemon import asking
from muniment.daemon.contract import HttpProblem
from muniment.daemon.page import views
from muniment.daemon.page.visit import Visit
from muniment.daemon.routes import accept
from muniment.errors import MunimentError, NotFound, StoreConflict
from muniment.jobs import review
from muniment.jobs.edit import check_editable, edited, moved_to_pinned, with_body
from muniment.jobs.place import Place
from muniment.jobs.request import RememberRequest, RememberResult
from muniment.kernel.change import digest
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.lane import OWNER, Originator

US: Final = Originator(OWNER)

Form = Mapping[str, str]


async def remember(visit: Visit, form: Form) -> Response:
    """Accept a fact; or, if only that was asked, show where it would go."""
    document = {"content": form.get("content", "").replace("\r\n", "\n")}  # Forms have no other line ends.
    if form.get("scope"):
        document["scope"] = form["scope"]
    wanted = asking.remember(document, visit.workspace)
    if form.get("try"):
        return await _tried(visit, wanted)
    task = (await accept(visit, "remember", wanted, US)).task
    return visit.go("memory", f"Accepted as {task.id}; what came of it is told under Tasks.")


async def _tried(visit: Visit, wanted: asking.WantedTask) -> Response:
    from muniment.jobs.remember import remember as job

    asked = RememberRequest(
        wanted.arguments["content"], wanted.arguments["scope"], wanted.arguments["context"], dry_run=True
    )

    def body(place: Place, cancel: Cancel) -> RememberResult:
        return job(asked, place, visit.core.model, cancel=cancel)

    result = await visit.at_place(body)
    return await visit.show("would.html", lambda *_: {"asked": asked, "result": result})


async def forget(visit: Visit, form: Form) -> Response:
    """Forget one entry, by its path: what is none would be taken for words, which other entries may hold."""
    path = await visit.at_place(lambda place, _: _present(place, form.get("path", ""))[0])
    if not path.rel.endswith(FILE_SUFFIX):
        raise NotFound(f"{path.text} is no entry")
    wanted = asking.forget({"query": path.text}, visit.workspace)
    task = (await accept(visit, "forget", wanted, US)).task
    return visit.go("task", "Accepted.", id=task.id)


async def dream(visit: Visit, _: Form) -> Response:
    """Tidy the memory."""
    task = (await accept(visit, "dream", asking.dream({}, visit.workspace), US)).task
    return visit.go("task", "Accepted.", id=task.id)


async def edit(visit: Visit, form: Form) -> Response:
    """Save what was made of an entry; where that cannot be, show it again with the reason."""
    path = form.get("path", "")
    body = form.get("body", "")

    def save(place: Place, _: Cancel) -> str:
        at, before = _present(place, path)
        if digest(before) != form.get("digest"):
            raise StoreConflict((at.text,))
        check_editable(place, at)
        text = body if "\r\n" in before.decode("utf-8", "replace") else body.replace("\r\n", "\n")
        if before.endswith(b"\n") and not text.endswith("\n"):
            text += "\r\n" if before.endswith(b"\r\n") else "\n"  # Who writes in a form leaves it out.
        after = with_body(before, text)
        return "" if after == before else edited(place, at, before, after)[0].task

    try:
        task = await visit.at_place(save)
    except MunimentError as error:
        problem = f"Not saved: {error} [{error.code}]"
        again = views.editing(path, body, form.get("digest", ""), problem)
        return await visit.show("edit.html", lambda *_: again, status=409)
    told = f"Saved; to take it back, undo {task}." if task else "Nothing was changed."
    return visit.go("entry", told, path=path)


async def pin(visit: Visit, form: Form) -> Response:
    """Pin an entry, or take it back from there."""

    def move(place: Place, _: Cancel) -> str:
        path, _before = _present(place, form.get("path", ""))
        return moved_to_pinned(place, path)[0].text

    path = await visit.at_place(move)
    return visit.go("entry", f"It is {path} now.", path=path)


async def undo(visit: Visit, form: Form) -> Response:
    """Take back what a task did."""
    task = form.get("task", "")
    result = await visit.at_place(lambda place, cancel: review.undo(task, place, cancel=cancel))
    if result.error is not None:
        raise result.error
    told = f"Undone; to have it again, undo {result.task_id}."
    return visit.go("entry" if "path" in form else "memory", told, path=form.get("path"))


async def approve(visit: Visit, form: Form) -> Response:
    """Commit what waits, as it was shown."""
    review_id, shown = form.get("id", ""), form.get("digest", "")
    done = await visit.at_place(lambda place, cancel: review.approve(review_id, shown, place, cancel=cancel))
    return visit.go("reviews", f"Approved {done.review_id} as {done.task_id}.")


async def reject(visit: Visit, form: Form) -> Response:
    """Decide that what waits is never committed."""
    review_id = form.get("id", "")
    done = await visit.at_place(lambda place, cancel: review.reject(review_id, place, cancel=cancel))
    return visit.go("reviews", f"Rejected {done.review_id}; nothing was written.")


async def cancel_task(visit: Visit, form: Form) -> Response:
    """Cancel a task."""
    try:
        visit.wait()
        task = await visit.core.cancel(visit.workspace, form.get("id", ""), US)
    except NotFound:
        raise HttpProblem("task_not_found") from None
    told = "Cancelled." if task.status == "cancelled" else f"It is {task.status}."
    return visit.go("task", told, id=task.id)


def _present(place: Place, unsafe_path: str) -> tuple[CanonicalPath, bytes]:
    """A path, and the bytes that stand there."""
    path = canonicalise(unsafe_path, place.policy.scopes)
    if path.scope not in place.roots:
        raise NotFound(f"nothing is remembered in {path.scope} yet")
    return path, place.roots[path.scope].root.read_bytes(path)


ACTIONS: Final[Mapping[str, tuple[Callable[[Visit, Form], Awaitable[Response]], str]]] = {
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
"""By path: what is done, and the view to go back to where it cannot be."""
