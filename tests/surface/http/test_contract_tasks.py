"""What a task looks like from its acceptance to its end, to whom, and what no client may do to another."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

import muniment
from kit.daemon.process import BASE, path_of, policy_file
from kit.daemon.raw import HeldWriter, running
from muniment.daemon import asking
from muniment.daemon.contract import HttpProblem
from muniment.lane import MAX_PENDING, MAX_TIDYING
from muniment.names import Trust
from muniment.store.audit import records

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


@pytest.fixture(scope="module")
def ada(daemon):
    """A token of a client with an id."""
    return daemon.add("ada", "ada-id")


@pytest.fixture
def held(tmp_path):
    """A daemon of the test's own that files facts once `free` is set."""
    model = HeldWriter()
    with running(tmp_path, model) as made:
        made.free = model.free
        yield made
        model.free.set()


def test_a_task_is_accepted_and_ends_in_the_shape_of_the_contract(daemon, subtests):
    before = datetime.now(UTC) - timedelta(seconds=1)
    for kind, body in BODIES.items():
        with subtests.test(kind):
            answer = daemon.post(f"{BASE}/{kind}", body)
            accepted = answer.json()
            assert answer.status_code == 202
            assert re.fullmatch(rf"{kind}-{UUID}", accepted["taskId"])
            assert (accepted["status"], accepted["kind"]) == ("queued", kind)
            assert (accepted["result"], accepted["error"]) == (None, None)
            assert re.fullmatch(TIME, accepted["createdAt"])
            assert accepted["createdAt"] == accepted["updatedAt"]
            assert before <= datetime.fromisoformat(accepted["createdAt"]) <= datetime.now(UTC)
            assert accepted.get("contextMode", "none") == ("workspace" if kind == "remember" else "none")
            assert answer.headers["location"] == path_of(accepted["taskId"])
            assert answer.headers["retry-after"] == "1"
            over = daemon.wait(accepted["taskId"])
            assert (over["status"], over["error"]) == ("completed", None)
            assert set(over["result"]) == KEYS[kind]
            assert over["createdAt"] == accepted["createdAt"] <= over["updatedAt"]
            assert set(over) == set(accepted)
            assert daemon.cancel(accepted["taskId"]).json() == over == daemon.look(accepted["taskId"])
            assert str(daemon.home) not in str(over)
    assert (type(over["result"]["dedupedEntries"]), type(over["result"]["rejected"])) == (int, int)


def test_a_forget_tells_what_went_and_a_dry_run_what_would(daemon):
    fact = {"content": "The user prefers umbrellas to raincoats", "scope": "user"}
    told = daemon.done("remember", fact)
    (path,) = told["result"]["filesTouched"]
    assert (told["scope"], told["result"]["touchedScopes"], path[:5]) == ("user", ["user"], "user/")
    rel, query = path.removeprefix("user/"), {"query": "umbrellas raincoats"}
    would = daemon.done("forget", {**query, "dryRun": True})["result"]
    assert [entry["filePath"] for entry in would["removedEntries"]] == [path]
    assert (would["touchedScopes"], would["touchedTopics"]) == ([], [])
    assert rel in daemon.files()
    did = daemon.done("forget", query)["result"]
    assert did["removedEntries"] == would["removedEntries"]
    assert set(did["removedEntries"][0]) == {"topic", "summary", "filePath"}
    assert (did["touchedScopes"], did["touchedTopics"]) == (["user"], [did["removedEntries"][0]["topic"]])
    assert rel not in daemon.files()


def test_a_task_of_another_kind_is_not_found(daemon):
    for kind, body in BODIES.items():
        task_id = daemon.submit(kind, body)
        for other in set(BODIES) - {kind}:
            for method in "GET", "DELETE":
                found = daemon.problem(method, f"{BASE}/{other}/{task_id}")
                assert found == (404, f"{other}_task_not_found")
        assert daemon.wait(task_id)["status"] == "completed"


@pytest.mark.threat("T-API-02", control="own_tasks")
def test_a_client_cannot_tell_another_ones_task_from_one_that_there_is_not(daemon, ada):
    """Nor the owner, where it asks in the name of another id, nor an id what another one asked."""
    task = daemon.done("dream", {}, token=ada, client="ada-id")["taskId"]
    plain = daemon.done("dream", {}, token=ada)["taskId"]

    def seen(**who):
        listed = {each["taskId"] for each in daemon.get(f"{BASE}/tasks", **who).json()["tasks"]}
        for each in task, plain:
            for method in "GET", "DELETE":
                found = daemon.send(method, path_of(each), **who)
                absent = daemon.send(method, path_of(f"dream-{'0' * 36}"), **who)
                assert (found.status_code == 200) == (each in listed)
                if each not in listed:
                    assert (found.status_code, found.content) == (404, absent.content)
                    assert dict(found.headers) | {"date": ""} == dict(absent.headers) | {"date": ""}
        return listed & {task, plain}

    assert seen() == seen(token=ada) == {task, plain}
    assert seen(token=ada, client="ada-id") == seen(client="ada-id") == {task}
    token, client = {"token": daemon.client}, {"client": "client-1"}
    for who in token, client, token | client:
        assert seen(**who) == set()


