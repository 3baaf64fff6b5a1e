"""What a task looks like from its acceptance to its end, to whom, and how it is asked for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from kit.daemon.process import BASE, path_of

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
BODIES = {
    "remember": {"content": "The user prefers shapes to sizes"},
    "forget": {"query": "shapes nobody heard of"},
    "dream": {},
}
KEYS = {
    "remember": {"summary", "filesTouched", "touchedScopes", "enforcement", "decidedBy", "trust", "notes"},
    "forget": {"summary", "removedEntries", "touchedTopics", "touchedScopes"},
    "dream": {"summary", "touchedTopics", "touchedScopes", "dedupedEntries", "rejected"},
}


def without_date(answer):
    return {name: value for name, value in answer.headers.items() if name != "date"}, answer.content


@pytest.fixture(scope="module")
def clients(daemon):
    """Two tokens of clients with an id each."""
    return {name: daemon.new_token(name, f"{name}-id") for name in ("ada", "bob")}


@pytest.mark.parametrize("kind", BODIES)
def test_a_task_is_accepted_and_ends_in_the_shape_of_the_contract(daemon, kind):
    before = datetime.now(UTC) - timedelta(seconds=1)
    answer = daemon.post(f"{BASE}/{kind}", BODIES[kind])
    accepted = answer.json()
    assert answer.status_code == 202
    assert re.fullmatch(rf"{kind}-{UUID}", accepted["taskId"])
    assert (accepted["status"], accepted["kind"]) == ("queued", kind)
    assert (accepted["result"], accepted["error"]) == (None, None)
    assert re.fullmatch(TIME, accepted["createdAt"])
    assert accepted["createdAt"] == accepted["updatedAt"]
    assert before <= datetime.fromisoformat(accepted["createdAt"]) <= datetime.now(UTC)
    assert accepted.get("contextMode") == ("workspace" if kind == "remember" else None)
    assert ("contextMode" in accepted) == (kind == "remember")
    assert answer.headers["location"] == path_of(accepted["taskId"])
    assert answer.headers["retry-after"] == "1"
    over = daemon.wait(accepted["taskId"])
    assert over["status"] == "completed"
    assert set(over["result"]) == KEYS[kind]
    assert over["error"] is None
    assert over["createdAt"] == accepted["createdAt"] <= over["updatedAt"]
    assert set(over) == set(accepted)


def test_a_result_says_what_was_written_by_logical_paths(daemon):
    told = daemon.wait(daemon.remember("The user prefers results to promises", scope="user"))
    (path,) = told["result"]["filesTouched"]
    assert path.startswith("user/")
    assert path.removeprefix("user/") in daemon.files()
    assert told["result"]["touchedScopes"] == ["user"]
    assert told["scope"] == "user"
    assert str(daemon.home) not in str(told)


def test_a_forget_tells_what_went_and_a_dry_run_what_would(daemon):
    fact = "The user prefers umbrellas to raincoats"
    (path,) = daemon.wait(daemon.remember(fact, scope="user"))["result"]["filesTouched"]
    rel = path.removeprefix("user/")
    query = {"query": "umbrellas raincoats"}
    would = daemon.wait(daemon.submit("forget", {**query, "dryRun": True}))["result"]
    assert [entry["filePath"] for entry in would["removedEntries"]] == [path]
    assert (would["touchedScopes"], would["touchedTopics"]) == ([], [])
    assert rel in daemon.files()
    did = daemon.wait(daemon.submit("forget", query))["result"]
    assert did["removedEntries"] == would["removedEntries"]
    assert set(did["removedEntries"][0]) == {"topic", "summary", "filePath"}
    assert (did["touchedScopes"], did["touchedTopics"]) == (["user"], [did["removedEntries"][0]["topic"]])
    assert rel not in daemon.files()


def test_a_dream_counts_what_went_by_a_number(daemon):
    result = daemon.wait(daemon.submit("dream", {}))["result"]
    assert (type(result["dedupedEntries"]), type(result["rejected"])) == (int, int)


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_task_of_another_kind_is_not_found(daemon, kind, method):
    task_id = daemon.submit(kind, BODIES[kind])
    for other in set(BODIES) - {kind}:
        answer = daemon.ask(method, f"{BASE}/{other}/{task_id}")
        assert (answer.status_code, answer.json()["code"]) == (404, f"{other}_task_not_found")
    assert daemon.wait(task_id)["status"] == "completed"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_somebody_elses_task_is_answered_like_one_that_never_was(daemon, clients, method):
    mine = daemon.submit("dream", {}, token=clients["ada"])
    for other in (
        {"token": clients["bob"]},
        {"token": clients["ada"], "client": "ada-id"},
        {"client": "bob-id"},
    ):
        hidden = daemon.ask(method, path_of(mine), **other)
        absent = daemon.ask(method, path_of(f"dream-{'0' * 36}"), **other)
        assert hidden.status_code == 404
        assert without_date(hidden) == without_date(absent)
    assert daemon.wait(mine)["status"] == "completed"


def test_with_an_id_only_that_ids_tasks_are_seen(daemon, clients):
    plain = daemon.submit("dream", {}, token=clients["ada"])
    named = daemon.submit("dream", {}, token=clients["ada"], client="ada-id")
    for task_id in (plain, named):
        daemon.wait(task_id)

    def seen(**who):
        return {task["taskId"] for task in daemon.get(f"{BASE}/tasks", **who).json()["tasks"]}

    assert seen(token=clients["ada"]) & {plain, named} == {plain, named}
    assert seen(token=clients["ada"], client="ada-id") & {plain, named} == {named}
    assert seen(client="ada-id") & {plain, named} == {named}
    assert seen(token=clients["bob"]) & {plain, named} == set()
    assert seen(client="bob-id") & {plain, named} == set()
    assert {plain, named} <= seen()


def test_an_answer_is_not_sent_twice_to_who_has_it(daemon):
    task_id = daemon.submit("dream", {})
    daemon.wait(task_id)
    whole = daemon.get(path_of(task_id))
    tag = whole.headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}'):
        answer = daemon.get(path_of(task_id), if_none_match=sent)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert daemon.get(path_of(task_id), if_none_match='"other"').content == whole.content


@pytest.mark.slow
def test_who_prefers_nothing_sensible_is_answered_at_once(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.hold()
    task_id = daemon.remember("The user is patient")
    for prefer in ("wait=0", "wait", "wait=x", "wait=-1", "respond-async", "wait=99999", ""):
        answer = daemon.get(path_of(task_id), prefer=prefer)
        assert answer.json()["status"] in {"queued", "running"}
        assert answer.headers["retry-after"] == "1"
    model.release()


@pytest.mark.parametrize("prefer", ["wait=50", "respond-async, wait=50", "wait = 50", "wait=50, foo"])
def test_who_prefers_to_wait_is_answered_when_the_task_is_over(daemon, prefer):
    task_id = daemon.remember("The user prefers waiting")
    answer = daemon.get(path_of(task_id), prefer=prefer)
    assert answer.json()["status"] == "completed"
    assert "retry-after" not in answer.headers


def test_the_same_key_is_the_same_task(daemon, clients):
    body = {"content": "The user prefers one to two"}
    first = daemon.post(f"{BASE}/remember", body, idempotency_key="k1")
    daemon.wait(first.json()["taskId"])
    again = daemon.post(f"{BASE}/remember", body, idempotency_key="k1")
    assert again.status_code == 202
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert again.json()["taskId"] == first.json()["taskId"]
    assert again.headers["location"] == first.headers["location"]
    for other in ({"content": "Another"}, {**body, "contextMode": "clean"}, {**body, "source": {"ref": "x"}}):
        answer = daemon.post(f"{BASE}/remember", other, idempotency_key="k1")
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")
    hers = daemon.post(f"{BASE}/remember", body, token=clients["ada"], idempotency_key="k1")
    assert hers.json()["taskId"] != first.json()["taskId"]
    daemon.wait(hers.json()["taskId"])


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é".encode()])
def test_a_key_that_is_none_is_refused(daemon, key):
    answer = daemon.post(f"{BASE}/dream", {}, idempotency_key=key)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.slow
def test_the_list_is_read_page_by_page_while_it_grows(daemon, clients):
    made, who = [], {"token": clients["bob"], "client": "bob-id"}
    for number in range(105):
        made.append(daemon.submit("forget", {"query": f"page {number}"}, **who))
        if number % 7 == 6:
            daemon.wait(made[-1])
    first = daemon.get(f"{BASE}/tasks", **who).json()
    daemon.wait(daemon.submit("forget", {"query": "in between"}, **who), **who)
    second = daemon.get(f"{BASE}/tasks?cursor={first['nextCursor']}", **who).json()
    assert second["nextCursor"] is None
    found = [task["taskId"] for task in (*first["tasks"], *second["tasks"])]
    assert len(first["tasks"]) == 100
    assert found == made[::-1]


@pytest.mark.parametrize("query", ["cursor=0", "cursor=x", "cursor=", "cursor=-1", "status=", "status=done"])
def test_a_list_of_nothing_that_there_is_is_refused(daemon, query):
    answer = daemon.get(f"{BASE}/tasks?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_the_list_shows_those_of_a_status(daemon):
    daemon.wait(daemon.submit("dream", {}))
    listed = daemon.get(f"{BASE}/tasks?status=completed").json()["tasks"]
    assert {task["status"] for task in listed} == {"completed"}
    assert daemon.get(f"{BASE}/tasks?status=cancelled").json()["tasks"] == []


def test_what_is_over_stays_as_it_is_when_it_is_cancelled(daemon):
    task_id = daemon.submit("dream", {})
    over = daemon.wait(task_id)
    assert daemon.cancel(task_id).json() == over == daemon.look(task_id)


def test_the_trust_of_a_fact_is_at_most_that_of_its_token(daemon, clients):
    """A client of trust `agent` that claims the owner's word has it counted as an agent's."""
    fact = "The user prefers trust to control"
    hers = {"content": fact, "source": {"trust": "owner", "ref": "https://example.org/1"}}
    told = daemon.wait(daemon.submit("remember", hers, token=clients["ada"]))
    (path,) = told["result"]["filesTouched"]
    assert '"trust": "agent"' in daemon.files()[path.removeprefix("user/")]
