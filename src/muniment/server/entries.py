"""The routes of entries. Every token may list, show and export; the other routes are for the owner.

E1 A token with less than the owner's trust sees only entries that a recall may inject; other paths are not
   found.
E2 A query accepts the parameters of its route, each once; as in a body, unknown ones are rejected.
E3 A read needs a slot; one token gets at most half of the slots. A read ends when its client disconnects.

This module is separate from `routes`, which lists the operations of all topics.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Final, TypeVar

from starlette.responses import Response

from muniment import types as results
from muniment.cancelling import Cancel
from muniment.errors import ConfigInvalid, InvalidContent, TooLarge
from muniment.operations import edit as editing
from muniment.operations import exporting, listing, owner, review
from muniment.operations.job_context import JobContext
from muniment.operations.visibility import Reader, Visibility
from muniment.server import requests
from muniment.server.contract import (
    EditBody,
    ExportQuery,
    HistoryQuery,
    HttpProblem,
    IndexBody,
    ListQuery,
    PathQuery,
    PinBody,
)
from muniment.server.http import BASE, Call, Operation, Parameter, build_response
from muniment.server.owner import REFUSED, UNAVAILABLE, run_in_context
from muniment.types import ExportResult
from muniment.types.documents import create_document

T = TypeVar("T")

MAX_EXPORT_BYTES: Final = 12 * 1024 * 1024
"""Maximum bytes of one export as sent; a client accepts a response of 16 MiB."""

MAX_NOTES: Final = 50
"""Maximum notes in the `X-Muniment-Export` header of an export."""

MAX_NOTE_BYTES: Final = 12 * 1024
"""Maximum bytes of the `X-Muniment-Export` header; clients accept about 64 KiB of headers."""

EXPORT_HEADER: Final = "X-Muniment-Export"
"""Header of an export that contains the number of entries and the notes, as JSON in ASCII."""

TAR: Final = "application/x-tar"
LINES: Final = "application/jsonl"

_PATH_CODES: Final = (*UNAVAILABLE, "bad_name", "path_escape", "refused", "not_found")
_SCOPE: Final = Parameter("scope", "query", "The only scope; default: all.")
_PATH: Final = Parameter(
    "path", "query", "An entry, such as user/editor.md, its address or its handle.", is_required=True
)


async def _read_memory(call: Call, operation: Callable[[JobContext, Reader, Cancel], T]) -> T:
    """Run an operation that reads the memory, with the caller's permissions, and return its result.

    Args:
        call: the request.
        operation: receives the context, the reader with the caller's trust, and the cancellation.

    Raises:
        MunimentError: raised by `operation`, or the memory is not available.
        HttpProblem: no slot is free, the client disconnected, or the token was revoked in the meantime.
    """
    reader = Reader(call.principal.trust)

    async def read() -> T:
        async with call.core.read_slots.use_slot(call.principal.share):
            return await run_in_context(
                call, lambda context, cancel: operation(context, reader, cancel), writes=False
            )

    found = await _run_while_connected(call, read())
    if not await call.is_token_valid():
        raise HttpProblem("token_required", headers={"WWW-Authenticate": "Bearer"})
    return found


async def _run_while_connected(call: Call, work: Coroutine[None, None, T]) -> T:
    """Return the result of `work`; if the client disconnects, cancel `work`.

    Raises:
        HttpProblem: the client disconnected, so the response reaches no one.
    """

    async def wait_for_disconnect() -> None:
        while (await call.request.receive())["type"] != "http.disconnect":
            pass

    reading, closing = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise HttpProblem("request_timeout")
        return reading.result()
    finally:
        closing.cancel()
        reading.cancel()


@Operation(
    "GET",
    f"{BASE}/entries",
    results.EntryList,
    (*UNAVAILABLE, "path_escape", "invalid_request"),
    parameters=(
        _SCOPE,
        Parameter("limit", "query", "Maximum number of entries, 1 to 1000; default: 100."),
        Parameter("cursor", "query", "The `nextCursor` of the previous page."),
        Parameter("expired", "query", "`true`: include expired entries; owner only."),
    ),
)
async def list_entries(call: Call) -> Response:
    """List the entries, sorted by path."""
    query = requests.parse_query(ListQuery, call.request.query_params, call.workspace)

    def body(context: JobContext, reader: Reader, cancel: Cancel) -> results.EntryList:
        found = listing.list_entries(
            context,
            reader,
            scope=query.scope,
            limit=query.limit,
            expired=query.expired and reader.is_owner,
            after=query.cursor,
            cancel=cancel,
        )
        is_visible = Visibility(context, reader).is_path_visible
        return replace(found, skipped=tuple(each for each in found.skipped if is_visible(each.path)))

    return build_response(await _read_memory(call, body))


@Operation("GET", f"{BASE}/entry", results.EntryShown, (*_PATH_CODES, "invalid_request"), parameters=(_PATH,))
async def show_entry(call: Call) -> Response:
    """Show one entry."""
    query = requests.parse_query(PathQuery, call.request.query_params, call.workspace)
    return build_response(
        await _read_memory(call, lambda context, reader, _: listing.show_entry(context, query.path, reader))
    )


@Operation(
    "GET",
    f"{BASE}/export",
    f"{TAR}, {LINES}",
    (*UNAVAILABLE, "path_escape", "invalid_request", "body_too_large"),
    parameters=(
        _SCOPE,
        Parameter(
            "format",
            "query",
            "`tar` or `jsonl`; default: `tar`.",
            {"type": "string", "enum": ["tar", "jsonl"]},
        ),
    ),
)
async def export(call: Call) -> Response:
    """Export the entries, with their origin, as one file that can be imported."""
    query = requests.parse_query(ExportQuery, call.request.query_params, call.workspace)

    def body(context: JobContext, reader: Reader, cancel: Cancel) -> tuple[bytes, ExportResult]:
        kind = exporting.parse_format(query.format)
        outgoing = exporting.collect_visible(
            context, reader, kind, scope=query.scope, max_bytes=MAX_EXPORT_BYTES, cancel=cancel
        )
        file = exporting.BoundedFile(MAX_EXPORT_BYTES)
        exporting.write(outgoing, file, kind)
        return file.getvalue(), ExportResult(entries=len(outgoing.entries), notes=outgoing.notes)

    try:
        data, result = await _read_memory(call, body)
    except ConfigInvalid as error:
        raise HttpProblem("invalid_request", field="format", detail=str(error)) from None
    except TooLarge as error:
        raise HttpProblem("body_too_large", detail=f"{error}; export one scope, or use the command") from None
    media_type = TAR if query.format == "tar" else LINES
    return Response(data, headers={EXPORT_HEADER: _format_header(result)}, media_type=media_type)


def _format_header(result: ExportResult) -> str:
    """Return the value of `EXPORT_HEADER`: the result of an export, with as many notes as fit."""
    notes = list(result.notes[:MAX_NOTES])
    while True:
        omitted_count = len(result.notes) - len(notes)
        sent_notes = (
            (*notes, f"{omitted_count} more notes; `muniment export` prints them")
            if omitted_count
            else tuple(notes)
        )
        text = json.dumps(create_document(ExportResult(entries=result.entries, notes=sent_notes)))
        if len(text) <= MAX_NOTE_BYTES or not notes:
            return text
        notes.pop()


@Operation(
    "GET",
    f"{BASE}/history",
    results.HistoryList,
    (*_PATH_CODES, "invalid_request"),
    parameters=(Parameter("path", "query", "An entry, folder or scope; default: everything."),),
    is_owner_only=True,
)
async def history(call: Call) -> Response:
    """List the committed changes, newest first."""
    query = requests.parse_query(HistoryQuery, call.request.query_params, call.workspace)
    found = await run_in_context(
        call, lambda context, _: review.load_history(context, query.path), writes=False
    )
    return build_response(results.HistoryList(steps=found))


@Operation(
    "GET",
    f"{BASE}/why",
    results.Origin,
    (*_PATH_CODES, "invalid_request", "erased"),
    parameters=(_PATH,),
    is_owner_only=True,
)
async def why(call: Call) -> Response:
    """Return the origin of an entry."""
    query = requests.parse_query(PathQuery, call.request.query_params, call.workspace)
    return build_response(
        await run_in_context(call, lambda context, _: review.load_origin(context, query.path), writes=False)
    )


@Operation(
    "POST",
    f"{BASE}/edit",
    results.EditResult,
    (*UNAVAILABLE, *REFUSED, "not_found", "pending_review", "invalid_content"),
    body=EditBody,
    is_owner_only=True,
)
async def edit(call: Call) -> Response:
    """Replace the text of an entry."""
    request = await call.body(EditBody)
    try:
        done = await run_in_context(
            call,
            lambda context, cancel: editing.edit_entry(
                context,
                request.path,
                request.text,
                read_digest=request.digest,
                dry_run=request.dry_run,
                cancel=cancel,
            ),
        )
    except InvalidContent as error:
        raise HttpProblem("invalid_content", field="text", detail=str(error)) from None
    return build_response(done)


@Operation(
    "POST",
    f"{BASE}/pin",
    results.PinResult,
    (*UNAVAILABLE, *REFUSED, "not_found"),
    body=PinBody,
    is_owner_only=True,
)
async def pin(call: Call) -> Response:
    """Pin an entry, or unpin a pinned one."""
    request = await call.body(PinBody)
    done = await run_in_context(
        call,
        lambda context, cancel: editing.toggle_pin(
            context, request.path, recallable_only=True, dry_run=request.dry_run, cancel=cancel
        ),
    )
    return build_response(done)


@Operation(
    "POST",
    f"{BASE}/index",
    results.IndexResult,
    (*UNAVAILABLE, "store_conflict", "quota", "path_escape"),
    body=IndexBody,
    is_owner_only=True,
)
async def index(call: Call) -> Response:
    """Rebuild the indexes; with `dryRun`, only verify them."""
    request = await call.body(IndexBody)
    done = await run_in_context(
        call, lambda context, cancel: owner.rebuild_indexes(context, dry_run=request.dry_run, cancel=cancel)
    )
    return build_response(done)


ENTRY_OPERATIONS: Final = (list_entries, show_entry, export, history, why, edit, pin, index)
