"""The page as an ASGI application: its files, the sign-in, its views, its forms and its events.

This module is imported at the first request to the page.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from muniment.errors import MunimentError
from muniment.server.contract import HttpProblem, convert_error
from muniment.server.core import DaemonCore
from muniment.server.page.access import COOKIE
from muniment.server.page.actions import ACTIONS, OWNER_ORIGINATOR
from muniment.server.page.call import PageCall
from muniment.server.page.rendering import render
from muniment.server.page.views import VIEWS
from muniment.server.routes import EVENT_STREAM
from muniment.server.stream import Subscription

_MEDIA_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

_VIEW: Final = re.compile(r"/w/[a-z0-9-]{1,80}/[a-z]{1,20}(?:\?[A-Za-z0-9%&=._+-]{0,2000})?", re.ASCII)
"""URLs that a browser may open after a sign-in: views of this page."""

FILES: Final = {
    f"/static/{each.name}": (each.read_bytes(), _MEDIA_TYPES[each.name.rpartition(".")[2]])
    for each in files("muniment.server.page").joinpath("static").iterdir()
}
"""The static files by URL path: content and media type."""


def create_application(core: DaemonCore) -> ASGIApp:
    """Return the ASGI application for the web page of a daemon."""

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        call = PageCall(Request(scope, receive), core)
        try:
            response = await _respond(call)
        except (HttpProblem, MunimentError) as error:
            response = _render_problem(call, error)
        await response(scope, receive, send)

    return page


async def _respond(call: PageCall) -> Response:
    method, path = call.request.method, call.request.scope["path"]
    if method == "GET" and path in FILES:
        content, media_type = FILES[path]
        return Response(content, media_type=media_type)
    if (method, path) == ("POST", "/sign-in"):
        return await _sign_in(call)
    if call.session is None:
        return await _respond_signed_out(call)
    if (method, path) == ("POST", "/sign-out"):
        call.core.page_access.sign_out(call.session)
        call.core.stream.recheck_permissions()
        return _delete_cookie(_render_sign_in(200, "You have signed out."))
    if path == "/":
        return RedirectResponse(f"/w/{next(iter(call.core.workspaces))}/memory", 303)
    return await _respond_for_workspace(call, method, path)


async def _respond_for_workspace(call: PageCall, method: str, path: str) -> Response:
    view = path.removeprefix("/")
    is_known = view in VIEWS or path in ACTIONS or path == "/events"
    if call.is_without_workspace or not is_known:
        raise HttpProblem("not_found")
    await call.find_workspace()
    if method == "GET" and path == "/events":
        return _stream_events(call)
    if method == "GET" and view in VIEWS:
        return await call.render_view(f"{view}.html", VIEWS[view])
    if method == "POST" and path in ACTIONS:
        act, back = ACTIONS[path]
        form = await call.form()
        call.return_url = call.build_url(back, path=form.get("path"), id=form.get("id"))
        return await act(call, form)
    raise HttpProblem("method_not_allowed")


def _stream_events(call: PageCall) -> Response:
    """Return a stream of the workspace's events, which ends when the session is no longer valid."""
    session, door, workspace = call.session, call.core.page_access, call.workspace

    async def may_follow() -> bool:
        return session is not None and door.is_valid(session)

    view = Subscription(workspace.key, workspace.scopes, OWNER_ORIGINATOR, may_follow=may_follow)
    call.follow()
    cursor = call.request.headers.get("last-event-id") or call.query("after") or None
    return StreamingResponse(call.core.stream.follow(view, cursor), media_type=EVENT_STREAM)


async def _respond_signed_out(call: PageCall) -> Response:
    """Return the sign-in form, for a browser that is not signed in.

    After the sign-in, the browser opens the view that it requested. If it sent a form, its text is shown
    again.
    """
    scope = call.request.scope
    if call.request.method == "POST" and scope["path"] in ACTIONS:
        await call.form()
        notice = "Not saved: you are signed out because your session has ended."
        return _render_sign_in(401, notice, entered_text=call.entered_text)
    target = f"{scope['raw_path'].decode('ascii')}?{scope['query_string'].decode('latin-1')}".rstrip("?")
    is_navigation = call.request.headers.get("sec-fetch-mode") == "navigate"
    return _render_sign_in(200 if is_navigation else 401, target=target)


async def _sign_in(call: PageCall) -> Response:
    form = await call.form()
    target = form.get("to", "")
    cookie = call.core.page_access.sign_in(form.get("code", "").strip())
    if cookie is None:
        notice = "Invalid or expired code. A code works once, for one minute."
        return _render_sign_in(401, notice, target=target)
    response = RedirectResponse(_choose_view(target), 303)
    response.set_cookie(COOKIE, cookie, path="/", httponly=True, samesite="strict")
    return response


def _choose_view(unsafe_target: str) -> str:
    return unsafe_target if _VIEW.fullmatch(unsafe_target) else "/"


def _render_sign_in(status: int, notice: str = "", *, target: str = "", entered_text: str = "") -> Response:
    context = {"notice": notice, "to": _choose_view(target), "entered_text": entered_text}
    return HTMLResponse(render("sign_in.html", context), status)


def _delete_cookie(response: Response) -> Response:
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _render_problem(call: PageCall, error: HttpProblem | MunimentError) -> Response:
    """Return the HTML page that displays an error."""
    if isinstance(error, HttpProblem):
        problem, message = error, error.sentence
    else:
        problem, message = convert_error(error), str(error)
    context = {
        "message": message,
        "code": problem.code,
        "back": call.return_url or "/",
        "entered_text": call.entered_text,
    }
    return HTMLResponse(render("problem.html", context), problem.status, problem.headers)
