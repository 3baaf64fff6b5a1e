"""Homes are separated over HTTP: objects of another home are answered like unknown ones."""

from __future__ import annotations

import json
import re
import secrets
import uuid
from dataclasses import dataclass, replace

import pytest

from kit.fleet.homes import is_idle, read_home_rows
from kit.fleet.local_nodes import start_nodes, wait_until
from kit.server.process import BASE, write_policy
from muniment.kernel.names import Trust
from muniment.names import derive_hello_key, derive_hello_name
from muniment.server.guard import HELLO
from muniment.server.routes import HOOK_OPERATIONS, MCP_OPERATIONS
from muniment.server.service import OPERATIONS

SECRET = "marmot"
REVIEWED = '{ trust = "owner", commit = "review" }'
VARIES = re.compile(r"(remember|forget|dream)-[0-9a-z-]+|\d{4}-\d\d-\d\dT[0-9:.]+Z|[0-9a-f]{32,}")


@dataclass(frozen=True)
class HomeNames:
    """The names of a home that a request may contain. `key` was sent with `fact`."""

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
        """Return `text` without any of these names."""
        for value in (self.home, self.entry, self.path, self.fact):
            text = text.replace(value, "…")
        return VARIES.sub("…", text)


NEVER = HomeNames(
    home="home-that-never-was",
    remember=f"remember-{uuid.uuid4()}",
    forget=f"forget-{uuid.uuid4()}",
    dream=f"dream-{uuid.uuid4()}",
    review=f"review-{uuid.uuid4()}",
    digest="0" * 64,
    entry=f"user/never.md@{'0' * 64}",
    path="user/never.md",
    key="never",
    fact=f"The user keeps a {SECRET} in cellar 12.",
    cursor="00000000-3",
    token=secrets.token_hex(16),
)


def task_requests(kind, body):
    return {
        f"POST {BASE}/{kind}": lambda names: [
            (f"{BASE}/{kind}", body(names), {"Idempotency-Key": names.key})
        ],
        **{
            f"{how} {BASE}/{kind}/{{taskId}}": lambda names: [
                (f"{BASE}/{kind}/{each}", None, {}) for each in (names.remember, names.forget, names.dream)
            ]
            for how in ("GET", "DELETE")
        },
    }


