"""What a request may say, in which order it is checked, and by which names a daemon answers."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from kit.daemon.process import BASE
from muniment.daemon import asking, contract
from muniment.daemon.contract import HttpProblem
from muniment.daemon.service import OPERATIONS
from muniment.lane import MAX_PENDING
from muniment.names import MAX_FACT_BYTES

OWNERS = {
    "erase": {"target": "user/nothing.md"},
    "undo": {"taskId": "remember-1"},
    "approve": {"digest": "0"},
}
FACT = {"content": "The user prefers tables to prose"}
NO_TEXT = (None, 7, "", " ", "\t\n", "\u00a0", "x" * (MAX_FACT_BYTES + 1), "é" * 32_769, ["a"])
FACT_BODIES = {  # field: the code, and values that are refused with it
    "content": ("invalid_content", (*NO_TEXT, "\0" * 3, 10**4000)),
    "contextMode": ("invalid_context_mode", ("", "Workspace", 7, "clean ", True)),
    "scope": ("invalid_scope", (None, "", "User", "user ", 7, "../user", ["user"])),
    "source": (
        "invalid_request",
        (None, "web", {"trust": "god"}, {"ref": "x" * 513}, {"trust": "agent", "more": 1}),
    ),
    **dict.fromkeys(
        ("sauce", "content_", "context_mode", "Content", "dryRun", "__class__", "", "a" * 100000),
        ("invalid_request", ("x",)),
    ),
}
KINDS = ("remember", "forget", "dream", "recall")
OTHER_BODIES = [  # where, body, code
    *(("forget", {"query": value}, "invalid_query") for value in NO_TEXT),
    ("forget", {}, "invalid_query"),
    ("forget", {"query": "tea", "scope": None}, "invalid_scope"),
    *(
        ("forget", {"query": "tea", "dryRun": True, name: False}, "invalid_request")
        for name in ("dry_run", "dryrun")
    ),
    ("undo", {"task_id": "remember-1"}, "invalid_request"),
    ("dream", {"scope": "user"}, "invalid_request"),
    *(
        (kind, body, f"invalid_{what}")
        for body in (b"[]", b"7", b'"x"', b"null", b"true", b"1.5", b"-0", b"1" * 4000)
        for kind, what in zip(KINDS, ("content", "query", "request", "request"), strict=True)
    ),
]


def test_what_is_the_owners_no_client_may(daemon):
    owners = {each.path.removeprefix(BASE): each.method for each in OPERATIONS if each.owner_only}
    assert set(owners) == {
        *("/review", "/review/{reviewId}", "/review/{reviewId}/approve", "/review/{reviewId}/reject"),
        *("/undo", "/erase", "/audit/head", "/policy/explain", "/metrics"),
    }
    for told, method in owners.items():
        path = f"{'' if told == '/metrics' else BASE}{told}".replace("{reviewId}", "r1")
        body = OWNERS.get(path.rpartition("/")[2], {}) if method == "POST" else None
        for token in daemon.client, daemon.add(f"trusted-{len(told)}", trust="owner"):
            assert daemon.problem(method, path, body, token=token) == (403, "owner_required")
        daemon.core.tokens.revoke(f"trusted-{len(told)}")
        assert daemon.send(method, path, b"{", token=daemon.client).status_code in {400, 403}


def test_a_body_that_is_none_is_refused_by_its_code(daemon, subtests):
    for field, (code, values) in FACT_BODIES.items():
        for value in values:
            with subtests.test(f"{field[:20]}: {str(value)[:20]!r}" if value != 10**4000 else "long number"):
                sent = daemon.post(f"{BASE}/remember", {"content": "The user is right", field: value})
                assert (sent.status_code, sent.json()["code"]) == (400, code)
                assert len(sent.content) < 1000
    for kind, body, code in OTHER_BODIES:
        with subtests.test(f"{kind} {str(body)[:40]}"):
            assert daemon.problem("POST", f"{BASE}/{kind}", body) == (400, code)


def test_a_flood_of_fields_never_comes_to_the_model(monkeypatch):
    many, seen = {f"k{number}": None for number in range(50_000)}, []
    validate = contract.RememberBody.model_validate
    monkeypatch.setattr(
        contract.RememberBody, "model_validate", lambda sent: (seen.append(sent), validate(sent))[1]
    )
    for document in many, {"content": "x", "source": many}:
        with pytest.raises(HttpProblem, match="invalid_request"):
            asking.parsed(contract.RememberBody, document)
    assert seen == [{}, {"content": "x", "source": {}}]


def test_nothing_at_all_has_no_content_and_no_query_but_is_a_dream_of_any_media_type(daemon):
    for body in (None, b"", b" \r\n\t", {}):
        for media_type in ("application/json",) if body == {} else ("application/json", "text/plain", ""):
            more = {"content_type": media_type}
            assert daemon.problem("POST", f"{BASE}/remember", body, **more) == (400, "invalid_content")
            assert daemon.problem("POST", f"{BASE}/forget", body, **more) == (400, "invalid_query")
            accepted = daemon.post(f"{BASE}/dream", body, **more)
            assert accepted.status_code == 202
            daemon.wait(accepted.json()["taskId"])


def test_content_is_trimmed_before_it_is_measured(daemon):
    for text in ("x" * MAX_FACT_BYTES, "é" * (MAX_FACT_BYTES // 2)):
        for around in (" ", "\n\t", " " * 1000):
            daemon.cancel(daemon.remember(f"{around}{text}{around}"))


def test_a_context_mode_that_is_null_is_the_usual_one(daemon):
    for mode, expected in ({}, None), ({"contextMode": None}, None), ({"contextMode": "clean"}, "clean"):
        accepted = daemon.post(f"{BASE}/remember", {**FACT, **mode}).json()
        assert (
            accepted["contextMode"]
            == (expected or "workspace")
            == daemon.wait(accepted["taskId"])["contextMode"]
        )


def test_the_first_thing_that_is_wrong_is_what_is_told(daemon):
    body = {"content": " ", "contextMode": "x", "scope": "", "more": 1}
    told, more = [], {"token": daemon.client, "client": "x"}
    rights = (
        {"content": "The user is orderly"},
        {"contextMode": "clean"},
        {"more": None},
        {"scope": "user"},
        {},
    )
    for right in rights:
        told.append(daemon.problem("POST", f"{BASE}/remember", body, **more)[1])
        body |= right
        body = {name: value for name, value in body.items() if value is not None}
    assert told == [
        *("invalid_content", "invalid_context_mode", "invalid_request", "invalid_scope", "invalid_client_id")
    ]


def test_availability_counts_after_the_body_and_the_client_and_before_the_queue(scripted, model):
    fact, daemon = {"content": "The user has moved"}, scripted
    model.hold()
    accepted = [daemon.remember(f"The user waits {number}") for number in range(MAX_PENDING)]
    assert daemon.problem("POST", f"{BASE}/remember", fact) == (429, "remember_queue_full")
    daemon.root().rename(daemon.base / "elsewhere")
    assert daemon.problem("POST", f"{BASE}/remember", {"content": ""}) == (400, "invalid_content")
    assert daemon.problem("POST", f"{BASE}/remember", fact, client="x") == (400, "invalid_client_id")
    assert daemon.problem("POST", f"{BASE}/remember", fact) == (409, "managed_memory_unavailable")
    model.release()
    # A root that was moved is bound anew, as at a start: what waited goes there.
    assert {daemon.wait(task_id)["status"] for task_id in accepted} <= {"failed", "completed"}


def test_a_workspace_is_named_by_its_key_or_its_path_and_a_session_by_any_name(daemon):
    task_id = daemon.done("remember", FACT)["taskId"]
    short = daemon.get(f"{BASE}/remember/{task_id}")
    for name in (daemon.key, quote(str(daemon.work), safe="")):
        sent = daemon.get(f"/workspaces/{name}/memory/remember/{task_id}")
        assert (sent.status_code, sent.content) == (200, short.content)
        accepted = daemon.post(f"/workspaces/{name}/memory/dream", {})
        assert accepted.headers["location"] == f"/workspaces/{name}/memory/dream/{accepted.json()['taskId']}"
        assert daemon.get(accepted.headers["location"], prefer="wait=20").json()["status"] == "completed"
    for path in (f"{BASE}/events", "/session/any%2fthing/events", f"/workspaces/{daemon.key}/memory/events"):
        with daemon.follow(path=path) as follower:
            assert re.fullmatch(r"[0-9a-f]{8}-\d+", follower.start().last_id)


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
