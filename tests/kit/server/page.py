"""Generate `docs/http.md` from the operations, their models and the error codes; the prose is in `page.md`.

The rows of codes in `docs/acp.md` are generated too.

    PYTHONPATH=tests .venv/bin/python -m kit.server.page

`tests/surface/pages/test_pages.py` fails if the page differs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from kit.locations import REPOSITORY
from muniment.errors import CODES
from muniment.names import MAX_FACT_BYTES
from muniment.server import acp, contract, guard, lane, recalls, runner, tokens
from muniment.server.http import COMMON_CODES, build_openapi
from muniment.server.service import OPERATIONS
from muniment.server.stream import HEARTBEAT_SECONDS
from muniment.store.tasks import MAX_EVENTS

PAGE, ACP_PAGE = (REPOSITORY / "docs" / name for name in ("http.md", "acp.md"))
COMMAND = "PYTHONPATH=tests .venv/bin/python -m kit.server.page"

_PROSE = Path(__file__).with_suffix(".md")
_NUMBERS = {
    **vars(lane),
    **vars(contract),
    "COMMAND": COMMAND,
    "MAX_EVENTS": MAX_EVENTS,
    "RECALL_SECONDS": round(recalls.RECALL_SECONDS),
    "HEARTBEAT_SECONDS": round(HEARTBEAT_SECONDS),
}
"""Values of `<<NAME>>` in the prose."""

_LIMITS = f"""
a fact or a query | {MAX_FACT_BYTES} bytes of UTF-8 after trimming
a body | {contract.MAX_BODY_BYTES} bytes
the header of a request | {guard.MAX_HEADER_BYTES} bytes, within {guard.HEADER_SECONDS:.0f} s
pending and running tasks of a workspace | {lane.MAX_PENDING}, of which {lane.MAX_TIDYING} may forget or dream
retained tasks of a workspace | {lane.MAX_RECORDS}; \
the oldest of the token with most tasks are removed, except while their Idempotency-Key is valid
a recall | {recalls.RECALL_SECONDS:.0f} s from its start
concurrent recalls | {recalls.MAX_RECALLS}; half of them per client token; \
{recalls.RECALL_RESERVE} reserved for the owner
a wait for a free recall slot | {recalls.SLOT_WAIT_SECONDS:.0f} s, then the response is `busy`
a task | {runner.BACKSTOP_SECONDS:.0f} s from its start
concurrent connections | {guard.MAX_CONNECTIONS}, or half of the available descriptors; \
the connection that was idle longest is closed
concurrent active requests | {guard.MAX_REQUESTS}; waiting requests and event streams are not counted
concurrent waiting requests | {guard.MAX_WAITING}
concurrent event streams | {guard.MAX_FOLLOWERS}
each of these three limits | half per client token; {tokens.RESERVE} reserved for the owner
"""


def build_page():
    """Return the current page."""
    return "\n".join(_build_lines()) + "\n"


def _build_lines():
    document, prose = build_openapi(OPERATIONS), _PROSE.read_text(encoding="utf-8")
    yield re.sub("<<([A-Z_]+)>>", lambda found: str(_NUMBERS[found[1]]), prose)
    yield from ("## Limits", "", "| limit | maximum |", "|---|---|")
    yield from (f"| {line} |" for line in _LIMITS.strip().splitlines())
    yield from ("", "## Requests", "", "| request | effect | allowed for |", "|---|---|---|")
    for each in OPERATIONS:
        who = "the owner" if each.is_owner_only else "every token"
        yield f"| [`{each.method} {each.path}`](#{_build_anchor(each)}) | {each.summary} | {who} |"
    for each in OPERATIONS:
        yield from _build_request(each, document["paths"][each.path][each.method.lower()])
    yield from ("", "## Bodies and responses")
    for name, schema in document["components"]["schemas"].items():
        yield from _build_schema(name, schema)
    yield from _build_codes()


def _build_anchor(operation):
    heading = f"{operation.method} {operation.path}".lower()
    return "".join(each for each in heading if each.isalnum() or each in " -_").replace(" ", "-")


def _build_request(operation, described):
    owner_note = " Requires the token of the owner." if operation.is_owner_only else ""
    yield from ("", f"### {operation.method} {operation.path}", "", operation.summary + owner_note, "")
    if operation.body is not None:
        yield f"- **Body**: {_format_link(operation.body.__name__)}"
    answer = operation.response
    link = f"`{answer}`" if isinstance(answer, str) else _format_link(answer.__name__)
    yield f"- **Response**: {operation.status}, {link}"
    if "304" in described["responses"]:
        yield f"- **304**: {described['responses']['304']['description']}"
    for each in described["parameters"]:
        where = {"path": "in the path", "query": "in the query", "header": "header"}[each["in"]]
        must = "" if each["required"] or each["in"] != "query" else ", optional"
        meaning = each.get("description", "the id.")
        yield f"- `{each['name']}` ({where}, {_format_type(each['schema'])}{must}): {meaning}"
    if codes := sorted(set(operation.all_codes) - set(COMMON_CODES), key=lambda code: CODES[code]):
        yield f"- **Problems**: {', '.join(f'{CODES[code].status} `{code}`' for code in codes)}"


def _build_schema(name, schema):
    yield from ("", f"### {name}", "", (schema.get("description") or "One of its values.").splitlines()[0])
    if "enum" in schema or "oneOf" in schema:
        yield from ("", f"{_format_type(schema)}.")
    elif fields := schema.get("properties"):
        yield from ("", "| field | type | |", "|---|---|---|")
        for field, field_schema in fields.items():
            value = field_schema.get("default")
            value = {} if isinstance(value, dict) else value
            default_text = value if isinstance(value, str) else json.dumps(value)
            is_needed, has_default = field in schema.get("required", ()), "default" in field_schema
            default = "" if is_needed or not has_default else f" Default: `{default_text}`."
            kind = (
                _format_type(field_schema)
                if is_needed or has_default
                else f"{_format_type(field_schema)}, optional"
            )
            yield f"| `{field}` | {kind} | {(field_schema.get('description', '') + default).strip()} |"


def _format_type(schema):
    if "$ref" in schema:
        return _format_link(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(_format_type(each) for each in schema[word])
    if schema.get("type") == "array":
        most = f" (at most {schema['maxItems']})" if "maxItems" in schema else ""
        return f"list{most} of {_format_type(schema['items'])}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_format_type(inner)}" if isinstance(inner, dict) else "object"
    type_names = {"string": "text", "integer": "whole number", "boolean": "true or false"}
    kind = type_names.get(named := schema.get("type", "anything"), named)
    if "maximum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    return f"{kind}, {schema['maxLength']} characters" if "maxLength" in schema else kind


def _format_link(name):
    return f"[{name}](#{name.lower()})"


def _build_codes():
    yield f"""
