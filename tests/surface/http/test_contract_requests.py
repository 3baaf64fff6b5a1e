"""What a request may say, in which order it is checked, and by which names a daemon answers."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from kit.daemon.process import BASE, HeldModel, serving
from muniment.daemon.service import OPERATIONS
from muniment.names import MAX_FACT_BYTES

ROWS = {
    ("POST", f"{BASE}/remember"): 202,
    ("POST", f"{BASE}/forget"): 202,
    ("POST", f"{BASE}/dream"): 202,
    ("POST", f"{BASE}/recall"): 200,
    ("GET", f"{BASE}/tasks"): 200,
    ("GET", f"{BASE}/tasks?status=completed"): 200,
    ("GET", f"{BASE}/review"): 200,
    ("POST", f"{BASE}/erase"): 404,
    ("POST", f"{BASE}/undo"): 404,
    ("POST", f"{BASE}/review/r1/approve"): 404,
    ("POST", f"{BASE}/review/r1/reject"): 404,
    ("GET", f"{BASE}/audit/head"): 200,
    ("GET", f"{BASE}/policy/explain?verb=read&path=user/a.md"): 200,
    ("GET", "/capabilities"): 200,
    ("GET", "/healthz"): 200,
    ("GET", "/readyz"): 200,
    ("GET", "/openapi.json"): 200,
    ("GET", "/metrics"): 200,
}
BODIES = {
    "remember": {"content": "The user prefers tables to prose"},
    "forget": {"query": "tables prose nowhere"},
    "dream": {},
    "recall": {"query": "tables or prose?"},
    "erase": {"target": "user/nothing.md"},
    "undo": {"taskId": "remember-1"},
    "approve": {"digest": "0"},
    "reject": {},
}
CODES = {
    "content": [7, None, "", " ", "\t\n", "\u00a0", "x" * (MAX_FACT_BYTES + 1), "é" * 32_769, ["a"]],
    "contextMode": ["", "Workspace", 7, "clean ", True],
    "scope": [None, "", "User", "user ", 7, "../user", ["user"]],
    "source": [None, "web", {"trust": "god"}, {"ref": "x" * 513}, {"trust": "agent", "more": 1}],
    "sauce": ["x"],
    "content_": ["x"],
    "context_mode": ["clean", None],
}
EXPECTED = {
    "content": "invalid_content",
    "contextMode": "invalid_context_mode",
    "scope": "invalid_scope",
}
OWNERS = [each for each in OPERATIONS if each.owner_only]


def code_of(answer):
    return answer.status_code, answer.json().get("code")


@pytest.mark.parametrize(("method", "path"), ROWS)
def test_every_row_of_the_contract_is_served(daemon, method, path):
    body = BODIES[path.rpartition("/")[2]] if method == "POST" else None
    assert daemon.ask(method, path, body).status_code == ROWS[method, path]


@pytest.mark.parametrize("operation", OWNERS, ids=lambda each: f"{each.method} {each.path}")
def test_what_is_the_owners_no_client_may(daemon, world, operation):
    path = operation.path.replace("{reviewId}", "r1")
    body = BODIES.get(path.rpartition("/")[2]) if operation.method == "POST" else None
    assert code_of(daemon.ask(operation.method, path, body, token=world.client)) == (403, "owner_required")
    assert daemon.ask(operation.method, path, b"{", token=world.client).status_code in {400, 403}


def test_the_owners_routes_are_those_of_the_contract():
    assert {each.path.removeprefix(BASE) for each in OWNERS} == {
        *("/review", "/review/{reviewId}", "/review/{reviewId}/approve", "/review/{reviewId}/reject"),
        *("/undo", "/erase", "/audit/head", "/policy/explain", "/metrics"),
    }


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in CODES for value in CODES[field]])
def test_a_field_that_is_wrong_is_refused_by_its_code(daemon, field, value):
    sent = daemon.post(f"{BASE}/remember", {"content": "The user is right", field: value})
    assert code_of(sent) == (400, EXPECTED.get(field, "invalid_request"))


@pytest.mark.parametrize("field", ["dry_run", "dryrun"])
def test_a_second_spelling_of_a_field_is_none(daemon, field):
    """Where both were read, a dry run could be another one than it seems."""
    assert code_of(daemon.post(f"{BASE}/forget", {"query": "tea", "dryRun": True, field: False})) == (
        400,
        "invalid_request",
    )
    assert code_of(daemon.post(f"{BASE}/undo", {"task_id": "remember-1"})) == (400, "invalid_request")


@pytest.mark.parametrize("value", [None, "", " ", 7, "x" * (MAX_FACT_BYTES + 1)])
def test_a_query_that_is_none_is_refused(daemon, value):
    assert code_of(daemon.post(f"{BASE}/forget", {"query": value})) == (400, "invalid_query")
    assert code_of(daemon.post(f"{BASE}/forget", {})) == (400, "invalid_query")
    assert code_of(daemon.post(f"{BASE}/forget", {"query": "tea", "scope": None})) == (400, "invalid_scope")


@pytest.mark.parametrize("body", [b"[]", b"7", b'"x"', b"null", b"true"])
def test_a_body_that_is_no_object_is_refused(daemon, body):
    found = [code_of(daemon.post(f"{BASE}/{kind}", body))[1] for kind in ("remember", "forget", "dream")]
    assert found == ["invalid_content", "invalid_query", "invalid_request"]
    assert code_of(daemon.post(f"{BASE}/recall", body)) == (400, "invalid_request")


def test_nothing_at_all_has_no_content_and_no_query_but_is_a_dream(daemon):
    for body in (None, b"", b" ", {}):
        assert code_of(daemon.post(f"{BASE}/remember", body)) == (400, "invalid_content")
        assert code_of(daemon.post(f"{BASE}/forget", body)) == (400, "invalid_query")
        accepted = daemon.post(f"{BASE}/dream", body)
        assert accepted.status_code == 202
        daemon.wait(accepted.json()["taskId"])
    assert code_of(daemon.post(f"{BASE}/dream", {"scope": "user"})) == (400, "invalid_request")


def test_a_body_needs_no_media_type_where_there_is_none(daemon):
    sent = daemon.http.post(f"{BASE}/dream", headers={"Authorization": f"Bearer {daemon.token}"})
    assert sent.status_code == 202
    daemon.wait(sent.json()["taskId"])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("text", ["x" * MAX_FACT_BYTES, "é" * (MAX_FACT_BYTES // 2)])
def test_content_is_trimmed_before_it_is_measured(start_daemon, text):
    daemon = start_daemon()
    for around in (" ", "\n\t", " " * 1000):
        sent = daemon.post(f"{BASE}/remember", {"content": f"{around}{text}{around}"})
        assert sent.status_code == 202
        daemon.cancel(sent.json()["taskId"])


def test_a_context_mode_that_is_null_is_the_usual_one(daemon):
    for body, expected in (
        ({}, "workspace"),
        ({"contextMode": None}, "workspace"),
        ({"contextMode": "clean"}, "clean"),
    ):
        accepted = daemon.post(f"{BASE}/remember", {**BODIES["remember"], **body}).json()
        assert accepted["contextMode"] == expected
        assert daemon.wait(accepted["taskId"])["contextMode"] == expected


def test_the_first_thing_that_is_wrong_is_what_is_told(daemon, world):
    """Content, context mode, other fields, whether there is that scope, client id."""
    wrong = {"content": " ", "contextMode": "x", "scope": "", "more": 1}
    right = {"content": "The user is orderly", "contextMode": "clean", "scope": "user"}
    body, told = dict(wrong), []
    for field in ("content", "contextMode", "more", "scope"):
        told.append(code_of(daemon.post(f"{BASE}/remember", body, token=world.client, client="x"))[1])
        body.pop(field)
        body |= {field: right[field]} if field in right else {}
    told.append(code_of(daemon.post(f"{BASE}/remember", body, token=world.client, client="x"))[1])
    assert told == [
        *("invalid_content", "invalid_context_mode", "invalid_request", "invalid_scope", "invalid_client_id")
    ]


@pytest.mark.slow
def test_availability_counts_after_the_body_and_the_client_and_before_the_queue(tmp_path):
    fact = {"content": "The user has moved"}
    with HeldModel() as model, serving(tmp_path, *model.flags) as daemon:
        model.hold()
        accepted = [daemon.remember(f"The user waits {number}") for number in range(16)]
        assert code_of(daemon.post(f"{BASE}/remember", fact)) == (429, "remember_queue_full")
        daemon.root().rename(tmp_path / "elsewhere")
        assert code_of(daemon.post(f"{BASE}/remember", {"content": ""})) == (400, "invalid_content")
        assert code_of(daemon.post(f"{BASE}/remember", fact, client="x")) == (400, "invalid_client_id")
        assert code_of(daemon.post(f"{BASE}/remember", fact)) == (409, "managed_memory_unavailable")
        model.release()
        # A root that was moved is bound anew, as at a start: what waited goes there.
        assert {daemon.wait(task_id)["status"] for task_id in accepted} <= {"failed", "completed"}


@pytest.mark.parametrize("header", ["X-Qwen-Client-Id", "X-Muniment-Client-Id"])
def test_a_client_names_itself_by_either_header(daemon, world, header):
    sent = daemon.post(f"{BASE}/dream", {}, token=world.client, **{header: "codes-client"})
    assert sent.status_code == 202
    assert daemon.wait(sent.json()["taskId"], token=world.client, client="codes-client")
    both = {"X-Qwen-Client-Id": "codes-client", "X-Muniment-Client-Id": "codes-client"}
    assert daemon.get(f"{BASE}/tasks", token=world.client, **both).status_code == 200
    both["X-Qwen-Client-Id"] = "another"
    assert code_of(daemon.get(f"{BASE}/tasks", token=world.client, **both)) == (400, "invalid_client_id")


@pytest.mark.parametrize(
    "unsafe_id", ["", "x", "codes-client ,x", "CODES-CLIENT", "*", "codes-client,codes-client"]
)
def test_no_token_may_give_an_id_that_is_not_its_own(daemon, world, unsafe_id):
    for token in (world.client, daemon.token):
        sent = daemon.get(f"{BASE}/tasks", token=token, x_qwen_client_id=unsafe_id)
        assert code_of(sent) == (400, "invalid_client_id")


def test_a_workspace_is_named_by_its_key_or_its_path(daemon):
    task_id = daemon.remember("The user has several names")
    daemon.wait(task_id)
    short = daemon.get(f"{BASE}/remember/{task_id}")
    for name in (daemon.key, quote(str(daemon.work), safe="")):
        sent = daemon.get(f"/workspaces/{name}/memory/remember/{task_id}")
        assert (sent.status_code, sent.content) == (200, short.content)
        accepted = daemon.post(f"/workspaces/{name}/memory/dream", {})
        assert accepted.headers["location"] == f"/workspaces/{name}/memory/dream/{accepted.json()['taskId']}"
        assert daemon.get(accepted.headers["location"], prefer="wait=20").json()["status"] == "completed"


def test_the_events_have_the_name_that_a_session_gives_them(daemon):
    for path in (f"{BASE}/events", "/session/s-1/events", f"/workspaces/{daemon.key}/memory/events"):
        with daemon.follow(path=path) as follower:
            assert re.fullmatch(r"[0-9a-f]{8}-\d+", follower.start().last_id)


def test_no_path_is_redirected(daemon):
    for path in (f"{BASE}/tasks", "/healthz", f"{BASE}/remember"):
        for method in ("GET", "POST"):
            sent = daemon.ask(method, f"{path}/")
            assert code_of(sent) == (404, "not_found")
            assert "location" not in sent.headers


def test_capabilities_say_what_the_contract_says(daemon):
    told = daemon.get("/capabilities").json()
    assert told["workspace"] == daemon.key
    features = told["features"]
    assert features["workspace_memory_remember"] == {
        "since": "v1",
        "modes": ["workspace", "clean"],
        "scopes": ["project", "user"],
    }
    assert {name: each["since"] for name, each in features.items()} == dict.fromkeys(
        (f"workspace_memory_{name}" for name in ("remember", "forget", "dream", "recall")), "v1"
    )
    limits = told["limits"]
    assert (limits["contentBytes"], limits["pendingTasks"], limits["pendingTidyingTasks"]) == (65_536, 16, 8)


def test_the_unix_socket_needs_no_token(daemon):
    assert daemon.local.get("/metrics").status_code == 200
    sent = daemon.local.get("/metrics", headers={"Authorization": "Bearer nonsense"})
    assert code_of(sent) == (401, "token_required")