CASES = {
    **task_requests("remember", lambda names: {"content": names.fact, "scope": "user"}),
    **task_requests("forget", lambda names: {"query": names.path, "digest": names.digest}),
    **task_requests("dream", lambda _: {}),
    f"GET {BASE}/tasks": lambda _: [(f"{BASE}/tasks", None, {})],
    f"POST {BASE}/recall": lambda names: [
        (f"{BASE}/recall", {"query": names.fact, "exclude": [names.entry]}, {})
    ],
    f"GET {BASE}/context": lambda _: [(f"{BASE}/context", None, {})],
    f"GET {BASE}/review": lambda _: [(f"{BASE}/review", None, {})],
    f"GET {BASE}/review/{{reviewId}}": lambda names: [(f"{BASE}/review/{names.review}", None, {})],
    f"POST {BASE}/review/{{reviewId}}/approve": lambda names: [
        (f"{BASE}/review/{names.review}/approve", {"digest": names.digest}, {})
    ],
    f"POST {BASE}/review/{{reviewId}}/reject": lambda names: [
        (f"{BASE}/review/{names.review}/reject", {}, {})
    ],
    f"POST {BASE}/undo": lambda names: [
        (f"{BASE}/undo", {"taskId": each}, {}) for each in (names.remember, names.forget, names.dream)
    ],
    f"POST {BASE}/erase": lambda names: [
        (f"{BASE}/erase", {"target": each, "dryRun": is_dry}, {})
        for each in (names.path, names.remember, names.forget)
        for is_dry in (True, False)
    ],
    f"GET {BASE}/entries": lambda _: [(f"{BASE}/entries", None, {})],
    f"GET {BASE}/entry": lambda names: [(f"{BASE}/entry?path={names.path}", None, {})],
    f"GET {BASE}/history": lambda names: [(f"{BASE}/history?path={names.path}", None, {})],
    f"GET {BASE}/why": lambda names: [(f"{BASE}/why?path={names.path}", None, {})],
    f"GET {BASE}/export": lambda _: [(f"{BASE}/export?format=jsonl", None, {})],
    f"POST {BASE}/edit": lambda names: [(f"{BASE}/edit", {"path": names.path, "text": "Nobody's."}, {})],
    f"POST {BASE}/pin": lambda names: [(f"{BASE}/pin", {"path": names.path}, {})],
    f"POST {BASE}/index": lambda _: [(f"{BASE}/index", {}, {})],
    f"GET {BASE}/audit/head": lambda _: [(f"{BASE}/audit/head", None, {})],
    f"GET {BASE}/policy/explain": lambda names: [
        (f"{BASE}/policy/explain?verb=read&path={names.path}", None, {})
    ],
    f"GET {BASE}/events": lambda names: [(f"{BASE}/events", None, {"Last-Event-ID": names.cursor})],
    "GET /capabilities": lambda _: [("/capabilities", None, {})],
    f"GET {HELLO}": lambda names: [(f"{HELLO}?token={names.token}&nonce={'0' * 64}", None, {})],
    "GET /healthz": lambda _: [("/healthz", None, {})],
    "GET /health": lambda _: [("/health", None, {})],
    "GET /readyz": lambda _: [("/readyz", None, {})],
    "GET /openapi.json": lambda _: [("/openapi.json", None, {})],
    "POST /ui": lambda _: [("/ui", {}, {})],
    "GET /metrics": lambda _: [("/metrics", None, {})],
    "POST /mcp": lambda _: [("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {})],
    "GET /mcp": lambda _: [("/mcp", None, {})],
    "DELETE /mcp": lambda _: [("/mcp", None, {})],
    "POST /hook": lambda names: [("/hook?directory=/", {"prompt": names.path}, {})],
    "POST /hook/confirm": lambda _: [("/hook/confirm", {}, {"X-Muniment-Answer": "0" * 32})],
}
"""The requests with the names of a home, by operation."""


@dataclass(frozen=True)
class Response:
    """The comparable part of a response."""

    status: int
    code: str | None
    text: str


def send_operation(node, operation, names, *, token=None):
    """Return the responses of a node to the requests of an operation."""
    responses = []
    for path, body, headers in CASES[f"{operation.method} {operation.path}"](names):
        workspaces = [path]
        if operation.is_workspace_operation and names is not None:
            workspaces.append(path.replace("/workspace/", f"/workspaces/{names.home}/", 1))
        for each in workspaces:
            content = None if body is None else json.dumps(body)
            sent = {"Authorization": f"Bearer {token or node.token}", **headers}
            sent |= {} if body is None else {"Content-Type": "application/json"}
            with node.http.stream(operation.method, each, content=content, headers=sent) as answer:
                text = read_start(answer)
            assert answer.status_code != 500, (each, text)
            assert answer.headers.get("idempotency-replayed") is None or node.token == names.token
            code = json.loads(text).get("code") if "problem" in answer.headers["content-type"] else None
            responses.append(Response(answer.status_code, code, names.blank(text)))
    return responses


def read_start(answer):
    """Return the text of a response, or the start of a stream."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.read().decode()
    lines = []
    for line in answer.iter_lines():
        lines.append(line)
        if line.startswith("retry:"):
            break
    return "\n".join(lines)


@pytest.fixture(scope="module")
def reviewing_nodes(fleet, tmp_path_factory):
    """Start nodes whose homes require a review of every change."""
    directory = tmp_path_factory.mktemp("apart")
    with start_nodes(fleet, directory, policy=str(write_policy(directory, user=REVIEWED))) as created:
        yield created


@pytest.fixture(scope="module")
def other(reviewing_nodes):
    """Create a home with an object of every kind, and return it with its names."""
    home = reviewing_nodes.create_home()
    at = home.nodes[0]
    fact, pending = f"The user keeps a {SECRET} in vault 7.", f"The user keeps a {SECRET} in cellar 8."
    task = at.run_task("remember", {"content": fact, "scope": "user"})
    review = at.get(f"{BASE}/review/{task['reviewId']}").json()
    approval = at.post(f"{BASE}/review/{task['reviewId']}/approve", {"digest": review["digest"]})
    assert approval.status_code == 200, approval.text
    pending_task = at.run_task("remember", {"content": pending, "scope": "user"}, idempotency_key="theirs")
    review = at.get(f"{BASE}/review/{pending_task['reviewId']}").json()
    forget = at.run_task("forget", {"query": "no such thing as a wombat", "dryRun": True})
    (entry,) = at.post(f"{BASE}/recall", {"query": fact}).json()["entries"]
    names = HomeNames(
        home=home.name,
        remember=task["taskId"],
        forget=forget["taskId"],
        dream=at.run_task("dream", {})["taskId"],
        review=pending_task["reviewId"],
        digest=review["digest"],
        entry=entry["id"],
        path=approval.json()["filesTouched"][0],
        key="theirs",
        fact=pending,
        cursor=at.cursor(2),
        token=derive_hello_name(derive_hello_key(home.token)),
    )
    wait_until(lambda: is_idle(reviewing_nodes.base, home.name))
    return home, names


def test_every_operation_has_a_case():
    assert {f"{each.method} {each.path}" for each in (*OPERATIONS, *MCP_OPERATIONS, *HOOK_OPERATIONS)} == set(
        CASES
    )


def test_names_of_another_home_are_answered_as_unknown(reviewing_nodes, other):
    other_home, names = other
    own_home = reviewing_nodes.create_home()
    client = reviewing_nodes.add_client(own_home)
    before = read_home_rows(reviewing_nodes.base, other_home.name)
    assert all(before[table] for table in ("task", "change_kept", "review", "token", "event", "record"))
    for number, operation in enumerate((*OPERATIONS, *MCP_OPERATIONS, *HOOK_OPERATIONS)):
        at = own_home.nodes[number % 2]
        for token in (None, client):
            answers = []
            for home_names in (names, NEVER):
                # Otherwise running tasks change the listings.
                wait_until(lambda: is_idle(reviewing_nodes.base, own_home.name))
                answers.append(send_operation(at, operation, home_names, token=token))
            responses, unknown_responses = answers
            if operation.path != HELLO:
                assert responses == unknown_responses, operation
            assert not any(other_home.name in each.text for each in responses), operation
            assert not any("vault 7" in each.text for each in responses), operation
    assert read_home_rows(reviewing_nodes.base, other_home.name) == before


def test_owner_of_home_is_answered_differently(reviewing_nodes, other):
    """This proves that the names of the other tests are correct."""
    other_home, names = other
    before = read_home_rows(reviewing_nodes.base, other_home.name)
    readable = {
        *(f"GET {BASE}/{kind}/{{taskId}}" for kind in ("remember", "forget", "dream")),
        *(f"GET {BASE}/{rest}" for rest in ("review", "review/{reviewId}", "audit/head", "events")),
        *(f"GET {BASE}/{rest}" for rest in ("entry", "history", "why")),
        f"POST {BASE}/recall",
        "GET /capabilities",
    }
    for operation in OPERATIONS:
        if f"{operation.method} {operation.path}" in readable:
            assert send_operation(other_home.nodes[0], operation, names) != send_operation(
                other_home.nodes[0], operation, NEVER
            ), operation
    second = other_home.nodes[1].post(
        f"{BASE}/remember", {"content": names.fact, "scope": "user"}, idempotency_key=names.key
    )
    assert second.headers["idempotency-replayed"] == "true"
    after = read_home_rows(reviewing_nodes.base, other_home.name)
    changed = {table for table in before if before[table] != after[table]} - {"record", "head"}
    assert not changed  # A recall adds a record.


def test_node_token_belongs_to_no_home(reviewing_nodes, other):
    other_home, names = other
    before = read_home_rows(reviewing_nodes.base, other_home.name)
    node = reviewing_nodes.open_requests(0, reviewing_nodes.nodes[0].token)
    for operation in (*OPERATIONS, *MCP_OPERATIONS, *HOOK_OPERATIONS):
        for response in send_operation(node, operation, names):
            if operation.is_workspace_operation:
                assert response.code == "untrusted_workspace", operation
    assert node.request_problem("GET", "/capabilities") == (403, "untrusted_workspace")
    assert node.get("/metrics").status_code == 200
    assert read_home_rows(reviewing_nodes.base, other_home.name) == before


def test_metrics_are_for_node_operator_only(reviewing_nodes):
    home = reviewing_nodes.create_home()
    assert home.nodes[0].request_problem("GET", "/metrics") == (403, "owner_required")


def test_token_has_its_trust_in_its_home_only(reviewing_nodes):
    """One name of a token in two homes means two tokens."""
    one, other = reviewing_nodes.create_home(), reviewing_nodes.create_home()
    first_token = reviewing_nodes.add_client(one, "editor", "editor-1", trust=Trust.EXTERNAL)
    second_token = reviewing_nodes.add_client(other, "editor", "editor-2")
    assert one.nodes[0].request_problem("GET", f"{BASE}/tasks", client="editor-1") == (200, None)
    for token, client in ((first_token, "editor-2"), (second_token, "editor-1")):
        assert one.nodes[0].request_problem("GET", f"{BASE}/tasks", token=token, client=client) == (
            400,
            "invalid_client_id",
        )
    other_names = replace(NEVER, home=other.name)
    assert one.nodes[1].request_problem(
        "GET", f"/workspaces/{other_names.home}/memory/tasks", token=first_token
    ) == (
        403,
        "untrusted_workspace",
    )


def test_mcp_is_not_served_for_a_home(reviewing_nodes):
    """MCP sessions belong to one process."""
    home = reviewing_nodes.create_home()
    for at in home.nodes:
        for body in ({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, {}):
            assert at.request_problem("POST", "/mcp", body) == (404, "not_found")
