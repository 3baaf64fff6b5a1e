"""`docs/http.md`: written from the operations, their models and the codes; the prose stands in `page.md`.

Of `docs/acp.md` the rows of codes are written likewise.

    PYTHONPATH=tests .venv/bin/python -m kit.server.page

`tests/surface/pages/test_pages.py` fails where the page is not what this writes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from kit.where import REPOSITORY
from muniment.errors import CODES
from muniment.names import MAX_FACT_BYTES
from muniment.server import acp, contract, core, guard, lane, runner, tokens
from muniment.server.http import EVERYWHERE, document_of
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
    "RECALL_SECONDS": round(core.RECALL_SECONDS),
    "HEARTBEAT_SECONDS": round(HEARTBEAT_SECONDS),
}
"""What stands for `<<NAME>>` in the prose."""

_LIMITS = f"""
a fact or a query | {MAX_FACT_BYTES} bytes of UTF-8 after trimming
a body | {contract.MAX_BODY_BYTES} bytes
the header of a request | {guard.MAX_HEADER_BYTES} bytes, within {guard.HEADER_SECONDS:.0f} s
tasks of a workspace that wait or run | {lane.MAX_PENDING}, of them {lane.MAX_TIDYING} that forget or dream
tasks of a workspace that can be looked at | {lane.MAX_RECORDS}; \
of the token that has most of them the oldest go, but none whose Idempotency-Key still holds
a recall | {core.RECALL_SECONDS:.0f} s from its beginning
recalls at once | {core.MAX_RECALLS}, half for one client's token; {core.RESERVE} are left to the owner
a wait for one of these places | {core.PLACE_SECONDS:.0f} s, then it is `busy`
a task | {runner.BACKSTOP_SECONDS:.0f} s from its beginning
connections at once | {guard.MAX_CONNECTIONS}, or half of the descriptors that it may have; \
the one that was idle for longest goes
requests at once that are being answered | {guard.MAX_REQUESTS}; those that wait or follow are not counted
requests at once that wait | {guard.MAX_WAITING}
followers of events at once | {guard.MAX_FOLLOWERS}
of each of these three | half for one client's token; {tokens.RESERVE} are left to the owner
"""


def page():
    """The page, as it should be."""
    return "\n".join(_page()) + "\n"


def _page():
    document, prose = document_of(OPERATIONS), _PROSE.read_text(encoding="utf-8")
    yield re.sub("<<([A-Z_]+)>>", lambda found: str(_NUMBERS[found[1]]), prose)
    yield from ("## Limits", "", "| what | at most |", "|---|---|")
    yield from (f"| {line} |" for line in _LIMITS.strip().splitlines())
    yield from ("", "## Requests", "", "| request | does | who |", "|---|---|---|")
    for each in OPERATIONS:
        who = "the owner" if each.owner_only else "every token"
        yield f"| [`{each.method} {each.path}`](#{_anchor(each)}) | {each.summary} | {who} |"
    for each in OPERATIONS:
        yield from _request(each, document["paths"][each.path][each.method.lower()])
    yield from ("", "## Bodies and answers")
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)
    yield from _codes()


def _anchor(operation):
    heading = f"{operation.method} {operation.path}".lower()
    return "".join(each for each in heading if each.isalnum() or each in " -_").replace(" ", "-")


def _request(operation, described):
    alone = " The owner's token alone." if operation.owner_only else ""
    yield from ("", f"### {operation.method} {operation.path}", "", operation.summary + alone, "")
    if operation.body is not None:
        yield f"- **Body**: {_link(operation.body.__name__)}"
    answer = operation.answer
    told = f"`{answer}`" if isinstance(answer, str) else _link(answer.__name__)
    yield f"- **Answer**: {operation.status}, {told}"
    if "304" in described["responses"]:
        yield f"- **304**: {described['responses']['304']['description']}"
    for each in described["parameters"]:
        where = {"path": "in the path", "query": "in the query", "header": "header"}[each["in"]]
        must = "" if each["required"] or each["in"] != "query" else ", optional"
        meaning = each.get("description", "its id.")
        yield f"- `{each['name']}` ({where}, {_type(each['schema'])}{must}): {meaning}"
    if codes := sorted(set(operation.all_codes) - set(EVERYWHERE), key=lambda code: CODES[code]):
        yield f"- **Problems**: {', '.join(f'{CODES[code].status} `{code}`' for code in codes)}"


def _schema(name, schema):
    yield from ("", f"### {name}", "", (schema.get("description") or "One of its values.").splitlines()[0])
    if "enum" in schema or "oneOf" in schema:
        yield from ("", f"{_type(schema)}.")
    elif fields := schema.get("properties"):
        yield from ("", "| field | type | |", "|---|---|---|")
        for field, of in fields.items():
            value = of.get("default")
            value = {} if isinstance(value, dict) else value
            shown = value if isinstance(value, str) else json.dumps(value)
            is_needed, has_default = field in schema.get("required", ()), "default" in of
            default = "" if is_needed or not has_default else f" Default: `{shown}`."
            kind = _type(of) if is_needed or has_default else f"{_type(of)}, optional"
            yield f"| `{field}` | {kind} | {(of.get('description', '') + default).strip()} |"


def _type(schema):
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
    words = {"string": "text", "integer": "whole number", "boolean": "true or false"}
    kind = words.get(named := schema.get("type", "anything"), named)
    if "maximum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    return f"{kind}, {schema['maxLength']} characters" if "maxLength" in schema else kind


def _link(name):
    return f"[{name}](#{name.lower()})"


def _codes():
    yield f"""
## Codes of answers

Why a request was not carried out is a body of [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457),
with `error`, the sentence, and `code`, which is stable; some have further fields. Where a
`Retry-After` comes with it, try again then.
Every request may be answered with {", ".join(f"`{code}`" for code in EVERYWHERE)}.

| status | code | sentence |
|---|---|---|"""
    for code, means in sorted(CODES.items(), key=lambda each: each[1].status):
        if means.status:
            yield f"| {means.status} | `{code}` | {means.sentence} |"
    yield """
## Codes of tasks

`error.code` of a task that failed. What is not listed here means what it does as an answer.

| code | sentence |
|---|---|"""
    for code, means in sorted(CODES.items(), key=lambda each: each[1].status > 0):
        if means.ends_task:
            yield f"| `{code}` | {means.sentence} |"
    yield """
## Codes of recalls

`error` of a recall that is empty because something went wrong.

| code | meaning |
|---|---|"""
    yield from (f"| `{code}` | {means.recall} |" for code, means in CODES.items() if means.recall)


_OF_HTTP_ALONE = {"invalid_json", "invalid_http", "invalid_client_id"}
_ROW = re.compile(r"^\| (-\d+) \| (.*?) \| `.*` \|$", re.MULTILINE)


def acp_page():
    """The page about ACP as it should be: a row of one number names the codes that have it."""
    asked = [code for code, means in CODES.items() if means.ends_task or code.startswith("invalid_")]
    by_number = {}
    for code in asked:
        if code not in _OF_HTTP_ALONE:
            by_number.setdefault(str(acp.number_of(code)), []).append(f"`{code}`")

    def row(found):
        number, when = found.groups()
        if number not in by_number or number == str(acp.FAILED):
            return found[0]
        return f"| {number} | {when} | {', '.join(by_number[number])} |"

    return _ROW.sub(row, ACP_PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    ACP_PAGE.write_text(acp_page(), encoding="utf-8")