@pytest.mark.threat("T-API-04", control="registered_ids")
def test_a_client_id_is_one_of_the_tokens_or_the_request_is_refused(daemon, ada):
    names, fact = ("x_qwen_client_id", "x_muniment_client_id"), {"content": "The user is somebody"}
    for name in names:
        sent = {"token": ada, name: "ada-id"}
        assert daemon.done("dream", {}, **sent)["status"] == "completed"
        assert daemon.get(f"{BASE}/tasks", **{name: "ada-id"}).status_code == 200
        bads = (
            "client-1",
            "owner",
            "ada",
            "",
            "x",
            "ADA-ID",
            "ada-id ,x",
            "ada-id,ada-id",
            "*",
            b"ada-id\xa0",
        )
        for bad in bads:
            for method, path, body in ("GET", "tasks", None), ("POST", "remember", fact):
                sent = daemon.problem(method, f"{BASE}/{path}", body, token=ada, **{name: bad})
                assert sent == (400, "invalid_client_id"), bad
        assert daemon.problem("GET", f"{BASE}/tasks", **{name: "nobody"}) == (400, "invalid_client_id")
    both = dict.fromkeys(names, "ada-id")
    assert daemon.get(f"{BASE}/tasks", token=ada, **both).status_code == 200
    both[names[0]] = "another"
    assert daemon.problem("GET", f"{BASE}/tasks", token=ada, **both) == (400, "invalid_client_id")


@pytest.mark.threat("T-API-04", control="token_trust")
def test_what_a_client_sends_is_trusted_no_more_than_its_token(daemon):
    order = list(Trust)
    for given in order:
        token = daemon.add(f"trust-{given}", f"trust-{given}-1", trust=given)
        for claimed in order:
            fact = f"The user prefers {given} trust to {claimed} control"
            source = {"trust": claimed, "ref": "https://example.org/1"}
            task_id = daemon.remember(fact, token=token, source=source)
            found = records(daemon.core.state, task=task_id)
            accepted = next(each.body for each in found if each.kind == "accepted")
            least = order[max(order.index(claimed), order.index(given))]
            told = [accepted[name] for name in ("trust", "token", "client")]
            assert told == [least, f"trust-{given}", None]
        done = daemon.wait(task_id)
        for path in (done["result"] or {"filesTouched": ()})["filesTouched"]:
            assert f'"trust": "{least}"' in daemon.files()[path.removeprefix("user/")]


def test_what_somebody_else_has_is_not_sent_twice_and_who_waits_is_answered_once_it_is_over(daemon):
    for prefer in ("wait=50", "respond-async, wait=50", "wait = 50", "wait=50, foo"):
        task_id = daemon.submit("dream", {})
        whole = daemon.get(path_of(task_id), prefer=prefer)
        assert whole.json()["status"] == "completed"
        assert "retry-after" not in whole.headers
    tag = whole.headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}'):
        answer = daemon.get(path_of(task_id), if_none_match=sent)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert daemon.get(path_of(task_id), if_none_match='"other"').content == whole.content


def test_a_client_of_the_first_contract_polls_to_one_of_the_ends_that_it_knows(held):
    """It asks for no proof, prefers nothing sensible, and is told at once how the task stands."""
    who = {"token": held.client, "x_qwen_client_id": "client-1"}
    task_id = held.submit("remember", {"content": "The user keeps a client of 2025"}, **who)
    for prefer in ("wait=0", "wait", "wait=x", "wait=-1", "respond-async", "wait=99999", ""):
        answer = held.get(path_of(task_id), prefer=prefer, **who)
        assert answer.json()["status"] in {"queued", "running"}
        assert answer.headers["retry-after"] == "1"
    held.free.set()
    while (task := held.look(task_id, **who))["status"] in {"queued", "running"}:
        pass
    assert (task["status"], task["error"]) == ("completed", None)
    assert task["result"]["filesTouched"]
    assert held.get(path_of(task_id), token="nothing").status_code == 401


