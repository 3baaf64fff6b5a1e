"""Homes are apart for whoever asks over HTTP: what is another's is answered as what never was."""

from __future__ import annotations

import json
import re
import secrets
import uuid
from dataclasses import dataclass, replace

import pytest

from kit.fleet.homes import is_idle, rows_of_home
from kit.fleet.pair import nodes, until
from kit.server.process import BASE, policy_file
from muniment.kernel.names import Trust
from muniment.names import hello_key, hello_name
from muniment.server.guard import HELLO
from muniment.server.routes import MCP_OPERATIONS
from muniment.server.service import OPERATIONS

SECRET = "marmot"
REVIEWED = '{ trust = "owner", commit = "review" }'
VARIES = re.compile(r"(remember|forget|dream)-[0-9a-z-]+|\d{4}-\d\d-\d\dT[0-9:.]+Z|[0-9a-f]{32,}")


@dataclass(frozen=True)
class Named:
    """What a request may name of a home. `key` came with `fact`."""

    home: str
    remember: str
    forget: str
    dream: str
    review: str
    digest: str
    entry: str
    path: str
    key: str
    fact: str
    cursor: str
    token: str

    def blank(self, text):
        """A text, whatever it says of these."""
        for each in (self.home, self.entry, self.path, self.fact):
            text = text.replace(each, "…")
        return VARIES.sub("…", text)


NEVER = Named(
    home="home-that-never-was",
    remember=f"remember-{uuid.uuid4()}",
    forget=f"forget-{uuid.uuid4()}",
    dream=f"dream-{uuid.uuid4()}",
    review=f"review-{uuid.uuid4()}",
    digest="0" * 64,
    entry=f"user/never.md@{'0' * 64}",
    path="user/never.md",
    key="never",
    fact=f"The user keeps a {SECRET} in vault 12.",
    cursor="00000000-3",
    token=secrets.token_hex(16),
)


def tasks_of(kind, body):
    return {
        f"POST {BASE}/{kind}": lambda of: [(f"{BASE}/{kind}", body(of), {"Idempotency-Key": of.key})],
        **{
            f"{how} {BASE}/{kind}/{{taskId}}": lambda of: [
                (f"{BASE}/{kind}/{each}", None, {}) for each in (of.remember, of.forget, of.dream)
            ]
            for how in ("GET", "DELETE")
        },
    }


