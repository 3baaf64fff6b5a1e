"""`docs/http.md`: written from the operations, their models and the codes; the prose stands in `page.md`.

    PYTHONPATH=tests .venv/bin/python -m daemon.page

`tests/surface/pages/test_http_page.py` fails where the page is not what this writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kit.where import REPOSITORY
from muniment.daemon.contract import HTTP, MAX_BODY_BYTES, MAX_WAIT_SECONDS, RECALL, TASK
from muniment.daemon.core import MAX_RECALLS, PLACE_SECONDS, RECALL_SECONDS
from muniment.daemon.core import RESERVE as RECALL_RESERVE
from muniment.daemon.guard import (
    HEADER_SECONDS,
    MAX_CONNECTIONS,
    MAX_FOLLOWERS,
    MAX_HEADER_BYTES,
    MAX_REQUESTS,
    MAX_WAITING,
)
from muniment.daemon.http import EVERYWHERE, Operation, document_of
from muniment.daemon.service import OPERATIONS
from muniment.daemon.stream import HEARTBEAT_SECONDS
from muniment.daemon.tokens import RESERVE
from muniment.lane import BACKSTOP_SECONDS, MAX_ATTEMPTS, MAX_PENDING, MAX_RECORDS, MAX_TIDYING, REPEAT_HOURS
from muniment.names import MAX_FACT_BYTES
from muniment.store.tasks import MAX_EVENTS

PAGE: Final = REPOSITORY / "docs" / "http.md"
COMMAND: Final = "PYTHONPATH=tests .venv/bin/python -m kit.daemon.page"

_PROSE: Final = Path(__file__).with_suffix(".md")
_NUMBERS: Final = {
    "COMMAND": COMMAND,
    "MAX_ATTEMPTS": MAX_ATTEMPTS,
    "MAX_BODY_BYTES": MAX_BODY_BYTES,
    "MAX_EVENTS": MAX_EVENTS,
    "RECALL_SECONDS": round(RECALL_SECONDS),
    "MAX_WAIT_SECONDS": MAX_WAIT_SECONDS,
    "HEARTBEAT_SECONDS": round(HEARTBEAT_SECONDS),
    "REPEAT_HOURS": REPEAT_HOURS,
}
"""What stands for `<<NAME>>` in the prose."""

_LIMITS: Final = (
    ("a fact or a query", f"{MAX_FACT_BYTES} bytes of UTF-8 after trimming"),
    ("a body", f"{MAX_BODY_BYTES} bytes"),
    ("the header of a request", f"{MAX_HEADER_BYTES} bytes, within {HEADER_SECONDS:.0f} s"),
    ("tasks of a workspace that wait or run", f"{MAX_PENDING}, of them {MAX_TIDYING} that forget or dream"),
    (
        "tasks of a workspace that can be looked at",
        f"{MAX_RECORDS}; of the token that has most of them the oldest go",
    ),
    ("a recall", f"{RECALL_SECONDS:.0f} s from its beginning"),
    (
        "recalls at once",
        f"{MAX_RECALLS}, half for one client's token; {RECALL_RESERVE} are left to the owner",
    ),
    ("a wait for one of these places", f"{PLACE_SECONDS:.0f} s, then it is `busy`"),
    ("a task", f"{BACKSTOP_SECONDS:.0f} s from its beginning"),
    (
        "connections at once",
        (
            f"{MAX_CONNECTIONS}, or half of the descriptors that it may have; "
            "the one that was idle for longest goes"
        ),
    ),
    (
        "requests at once that are being answered",
        f"{MAX_REQUESTS}; those that wait or follow are not counted",
    ),
    ("requests at once that wait", f"{MAX_WAITING}"),
    ("followers of events at once", f"{MAX_FOLLOWERS}"),
    (
        "of each of these three",
        f"half for one client's token; {RESERVE} are left to the owner",
    ),
)

_TASK_ALSO: Final = (
    "remember_failed",
    "forget_failed",
    "dream_failed",
    "pending_review",
    "store_conflict",
    "managed_memory_unavailable",
    "erased",
)
"""Codes of answers that tasks commonly end with."""


def page() -> str:
    """The page, as it should be."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    document = document_of(OPERATIONS)
    prose = _PROSE.read_text(encoding="utf-8")
    yield re.sub("<<([A-Z_]+)>>", lambda found: str(_NUMBERS[found[1]]), prose)
    yield "## Limits"
    yield ""
    yield "| what | at most |"
    yield "|---|---|"
    yield from (f"| {what} | {most} |" for what, most in _LIMITS)
    yield ""
    yield "## Requests"
    yield ""
    yield "| request | does | who |"
    yield "|---|---|---|"
    for each in OPERATIONS:
        who = "the owner" if each.owner_only else "every token"
        yield f"| [`{each.method} {each.path}`](#{_anchor(each)}) | {each.summary} | {who} |"
    for each in OPERATIONS:
        yield ""
        yield from _request(each, document["paths"][each.path][each.method.lower()])
    yield ""
    yield "## Bodies and answers"
    for name, schema in document["components"]["schemas"].items():
        yield ""
        yield from _schema(name, schema)
    yield ""
    yield from _codes()