@pytest.mark.threat("T-API-06", control="repeats")
def test_a_request_that_is_sent_again_is_the_same_task_also_where_there_is_no_place_for_another(held):
    body = {"content": "The user prefers one to two"}

    def send(body=body, **more):
        return held.post(f"{BASE}/remember", body, idempotency_key="k1", **more)

    first = send(token=held.client)
    for number in range(MAX_PENDING - 1):
        held.remember(f"The user fills {number}")
    for status in "queued", "completed":
        again = send(token=held.client)
        assert (again.status_code, again.json()["taskId"]) == (202, first.json()["taskId"])
        assert (again.json()["status"] == "completed") == (status == "completed")
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["location"] == first.headers["location"]
        held.free.set()
        held.wait(first.json()["taskId"])
    assert "idempotency-replayed" not in first.headers
    assert len(held.get(f"{BASE}/tasks", token=held.client).json()["tasks"]) == 1
    for other in ({"content": "Another"}, {**body, "contextMode": "clean"}, {**body, "source": {"ref": "x"}}):
        assert send(other, token=held.client).json()["code"] == "idempotency_mismatch"
    assert send().json()["taskId"] != first.json()["taskId"]
    for key in ("", "a b", "x" * 256, "é".encode()):
        assert held.problem("POST", f"{BASE}/dream", {}, idempotency_key=key) == (400, "invalid_request")


@pytest.mark.threat("T-API-03", control="lane_caps")
def test_who_floods_the_lane_is_told_to_come_again_and_tidying_leaves_room_for_facts(held):
    def refused(kind):
        answer = held.post(f"{BASE}/{kind}", BODIES[kind], token=held.client)
        assert (answer.status_code, answer.json()["code"]) == (429, "remember_queue_full")
        assert answer.headers["retry-after"] == "5"

    held.remember("The user is first")  # Everything else waits for it.
    for number in range(MAX_TIDYING):
        held.submit(*(("forget", BODIES["forget"]), ("dream", {}))[number % 2], token=held.client)
    for kind in "forget", "dream":
        refused(kind)
    facts = [held.remember(f"The user owns {number} hats") for number in range(MAX_PENDING - MAX_TIDYING - 1)]
    for kind in BODIES:
        refused(kind)
    assert held.cancel(facts[3]).json()["status"] == "cancelled"
    held.remember("The user owns 9 hats", token=held.client)
    refused("remember")


@pytest.mark.slow
def test_the_list_is_read_page_by_page_while_it_grows(daemon):
    made, who = [], {"token": daemon.add("pages", "pages-1"), "client": "pages-1"}
    for number in range(105):
        made.append(daemon.submit("forget", {"query": f"page {number}"}, **who))
        if number % 7 == 6:
            daemon.wait(made[-1])
    first = daemon.get(f"{BASE}/tasks", **who).json()
    daemon.done("forget", {"query": "in between"}, **who)
    second = daemon.get(f"{BASE}/tasks?cursor={first['nextCursor']}", **who).json()
    assert second["nextCursor"] is None
    assert len(first["tasks"]) == 100
    assert [task["taskId"] for task in (*first["tasks"], *second["tasks"])] == made[::-1]


def test_the_list_shows_those_of_a_status_and_refuses_one_that_there_is_not(daemon):
    done = daemon.done("dream", {}, token=daemon.client)["taskId"]
    for status, found in ("completed", True), ("cancelled", False):
        listed = daemon.get(f"{BASE}/tasks?status={status}", token=daemon.client).json()["tasks"]
        assert {task["status"] for task in listed} <= {status}
        assert (done in [task["taskId"] for task in listed]) == found
    for query in ("cursor=0", "cursor=x", "cursor=", "cursor=-1", "status=", "status=done"):
        assert daemon.problem("GET", f"{BASE}/tasks?{query}") == (400, "invalid_request")


# -- what a client's tidying may do ----------------------------------------------------------------------


def test_what_a_clients_dream_would_remove_waits_for_the_owner_whose_own_removes_it(alone):
    names = {"a.md", "b.md", *(f"{number}.md" for number in range(8))}
    for name in names:
        fact = (
            "The user prefers tea" if name in {"a.md", "b.md"} else f"The user has been to city number {name}"
        )
        (alone.root() / name).write_text(f"{fact}\n")
    task = alone.done("dream", {}, token=alone.add("ben", trust="owner"))
    assert (task["status"], task["error"]["code"]) == ("failed", "pending_review")
    assert task["reviewId"]
    assert set(alone.files()) == names
    task = alone.done("dream", {})
    assert (task["status"], task["result"]["dedupedEntries"]) == ("completed", 1)
    assert set(alone.files()) == names - {"b.md"}


def test_a_client_is_told_the_same_of_what_stays_and_of_what_is_not_there(alone):
    client = alone.add("ben", trust="external")
    alone.done("remember", {"content": "The user prefers tea to coffee"})
    told = [alone.done("forget", {"query": word}, token=client)["result"] for word in ("coffee", "cocoa")]
    assert [each.pop("summary") for each in told] == [
        f"nothing that may be removed holds all of: {word}" for word in ("coffee", "cocoa")
    ]
    assert told[0] == told[1]


