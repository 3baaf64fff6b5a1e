"""The table of operations: every operation on a memory, and its name on each surface.

A surface is a way to call an operation: library, HTTP, MCP, command line, ACP, page. A cell of the table has
the name of the operation on one surface. A cell that begins with `no: ` gives the reason why this surface
lacks the operation. The library, `AsyncMemory`, `Client` and `AsyncClient` have a method with the operation's
name, and the same argument names and defaults, except for those of `OWN_ARGUMENTS`.
tests/surface/test_operations.py checks every surface against this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

NOT_OFFERED: Final = "no: "
"""The prefix of a cell whose surface lacks the operation."""

_BY_HAND: Final = f"{NOT_OFFERED}the owner's, by hand"
_PAGE: Final = f"{NOT_OFFERED}a person uses the command"
_ALL_SURFACES: Final = ("library", "HTTP", "MCP", "CLI")
_CANCELLABLE: Final = (
    "remember",
    "forget",
    "dream",
    "undo",
    "approve",
    "reject",
    "edit",
    "pin",
    "index",
    "erase",
)
_TASKS: Final = f"{NOT_OFFERED}hosts only queue tasks and start sessions"


class OperationRow(NamedTuple):
    """An operation, and its name on each surface.

    Attributes:
        result: the type of the result in `muniment.types`; a type of another module is given with its module.
        caller: who may call it over HTTP: `any` token, which sees only visible entries, or only the `owner`.
        previews: the surfaces that can preview the operation: `library`, `HTTP`, `MCP`, `CLI`. Over HTTP a
            remember is queued, and judged when it runs.
        http: the HTTP method and path, below the path of the memory.
        mcp: the MCP tool.
        cli: the command, and its option if only this option performs the operation.
        acp: the ACP method.
        page: the view or action on the page.
        library: empty: the library and every client have a method with the operation's name.
    """

    result: str
    caller: Literal["any", "owner"]
    previews: tuple[str, ...]
    http: str
    mcp: str
    cli: str
    acp: str = _TASKS
    page: str = _PAGE
    library: str = ""


TABLE: Final[Mapping[str, OperationRow]] = {
    "remember": OperationRow(
        "RememberResult",
        "any",
        ("library", "CLI"),
        "POST /remember",
        "remember",
        "remember",
        "remember",
        "/remember",
    ),
    "forget": OperationRow(
        "ForgetResult", "any", _ALL_SURFACES, "POST /forget", "forget", "forget", "forget", "/forget"
    ),
    "dream": OperationRow(
        "DreamResult", "any", _ALL_SURFACES, "POST /dream", "dream", "dream", "dream", "/dream"
    ),
    "recall": OperationRow("Recalled", "any", (), "POST /recall", "recall", "recall", page="search"),
    "standing_context": OperationRow(
        "Recalled", "any", (), "GET /context", "context", "recall --standing", "context"
    ),
    "list": OperationRow(
        "EntryList", "any", (), "GET /entries", f"{NOT_OFFERED}the list of resources", "ls", page="memory"
    ),
    "show": OperationRow("EntryShown", "any", (), "GET /entry", "show", "show", page="entry"),
    "edit": OperationRow(
        "EditResult", "owner", ("library", "HTTP"), "POST /edit", _BY_HAND, "edit", page="/edit"
    ),
    "pin": OperationRow("PinResult", "owner", _ALL_SURFACES, "POST /pin", "pin", "pin", page="/pin"),
    "history": OperationRow(
        "CommittedStep", "owner", (), "GET /history", "history", "history", page="timeline"
    ),
    "why": OperationRow("Origin", "owner", (), "GET /why", _BY_HAND, "why", page="entry"),
    "undo": OperationRow("UndoResult", "owner", (), "POST /undo", "undo", "undo", page="/undo"),
    "reviews": OperationRow("Review", "owner", (), "GET /review", _BY_HAND, "review list", page="reviews"),
    "review": OperationRow(
        "ReviewShown", "owner", (), "GET /review/{reviewId}", _BY_HAND, "review show", page="review"
    ),
    "approve": OperationRow(
        "ReviewDecision",
        "owner",
        (),
        "POST /review/{reviewId}/approve",
        _BY_HAND,
        "review approve",
        page="/approve",
    ),
    "reject": OperationRow(
        "ReviewDecision",
        "owner",
        (),
        "POST /review/{reviewId}/reject",
        _BY_HAND,
        "review reject",
        page="/reject",
    ),
    "export": OperationRow("ExportResult", "any", (), "GET /export", _BY_HAND, "export"),
    "import": OperationRow(
        "transfer.importing.ImportResult",
        "owner",
        ("CLI",),
        f"{NOT_OFFERED}it reads files of its owner's machine",
        _BY_HAND,
        "import",
        library=f"{NOT_OFFERED}it reads formats of other tools, which core does not know",
    ),
    "index": OperationRow(
        "IndexResult", "owner", ("library", "HTTP", "CLI"), "POST /index", _BY_HAND, "index rebuild"
    ),
    "explain": OperationRow(
        "Explained",
        "owner",
        (),
        "GET /policy/explain",
        _BY_HAND,
        f"{NOT_OFFERED}`policy explain` explains a policy file, not the memory",
        page="policy",
    ),
    "erase": OperationRow("ErasePlan", "owner", ("library", "HTTP", "CLI"), "POST /erase", _BY_HAND, "erase"),
}
"""The operations, by method name."""

OWN_ARGUMENTS: Final[Mapping[str, Mapping[tuple[str, str], str]]] = {
    "library": {
        **{
            (name, "cancel"): "ends the operation early; a client cancels its task, or its call"
            for name in _CANCELLABLE
        },
        ("remember", "observe"): "is called in this process",
        ("remember", "detail"): "quotes a model; the daemon does not store this text",
        ("remember", "dry_run"): "the daemon queues facts, and judges them when they run",
        ("recall", "deadline"): "ends the operation early; the daemon sets the deadline of a recall",
        ("recall", "budget"): "is fixed in the daemon",
        ("recall", "choose"): "calls a model; a recall of the daemon does not wait for one",
        (
            "standing_context",
            "deadline",
        ): "ends the operation early; the daemon sets the deadline of a recall",
        ("dream", "attended"): "the daemon knows the caller",
    },
    "client": {
        ("remember", "ref"): "is stored with the task that the daemon queues",
    },
}
"""Arguments that only the library or only a client has, by operation and argument, with the reason."""


def render_markdown() -> str:
    """Return the table as markdown, with one line for each operation."""
    headings = ("operation", "library, async, clients", "result", "HTTP", "called by", "previews")
    lines = [(*headings, "MCP", "CLI", "ACP", "page"), ("---",) * (len(headings) + 4)]
    for name, row in TABLE.items():
        surfaces = (each if each.startswith(NOT_OFFERED) else f"`{each}`" for each in row[3:8])
        http, *others = surfaces
        previews = ", ".join(row.previews) or "no"
        lines.append(
            (f"`{name}`", row.library or "yes", f"`{row.result}`", http, row.caller, previews, *others)
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