def _anchor(operation: Operation) -> str:
    heading = f"{operation.method} {operation.path}".lower()
    return "".join(each for each in heading if each.isalnum() or each in " -_").replace(" ", "-")


def _request(operation: Operation, described: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}"
    yield ""
    yield operation.summary + (" The owner's token alone." if operation.owner_only else "")
    yield ""
    if operation.body is not None:
        yield f"- **Body**: {_link(operation.body.__name__)}"
    answer = operation.answer if isinstance(operation.answer, str) else None
    told = f"`{answer}`" if answer else _link(operation.answer.__name__)
    yield f"- **Answer**: {operation.status}, {told}"
    if "304" in described["responses"]:
        yield f"- **304**: {described['responses']['304']['description']}"
    for each in described["parameters"]:
        where = {"path": "in the path", "query": "in the query", "header": "header"}[each["in"]]
        must = "" if each["required"] or each["in"] != "query" else ", optional"
        meaning = each.get("description", "its id.")
        yield f"- `{each['name']}` ({where}, {_type(each['schema'])}{must}): {meaning}"
    codes = sorted(
        (code for code in operation.all_codes if code not in EVERYWHERE), key=lambda code: HTTP[code]
    )
    if codes:
        yield f"- **Problems**: {', '.join(f'{HTTP[code][0]} `{code}`' for code in codes)}"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield schema.get("description", "").splitlines()[0] if schema.get("description") else "One of its values."
    if "enum" in schema or "oneOf" in schema:
        yield ""
        yield f"{_type(schema)}."
        return
    if not schema.get("properties"):
        return
    yield ""
    yield "| field | type | |"
    yield "|---|---|---|"
    for field, of in schema["properties"].items():
        needed = "" if field in schema.get("required", ()) or "default" not in of else _default(of["default"])
        meaning = " ".join(part for part in (of.get("description", ""), needed) if part)
        yield f"| `{field}` | {_type(of)} | {meaning} |"


def _default(value: object) -> str:
    shown = "{}" if isinstance(value, dict) else value if isinstance(value, str) else json.dumps(value)
    return f"Default: `{shown}`."


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(_type(each) for each in schema[word])
    if schema.get("type") == "array":
        most = f" (at most {schema['maxItems']})" if "maxItems" in schema else ""
        return f"list{most} of {_type(schema['items'])}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) else "object"
    words = {"string": "text", "integer": "whole number", "null": "null", "boolean": "true or false"}
    kind = words.get(schema.get("type", ""), schema.get("type", "anything"))
    if "maximum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    return f"{kind}, {schema['maxLength']} characters" if "maxLength" in schema else kind


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _codes() -> Iterator[str]:
    yield "## Codes of answers"
    yield ""
    yield "Why a request was not carried out is a body of [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457),"
    yield "with `error`, the sentence, and `code`, which is stable; some have further fields. Where a"
    yield "`Retry-After` comes with it, try again then."
    yield f"Every request may be answered with {', '.join(f'`{code}`' for code in EVERYWHERE)}."
    yield ""
    yield "| status | code | sentence |"
    yield "|---|---|---|"
    for code, (status, sentence) in sorted(HTTP.items(), key=lambda each: each[1][0]):
        yield f"| {status} | `{code}` | {sentence} |"
    yield ""
    yield "## Codes of tasks"
    yield ""
    yield "`error.code` of a task that failed. What is not listed here means what it does as an answer."
    yield ""
    yield "| code | sentence |"
    yield "|---|---|"
    for code, sentence in (*TASK.items(), *((code, HTTP[code][1]) for code in _TASK_ALSO)):
        yield f"| `{code}` | {sentence} |"
    yield ""
    yield "## Codes of recalls"
    yield ""
    yield "`error` of a recall that is empty because something went wrong."
    yield ""
    yield "| code | meaning |"
    yield "|---|---|"
    yield from (f"| `{code}` | {sentence} |" for code, sentence in RECALL.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
