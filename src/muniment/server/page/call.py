"""A request to the page: its session, its parameters, and its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from muniment.cancelling import Cancel
from muniment.errors import MunimentError
from muniment.operations.job_context import JobContext
from muniment.operations.review import list_pending
from muniment.server.contract import HttpProblem
from muniment.server.core import DaemonCore
from muniment.server.guard import SESSION, WORKSPACE
from muniment.server.http import Call, read_body
from muniment.server.lane_tasks import count_pending
from muniment.server.page.access import Session
from muniment.server.page.rendering import render
from muniment.server.work import Workspace

MAX_FIELDS: Final = 16
"""Maximum fields of a submitted form; the largest form has five."""

FORM: Final = "application/x-www-form-urlencoded"

T = TypeVar("T")


class PageCall(Call):
    """A request to the daemon's web page.

    Attributes:
        session: session of the browser; None: not signed in.
        return_url: the view that contains the submitted form; empty: no form was sent.
        entered_text: the text that the user wrote in that form.
    """

    core: DaemonCore
    workspace: Workspace

    def __init__(self, request: Request, core: DaemonCore) -> None:
        super().__init__(request, core)
        self.session: Session | None = getattr(request.state, SESSION)
        self.return_url = self.entered_text = ""

    @property
    def is_without_workspace(self) -> bool:
        """Return whether the path of the request names no workspace."""
        return getattr(self.request.state, WORKSPACE) is None

    def query(self, name: str) -> str:
        """Return the value of a query parameter; empty if the parameter is missing."""
        return self.request.query_params.get(name, "")

    async def form(self) -> dict[str, str]:
        """Return the fields of a submitted form, and store the user's text in `entered_text`.

        Raises:
            HttpProblem: the body is not a form, or is too large.
        """
        if self.request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
            raise HttpProblem("unsupported_media_type")
        try:
            text = (await read_body(self.request)).decode("ascii")
            fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
        except ValueError:
            raise HttpProblem("invalid_request") from None
        form = dict(fields)
        self.entered_text = form.get("content") or form.get("body") or ""
        return form

    def build_url(self, view: str, **query: str | None) -> str:
        """Return the URL of a view of the workspace; parameters that are None are omitted."""
        fields = {name: value for name, value in query.items() if value is not None}
        return f"/w/{self.workspace.key}/{view}" + (f"?{urlencode(fields)}" if fields else "")

    def redirect(self, view: str, notice: str = "", **query: str | None) -> Response:
        """Return a redirect to a view, which displays `notice` once.

        Args:
            view: name of the view.
            notice: a message for the user; empty: none.
            **query: parameters of the view; those that are None are omitted.
        """
        if notice and self.session is not None:
            self.session.notices.append(notice)
        return RedirectResponse(self.build_url(view, **query), 303)

    async def run_in_context(self, operation: Callable[[JobContext, Cancel], T]) -> T:
        """Run `operation` in a thread, with the `JobContext` of the workspace, and return its result.

        See `DaemonCore.run_in_context`.
        """
        self.wait()
        return await self.core.run_in_context(self.workspace, operation)

    async def run_while_connected(self, operation: Callable[[JobContext, Cancel], T]) -> T:
        """Run `operation`, which may query a model for minutes; if the browser disconnects, cancel it."""
        self.wait()
        work = asyncio.ensure_future(
            self.core.run_in_context(self.workspace, operation, can_query_model=True)
        )
        # After a form, the only other message is a disconnect.
        disconnect = asyncio.ensure_future(self.request.receive())
        try:
            await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise HttpProblem("invalid_http")  # The browser has disconnected and does not read this.
            return work.result()
        finally:
            work.cancel()
            disconnect.cancel()

    async def render_view(
        self,
        template: str,
        build_values: Callable[[JobContext, PageCall], Mapping[str, Any]],
        status: int = 200,
    ) -> Response:
        """Return the HTML of a view of the memory.

        Args:
            template: file name of the template.
            build_values: returns the values for the template; runs in a thread.
            status: HTTP status of the response.
        """
        # The view may not contain changes after this cursor, so its script follows the events from here.
        notices, cursor = self.pop_notices(), await self.core.stream.cursor()

        def page(context: JobContext, _: Cancel) -> str:
            first = {"notices": notices, "cursor": cursor}
            return render(
                template, {**self._build_layout_values(context), **first, **build_values(context, self)}
            )

        try:
            return HTMLResponse(await self.run_in_context(page), status)
        except (HttpProblem, MunimentError):
            if self.session is not None:  # They were not displayed.
                self.session.notices.extendleft(reversed(notices))
            raise

    def pop_notices(self) -> list[str]:
        """Remove and return the notices that the next view displays. The script of a view gets none."""
        if self.session is None or self.request.headers.get("sec-fetch-mode") != "navigate":
            return []
        notices = list(self.session.notices)
        self.session.notices.clear()
        return notices

    def _build_layout_values(self, context: JobContext) -> dict[str, Any]:
        """Return the values that the template of every view needs."""
        return {
            "to": self.build_url,
            "current_view": self.request.scope["path"].removeprefix("/"),
            "workspace": self.workspace,
            "workspaces": list(self.core.workspaces.values()),
            "waiting": len(list_pending(context)),
            "pending": sum(count_pending(context.state.ledger, self.workspace.key).values()),
            "policy": context.policy.label,
            "scopes": list(context.roots),
        }
