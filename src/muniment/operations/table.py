"""The table of operations: every operation on a memory, and where each surface offers it.

A cell is the name on that surface; one that begins with `no: ` says why the surface lacks the operation. The
library, `AsyncMemory`, `Client` and `AsyncClient` have a method of the operation's name, with the same names
and defaults of arguments, but for those of `OWN_ARGUMENTS`. Every surface is checked against this table by
tests/surface/test_operations.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

NO: Final = "no: "
"""How a cell begins whose surface lacks the operation."""

_BY_HAND: Final = f"{NO}the owner's, by hand"
_PAGE: Final = f"{NO}a person uses the command"
_ALL: Final = ("library", "HTTP", "MCP", "CLI")
_ENDED: Final = ("remember", "forget", "dream", "undo", "approve", "reject", "edit", "pin", "index", "erase")
_TASKS: Final = f"{NO}hosts queue tasks alone"


class OperationRow(NamedTuple):
    """An operation.

    Attributes:
        result: its type in `muniment.types`; another class by its module.
        caller: who may call it over HTTP: `any` token, which sees what it may see, or the `owner` alone.
        previews: the surfaces where a call can only report what would be done: `library`, `HTTP`,
            `MCP`, `CLI`. Over HTTP a remember is queued, and judged when its turn comes.
        http: method and path, below the path of the memory.
        mcp: tool.
        cli: command.
        acp: method.
        page: view or action.
        library: empty: a method of its name; of every client likewise.
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
        "ForgetResult", "any", _ALL, "POST /forget", "forget", "forget", "forget", "/forget"
    ),
    "dream": OperationRow("DreamResult", "any", _ALL, "POST /dream", "dream", "dream", "dream", "/dream"),
    "recall": OperationRow("Recalled", "any", (), "POST /recall", "recall", "recall", page="search"),
    "list": OperationRow(
        "EntryList", "any", (), "GET /entries", f"{NO}the list of resources", "ls", page="memory"
    ),
    "show": OperationRow("EntryShown", "any", (), "GET /entry", "show", "show", page="entry"),
    "edit": OperationRow(
        "EditResult", "owner", ("library", "HTTP"), "POST /edit", _BY_HAND, "edit", page="/edit"
    ),
    "pin": OperationRow("PinResult", "owner", _ALL, "POST /pin", "pin", "pin", page="/pin"),
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
        f"{NO}it reads files of its owner's machine",
        _BY_HAND,
        "import",
        library=f"{NO}it reads formats of other tools, which core does not know",
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
        f"{NO}`policy explain` explains a policy file, not the memory",
        page="policy",
    ),
    "erase": OperationRow("ErasePlan", "owner", ("library", "HTTP", "CLI"), "POST /erase", _BY_HAND, "erase"),
}
"""The operations, by the name of their methods."""

OWN_ARGUMENTS: Final[Mapping[str, Mapping[tuple[str, str], str]]] = {
    "library": {
        **{
            (name, "cancel"): "ends the operation early; a client cancels its task, or its call"
            for name in _ENDED
        },
        ("remember", "observe"): "is called in this process",
        ("remember", "detail"): "quotes a model; the daemon keeps no such text",
        ("remember", "dry_run"): "the daemon queues facts, and judges them when their turn comes",
        ("recall", "patience"): "ends the operation early; a recall of the daemon has a deadline of its own",
        ("recall", "budget"): "is fixed in the daemon",
        ("recall", "choose"): "calls a model, for which a recall of the daemon does not wait",
        ("dream", "attended"): "the daemon knows who asks",
    },
    "client": {
        ("remember", "ref"): "is kept with the task that the daemon queues",
    },
}
"""Arguments of an operation that only the library, or only a client, has, and why."""


def markdown() -> str:
    """Return the table as markdown: operation by surface."""
    heads = ("operation", "library, async, clients", "result", "HTTP", "called by", "previews")
    lines = [(*heads, "MCP", "CLI", "ACP", "page"), ("---",) * (len(heads) + 4)]
    for name, row in TABLE.items():
        surfaces = (each if each.startswith(NO) else f"`{each}`" for each in row[3:8])
        http, *others = surfaces
        previews = ", ".join(row.previews) or "no"
        lines.append(
            (f"`{name}`", row.library or "yes", f"`{row.result}`", http, row.caller, previews, *others)
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