def test_every_scope_is_let_through_while_nobody_knows_which_there_are():
    asked = {"content": "x", "scope": "team"}
    assert asking.remember(asked, SimpleNamespace(is_open=False, scopes=dict)).arguments["scope"] == "team"
    with pytest.raises(HttpProblem, match="invalid_scope"):
        asking.remember(asked, SimpleNamespace(is_open=True, scopes=dict))


# -- what the owner alone may do, and what other programs of the owner do beside the daemon ------------------


def test_what_the_owner_undoes_and_erases_is_told_by_its_source_and_the_audit_head_grows_with_it(alone):
    head = alone.get(f"{BASE}/audit/head").json()
    done = alone.done("remember", {"content": "The user prefers undo to regret", "scope": "user"})
    (path,) = done["result"]["filesTouched"]
    rel = path.removeprefix("user/")
    before, tasks = alone.files()[rel], [done["taskId"]]
    for is_there in False, True:  # An undo takes back, and can be undone.
        undone = alone.post(f"{BASE}/undo", {"taskId": tasks[-1]}).json()
        assert (undone["undone"], undone["filesTouched"]) == (tasks[-1], [path])
        assert alone.files().get(rel) == (before if is_there else None)
        tasks.append(undone["taskId"])
    tasks.append(alone.post(f"{BASE}/erase", {"target": path, "yes": True}).json()["taskId"])
    after = alone.get(f"{BASE}/audit/head").json()
    assert after["records"] > head["records"]
    assert after["head"].startswith(f"{after['records']}:")
    with alone.follow(cursor=alone.cursor(0)) as follower:
        seen = follower.until(lambda each: each.data["taskId"] == tasks[-1])
    told = {each.data["taskId"]: each.data for each in seen if each.type == "memory_changed"}
    sources = [f"workspace_memory_{each}" for each in ("remember", "undo", "undo", "erase")]
    assert {task_id: data["source"] for task_id, data in told.items()} == dict(
        zip(tasks, sources, strict=True)
    )
    assert {(data["scope"], *data["touchedScopes"]) for data in told.values()} == {("managed", "user")}


def test_the_policy_is_explained_by_the_rule_that_counts(daemon):
    def asked(verb, path):
        return daemon.get(f"{BASE}/policy/explain?verb={verb}&path={path}").json()

    assert asked("create", "user/a.md")["verdict"] == "allow"
    denied = asked("create", "user/pinned/a.md")
    assert (denied["verdict"], denied["rule"]) == ("deny", "pinned")
    assert asked("delete", "user/a.md")["verdict"] == "deny"
    assert asked("create", "../a.md")["rule"] == "path_escape"


def test_what_others_write_beside_the_daemon_is_seen_by_the_next_task_and_told_to_who_follows(alone):
    (path,) = alone.done("remember", {"content": "The user prefers red pens"})["result"]["filesTouched"]
    ours = alone.root() / path.removeprefix("user/")
    ours.write_text(ours.read_text(encoding="utf-8") + "\nBy hand: blue pens on Sundays.\n", encoding="utf-8")
    removed = alone.done("forget", {"query": "blue pens sundays"})
    assert [entry["filePath"] for entry in removed["result"]["removedEntries"]] == [path]
    assert not ours.exists()
    with alone.follow() as follower:
        follower.start()
        settings = {"home": alone.home, "policy": str(alone.base / "policy.toml"), "in_process": True}
        with muniment.open(alone.work, **settings) as memory:
            task_id = memory.remember("The user prefers the library to browsers").task_id
        (seen,) = follower.until(lambda each: each.data["taskId"] == task_id)
    assert (seen.type, seen.data["source"]) == ("memory_changed", "workspace_memory_remember")


def test_a_review_is_listed_in_the_workspace_of_its_roots_and_in_no_other(tmp_path):
    (tmp_path / "other" / ".git").mkdir(parents=True)
    policy = policy_file(tmp_path, require='"none"', project='{ trust = "owner", commit = "review" }')
    workspaces = (tmp_path / "work", tmp_path / "other")
    with running(tmp_path, policy=policy, workspaces=workspaces) as daemon:
        first, second = (f"/workspaces/{key}/memory" for key in daemon.core.workspaces)
        fact = {"content": "This project is reviewed", "scope": "project"}
        task_id = daemon.post(f"{second}/remember", fact).json()["taskId"]
        waiting = daemon.get(f"{second}/remember/{task_id}", prefer="wait=60").json()["reviewId"]
        listed = [daemon.get(f"{place}/review").json()["reviews"] for place in (first, second)]
        assert [[each["reviewId"] for each in found] for found in listed] == [[], [waiting]]