CASES = {
    **tasks_of("remember", lambda of: {"content": of.fact, "scope": "user"}),
    **tasks_of("forget", lambda of: {"query": of.path, "digest": of.digest}),
    **tasks_of("dream", lambda _: {}),
    f"GET {BASE}/tasks": lambda _: [(f"{BASE}/tasks", None, {})],
    f"POST {BASE}/recall": lambda of: [(f"{BASE}/recall", {"query": of.fact, "exclude": [of.entry]}, {})],
    f"GET {BASE}/review": lambda _: [(f"{BASE}/review", None, {})],
    f"GET {BASE}/review/{{reviewId}}": lambda of: [(f"{BASE}/review/{of.review}", None, {})],
    f"POST {BASE}/review/{{reviewId}}/approve": lambda of: [
        (f"{BASE}/review/{of.review}/approve", {"digest": of.digest}, {})
    ],
    f"POST {BASE}/review/{{reviewId}}/reject": lambda of: [(f"{BASE}/review/{of.review}/reject", {}, {})],
    f"POST {BASE}/undo": lambda of: [
        (f"{BASE}/undo", {"taskId": each}, {}) for each in (of.remember, of.forget, of.dream)
    ],
    f"POST {BASE}/erase": lambda of: [
        (f"{BASE}/erase", {"target": each, "dryRun": is_dry}, {})
        for each in (of.path, of.remember, of.forget)
        for is_dry in (True, False)
    ],
    f"GET {BASE}/entries": lambda _: [(f"{BASE}/entries", None, {})],
    f"GET {BASE}/entry": lambda of: [(f"{BASE}/entry?path={of.path}", None, {})],
    f"GET {BASE}/history": lambda of: [(f"{BASE}/history?path={of.path}", None, {})],
    f"GET {BASE}/why": lambda of: [(f"{BASE}/why?path={of.path}", None, {})],
    f"GET {BASE}/export": lambda _: [(f"{BASE}/export?format=jsonl", None, {})],
    f"POST {BASE}/edit": lambda of: [(f"{BASE}/edit", {"path": of.path, "text": "Nobody's."}, {})],
    f"POST {BASE}/pin": lambda of: [(f"{BASE}/pin", {"path": of.path}, {})],
    f"POST {BASE}/index": lambda _: [(f"{BASE}/index", {}, {})],
    f"GET {BASE}/audit/head": lambda _: [(f"{BASE}/audit/head", None, {})],
    f"GET {BASE}/policy/explain": lambda of: [(f"{BASE}/policy/explain?verb=read&path={of.path}", None, {})],
    f"GET {BASE}/events": lambda of: [(f"{BASE}/events", None, {"Last-Event-ID": of.cursor})],
    "GET /capabilities": lambda _: [("/capabilities", None, {})],
    f"GET {HELLO}": lambda of: [(f"{HELLO}?token={of.token}&nonce={'0' * 64}", None, {})],
    "GET /healthz": lambda _: [("/healthz", None, {})],
    "GET /health": lambda _: [("/health", None, {})],
    "GET /readyz": lambda _: [("/readyz", None, {})],
    "GET /openapi.json": lambda _: [("/openapi.json", None, {})],
    "POST /ui": lambda _: [("/ui", {}, {})],
    "GET /metrics": lambda _: [("/metrics", None, {})],
    "POST /mcp": lambda _: [("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {})],
    "GET /mcp": lambda _: [("/mcp", None, {})],
    "DELETE /mcp": lambda _: [("/mcp", None, {})],
}
"""By operation, what is asked with the names of a home."""


@dataclass(frozen=True)
class Said:
    """An answer, as far as it may not differ."""

    status: int
    code: str | None
    text: str


def asked(who, operation, of, *, token=None):
    """What a node answers to the requests of an operation."""
    found = []
    for path, body, headers in CASES[f"{operation.method} {operation.path}"](of):
        workspaces = [path]
        if operation.of_workspace and of is not None:
            workspaces.append(path.replace("/workspace/", f"/workspaces/{of.home}/", 1))
        for each in workspaces:
            content = None if body is None else json.dumps(body)
            sent = {"Authorization": f"Bearer {token or who.token}", **headers}
            sent |= {} if body is None else {"Content-Type": "application/json"}
            with who.http.stream(operation.method, each, content=content, headers=sent) as answer:
                text = begun(answer)
            assert answer.status_code != 500, (each, text)
            assert answer.headers.get("idempotency-replayed") is None or who.token == of.token
            code = json.loads(text).get("code") if "problem" in answer.headers["content-type"] else None
            found.append(Said(answer.status_code, code, of.blank(text)))
    return found


def begun(answer):
    """What an answer says; of a stream what it begins with."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.read().decode()
    lines = []
    for line in answer.iter_lines():
        lines.append(line)
        if line.startswith("retry:"):
            break
    return "\n".join(lines)


@pytest.fixture(scope="module")
def reviewing(fleet, tmp_path_factory):
    """Nodes whose homes hold every change for their owner."""
    directory = tmp_path_factory.mktemp("apart")
    with nodes(fleet, directory, policy=str(policy_file(directory, user=REVIEWED))) as made:
        yield made


@pytest.fixture(scope="module")
def other(reviewing):
    """A home in which there is something of every kind, and what it is named by."""
    home = reviewing.home()
    at = home.at[0]
    fact = f"The user keeps a {SECRET} in vault 7."
    landed = at.done("remember", {"content": fact, "scope": "user"})
    shown = at.get(f"{BASE}/review/{landed['reviewId']}").json()
    decided = at.post(f"{BASE}/review/{landed['reviewId']}/approve", {"digest": shown["digest"]})
    assert decided.status_code == 200, decided.text
    waits = at.done(
        "remember", {"content": fact.replace("7", "8"), "scope": "user"}, idempotency_key="theirs"
    )
    shown = at.get(f"{BASE}/review/{waits['reviewId']}").json()
    forget = at.done("forget", {"query": "no such thing as a wombat", "dryRun": True})
    (entry,) = at.post(f"{BASE}/recall", {"query": fact}).json()["entries"]
    named = Named(
        home=home.name,
        remember=landed["taskId"],
        forget=forget["taskId"],
        dream=at.done("dream", {})["taskId"],
        review=waits["reviewId"],
        digest=shown["digest"],
        entry=entry["id"],
        path=decided.json()["filesTouched"][0],
        key="theirs",
        fact=fact.replace("7", "8"),
        cursor=at.cursor(2),
        token=hello_name(hello_key(home.token)),
    )
    until(lambda: is_idle(reviewing.base, home.name))
    return home, named


def test_every_operation_has_a_case():
    assert {f"{each.method} {each.path}" for each in (*OPERATIONS, *MCP_OPERATIONS)} == set(CASES)


def test_names_of_another_home_are_answered_as_unknown(reviewing, other):
    theirs, named = other
    mine = reviewing.home()
    client = reviewing.client(mine)
    before = rows_of_home(reviewing.base, theirs.name)
    assert all(before[table] for table in ("task", "change_kept", "review", "token", "event", "record"))
    for number, operation in enumerate((*OPERATIONS, *MCP_OPERATIONS)):
        at = mine.at[number % 2]
        for token in (None, client):
            answers = []
            for of in (named, NEVER):
                until(lambda: is_idle(reviewing.base, mine.name))  # Else listings differ by what runs.
                answers.append(asked(at, operation, of, token=token))
            found, never = answers
            if operation.path != HELLO:
                assert found == never, operation
            assert not any(theirs.name in each.text for each in found), operation
            assert not any("vault 7" in each.text for each in found), operation
    assert rows_of_home(reviewing.base, theirs.name) == before


def test_owner_of_home_is_answered_differently(reviewing, other):
    """So that the names above are right."""
    theirs, named = other
    before = rows_of_home(reviewing.base, theirs.name)
    telling = {
        *(f"GET {BASE}/{kind}/{{taskId}}" for kind in ("remember", "forget", "dream")),
        *(f"GET {BASE}/{rest}" for rest in ("review", "review/{reviewId}", "audit/head", "events")),
        *(f"GET {BASE}/{rest}" for rest in ("entry", "history", "why")),
        f"POST {BASE}/recall",
        "GET /capabilities",
    }
    for operation in OPERATIONS:
        if f"{operation.method} {operation.path}" in telling:
            assert asked(theirs.at[0], operation, named) != asked(theirs.at[0], operation, NEVER), operation
    again = theirs.at[1].post(
        f"{BASE}/remember", {"content": named.fact, "scope": "user"}, idempotency_key=named.key
    )
    assert again.headers["idempotency-replayed"] == "true"
    after = rows_of_home(reviewing.base, theirs.name)
    changed = {table for table in before if before[table] != after[table]} - {"record", "head"}
    assert not changed  # A recall is on record.


def test_node_token_belongs_to_no_home(reviewing, other):
    theirs, named = other
    before = rows_of_home(reviewing.base, theirs.name)
    node = reviewing.at(0, reviewing.nodes[0].token)
    for operation in (*OPERATIONS, *MCP_OPERATIONS):
        for said in asked(node, operation, named):
            if operation.of_workspace:
                assert said.code == "untrusted_workspace", operation
    assert node.problem("GET", "/capabilities") == (403, "untrusted_workspace")
    assert node.get("/metrics").status_code == 200
    assert rows_of_home(reviewing.base, theirs.name) == before


def test_metrics_are_for_node_operator_only(reviewing):
    home = reviewing.home()
    assert home.at[0].problem("GET", "/metrics") == (403, "owner_required")


def test_token_has_its_trust_in_its_home_only(reviewing):
    """The same name of a token in two homes is two tokens."""
    one, other = reviewing.home(), reviewing.home()
    of_one = reviewing.client(one, "editor", "editor-1", trust=Trust.EXTERNAL)
    of_other = reviewing.client(other, "editor", "editor-2")
    assert one.at[0].problem("GET", f"{BASE}/tasks", client="editor-1") == (200, None)
    for token, client in ((of_one, "editor-2"), (of_other, "editor-1")):
        assert one.at[0].problem("GET", f"{BASE}/tasks", token=token, client=client) == (
            400,
            "invalid_client_id",
        )
    seen = replace(NEVER, home=other.name)
    assert one.at[1].problem("GET", f"/workspaces/{seen.home}/memory/tasks", token=of_one) == (
        403,
        "untrusted_workspace",
    )


def test_mcp_is_not_served_for_a_home(reviewing):
    """Its sessions are of one process."""
    home = reviewing.home()
    for at in home.at:
        for body in ({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, {}):
            assert at.problem("POST", "/mcp", body) == (404, "not_found")