## Codes of answers

The body of a failed request is a problem as defined in [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457),
`error` is the message and `code` is stable; some problems have more fields. If the response has a
`Retry-After` header, retry after this time.
Every request may fail with {", ".join(f"`{code}`" for code in COMMON_CODES)}.

| status | code | message |
|---|---|---|"""
    for code, means in sorted(CODES.items(), key=lambda each: each[1].status):
        if means.status:
            yield f"| {means.status} | `{code}` | {means.sentence} |"
    yield """
## Codes of tasks

Values of `error.code` of a failed task. Other codes have the same meaning as for requests.

| code | message |
|---|---|"""
    for code, means in sorted(CODES.items(), key=lambda each: each[1].status > 0):
        if means.ends_task:
            yield f"| `{code}` | {means.sentence} |"
    yield """
## Codes of recalls

Values of `error` of a recall that is empty because of an error.

| code | meaning |
|---|---|"""
    yield from (
        f"| `{code}` | {means.recall_sentence} |" for code, means in CODES.items() if means.recall_sentence
    )


_HTTP_ONLY = {"invalid_json", "invalid_http", "invalid_client_id"}
_ROW = re.compile(r"^\| (-\d+) \| (.*?) \| `.*` \|$", re.MULTILINE)


def build_acp_page():
    """Return the page about ACP; the row of a number lists the codes that it has."""
    codes = [code for code, means in CODES.items() if means.ends_task or code.startswith("invalid_")]
    by_number = {}
    for code in codes:
        if code not in _HTTP_ONLY:
            by_number.setdefault(str(acp.get_error_number(code)), []).append(f"`{code}`")

    def row(found):
        number, when = found.groups()
        if number not in by_number or number == str(acp.FAILED):
            return found[0]
        return f"| {number} | {when} | {', '.join(by_number[number])} |"

    return _ROW.sub(row, ACP_PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(build_page(), encoding="utf-8")
    ACP_PAGE.write_text(build_acp_page(), encoding="utf-8")
