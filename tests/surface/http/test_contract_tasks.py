"""What a request may say, what a task looks like to its end, and what no client may do to another."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import product
from types import SimpleNamespace
from urllib.parse import quote

import pytest

import muniment
from kit.content.secret_values import filled
from kit.operations.places import raising
from kit.raising import raised
from kit.server.process import BASE, path_of, policy_file
from kit.server.raw import running
from muniment import errors as library
from muniment.agent.model import ModelError
from muniment.client import errors
from muniment.kernel.names import Trust
from muniment.names import MAX_FACT_BYTES
from muniment.server import asking, contract, routes
from muniment.server.contract import HttpProblem
from muniment.server.lane import MAX_PENDING, MAX_TIDYING
from muniment.server.service import OPERATIONS
from muniment.store.audit import records
from muniment.testing.minds import ScriptedModel

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
BODIES = {"remember": {"content": "The user likes shapes"}, "forget": {"query": "unheard of"}, "dream": {}}
KEYS = {
    "remember": {
        "summary",
        "filesTouched",
        "touchedScopes",
        "enforcement",
        "decidedBy",
        "trust",
        "notes",
        "superseded",
        "similar",
    },
    "forget": {
        *("summary", "removedEntries", "touchedTopics", "touchedScopes", "kept", "near", "notes"),
    },
    "dream": {"summary", "touchedTopics", "touchedScopes", "dedupedEntries", "rejected"},
}


@pytest.fixture(scope="module")
def ada(daemon):
    """A token of a client with an id."""
    return daemon.add("ada", "ada-id")


def test_a_task_is_accepted_and_ends_in_the_shape_of_the_contract(daemon, subtests):
    before = datetime.now(UTC) - timedelta(seconds=1)
    for kind, body in BODIES.items():
        with subtests.test(kind):
            answer = daemon.post(f"{BASE}/{kind}", body)
            accepted = answer.json()
            assert re.fullmatch(rf"{kind}-{UUID}", accepted["taskId"])
            names = {"taskId", "status", "createdAt", "updatedAt", "kind"}
            assert (answer.status_code, accepted["status"], accepted["kind"]) == (202, "queued", kind)
            assert set(accepted) == names | ({"contextMode"} if kind == "remember" else set())
            assert accepted["updatedAt"] == accepted["createdAt"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", accepted["createdAt"])
            assert before <= datetime.fromisoformat(accepted["createdAt"]) <= datetime.now(UTC)
            assert accepted.get("contextMode", "none") == ("workspace" if kind == "remember" else "none")
            told = [answer.headers[name] for name in ("location", "retry-after")]
            assert told == [path_of(accepted["taskId"]), "1"]
            over = daemon.wait(accepted["taskId"])
            assert over["status"] == "completed"
            assert set(over["result"]) == KEYS[kind]
            assert over["createdAt"] == accepted["createdAt"] <= over["updatedAt"]
            assert set(over) == {*accepted, "result"}
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
    (entry,) = would["removedEntries"]
    assert (set(entry), entry["filePath"]) == ({"topic", "summary", "filePath"}, path)
    assert (would["touchedScopes"], would["touchedTopics"], rel in daemon.files()) == ([], [], True)
    did = daemon.done("forget", query)["result"]
    told = {"removedEntries": [entry], "touchedScopes": ["user"], "touchedTopics": [entry["topic"]]}
    assert (did, rel in daemon.files()) == (did | told, False)


def test_end_of_fact_is_taken_and_reported_apart(http):
    daemon = http()
    now = datetime.now(UTC).astimezone()
    client, today, day = daemon.open_client(), str(now.date()), str((now + timedelta(days=90)).date())
    for fact, expires, explicit, inferred in (
        ("The user lends a bicycle", "90d", day, None),
        ("The user lends a cello", today, today, None),
        (f"The user lends a drum until {today}", None, None, today),
        ("The user lends an easel until the release", None, None, None),
    ):
        result = client.remember(fact, expires=expires).wait()
        (path,) = result.files_touched
        text = (daemon.home / path).read_text(encoding="utf-8")
        assert (result.expires, result.ends) == (explicit, inferred)
        assert (f"expires: {explicit}\n" in text) == (explicit is not None)
        assert (f"ends: {inferred}\n" in text) == (inferred is not None)
    for said in ("yesterday", "0d", "2020-01-01", "", "9" * 64):
        assert (
            raised(library.InvalidContent, client.remember, "The user lends a fan", expires=said).status
            == 400
        )


FAILING = [raising(ModelError("no connection to models.example"))] * 2
DESCRIPTION = "how long the UPS in rack B lasts"


def write_ups(daemon):
    path = daemon.home / "user" / "ups.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("The UPS in rack B lasts 18 minutes\n")
    return path


def test_forget_with_a_failing_model_tells_the_reason(http):
    daemon = http(ScriptedModel(FAILING), on_model_failure="fail")
    path, reason = write_ups(daemon), "the model scripted failed: no connection to models.example"
    error = daemon.done("forget", {"query": DESCRIPTION})["error"]
    assert (error["code"], error["reason"]) == ("forget_failed", reason)
    assert reason in str(raised(errors.TaskFailed, daemon.open_client().forget(DESCRIPTION).wait))
    assert path.exists()


def test_forget_with_a_failing_model_falls_back_to_rules(http):
    daemon = http(ScriptedModel(FAILING))
    path = write_ups(daemon)
    result = daemon.open_client().forget(DESCRIPTION).wait()
    assert [each.file_path for each in result.removed_entries] == ["user/ups.md"]
    assert "the model scripted failed: no connection" in result.notes[0]
    assert not path.exists()


def test_too_much_to_forget_fails_with_how_much_it_is_what_and_the_limit_and_a_dry_run_lists_all(http):
    daemon = http()
    paths = [f"user/sextant-{number:02}.md" for number in range(12)]
    for path in paths:
        (daemon.home / path).write_text("A sextant hangs in the hall\n")
    (daemon.home / "user" / "notes.md").write_text("The astrolabe is lent.\n\nThe compass is broken.\n")
    client = daemon.open_client()
    error = raised(errors.TaskFailed, client.forget("sextant hall").wait)
    assert (error.code, error.meant, error.limit, list(error.paths)) == ("forget_failed", 12, 5, paths[:10])
    assert "12 items match, and one forget may remove 5" in str(error)
    would = client.forget("sextant hall", dry_run=True).wait()
    assert [each.file_path for each in would.removed_entries] == paths
    assert any("12 items, and one forget may remove 5" in note for note in would.notes)
    assert client.forget("a sextant or two").wait().near[:2] == tuple(paths[:2])
    (part,) = client.forget("compass broken", dry_run=True).wait().removed_entries
    assert (part.file_path, part.line, part.text) == ("user/notes.md", 3, "The compass is broken.")
    (gone,) = client.forget(paths[0]).wait().removed_entries  # By its path one goes alone.
    assert (gone.file_path, gone.text) == (paths[0], None)
    (daemon.home / "user" / "pinned").mkdir()
    (daemon.home / "user" / "pinned" / "a.md").write_text("A barometer\n")
    ((path, reason),) = ((each.file_path, each.reason) for each in client.forget("barometer").wait().kept)
    assert (path, "the policy protects it" in reason) == ("user/pinned/a.md", True)
    assert (
        daemon.done("forget", {"query": "barometer"}, token=daemon.add("bot", trust="agent"))["result"][
            "kept"
        ]
        == []
    )


@pytest.mark.threat("T-API-02", control="own_tasks")
def test_a_client_cannot_tell_another_ones_task_from_one_that_there_is_not(daemon, ada):
    """Nor the owner, where it asks in the name of another id, nor an id what another one asked."""
    task = daemon.done("dream", {}, token=ada, client="ada-id")["taskId"]
    plain = daemon.done("dream", {}, token=ada)["taskId"]

    def seen(**who):
        listed = {each["taskId"] for each in daemon.get(f"{BASE}/tasks", **who).json()["tasks"]}
        for each, method in product((task, plain), ("GET", "DELETE")):
            found = daemon.send(method, path_of(each), **who)
            absent = daemon.send(method, path_of(f"dream-{'0' * 36}"), **who)
            assert found.status_code == (200 if each in listed else 404)
            if each not in listed:
                assert found.content == absent.content
                assert dict(found.headers) | {"date": ""} == dict(absent.headers) | {"date": ""}
        return listed & {task, plain}

    assert seen() == seen(token=ada) == {task, plain}
    assert seen(token=ada, client="ada-id") == seen(client="ada-id") == {task}
    for other in "remember", "forget":  # Nor is it one of another kind.
        for method in "GET", "DELETE":
            assert daemon.problem(method, f"{BASE}/{other}/{task}") == (404, f"{other}_task_not_found")
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
        for bad in ("client-1", "owner", "ada", "", "x", "ADA-ID", "ada-id,ada-id", "*", b"ada-id\xa0"):
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
        for path in done.get("result", {"filesTouched": ()})["filesTouched"]:
            assert f'"trust": "{least}"' in daemon.files()[path.removeprefix("user/")]


def test_what_somebody_else_has_is_not_sent_twice_and_who_waits_is_answered_once_it_is_over(daemon):
    for prefer in ("wait=50", "respond-async, wait = 50, foo"):
        task_id = daemon.submit("dream", {})
        whole = daemon.get(path_of(task_id), prefer=prefer)
        assert whole.json()["status"] == "completed"
        assert "retry-after" not in whole.headers
    tag = whole.headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}'):
        answer = daemon.get(path_of(task_id), if_none_match=sent)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert daemon.get(path_of(task_id), if_none_match='"other"').content == whole.content


def test_a_client_of_the_first_contract_polls_to_one_of_the_ends_that_it_knows(held, model):
    """It asks for no proof, prefers nothing sensible, and is told at once how the task stands."""
    who = {"token": held.client, "x_qwen_client_id": "client-1"}
    task_id = held.submit("remember", {"content": "The user keeps a client of 2025"}, **who)
    for prefer in ("wait=0", "wait", "wait=x", "wait=-1", "respond-async", "wait=99999", ""):
        answer = held.get(path_of(task_id), prefer=prefer, **who)
        assert answer.json()["status"] in {"queued", "running"}
        assert answer.headers["retry-after"] == "1"
    model.release()
    while (task := held.look(task_id, **who))["status"] in {"queued", "running"}:
        pass
    assert (task["status"], "error" in task) == ("completed", False)


@pytest.mark.threat("T-API-06", control="repeats")
def test_a_request_that_is_sent_again_is_the_same_task_also_where_no_other_has_a_place(held, model):
    body = {"content": "The user prefers one to two"}

    def send(body=body, **more):
        return held.post(f"{BASE}/remember", body, idempotency_key="k1", **more)

    first = send(token=held.client)
    others = [held.remember(f"The user fills {number}") for number in range(MAX_PENDING - 1)]
    for status in "queued", "completed":
        again = send(token=held.client)
        assert (again.status_code, again.json()["taskId"]) == (202, first.json()["taskId"])
        assert (again.json()["status"] == "completed") == (status == "completed")
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["location"] == first.headers["location"]
        model.release()
        held.wait(first.json()["taskId"])
    assert "idempotency-replayed" not in first.headers
    assert len(held.get(f"{BASE}/tasks", token=held.client).json()["tasks"]) == 1
    assert send(body | {"source": {"ref": "x"}}, token=held.client).json()["code"] == "idempotency_mismatch"
    assert send().json()["taskId"] != first.json()["taskId"]
    held.wait(others[-1])
    secret = [filled("The deploy token is ghp_{a62:36}", seed) for seed in (1, 1, 2)]
    told = [held.post(f"{BASE}/remember", {"content": each}, idempotency_key="k2") for each in secret]
    assert [each.status_code for each in told] == [202, 202, 422]  # Though it stands nowhere.
    for key in ("", "a b", "x" * 256, "é".encode()):
        assert held.problem("POST", f"{BASE}/dream", {}, idempotency_key=key) == (400, "invalid_request")


@pytest.mark.threat("T-API-03", control="lane_caps")
def test_who_floods_the_lane_is_told_to_come_again_and_tidying_leaves_room_for_facts(held):
    def refused(*kinds):
        for kind in kinds:
            answer = held.post(f"{BASE}/{kind}", BODIES[kind], token=held.client)
            told = answer.status_code, answer.json()["code"], answer.headers["retry-after"]
            assert told == (429, "remember_queue_full", "5")

    held.remember("The user is first")  # Everything else waits for it.
    for number in range(MAX_TIDYING):
        held.submit(*(("forget", BODIES["forget"]), ("dream", {}))[number % 2], token=held.client)
    refused("forget", "dream")
    facts = [held.remember(f"The user owns {number} hats") for number in range(MAX_PENDING - MAX_TIDYING - 1)]
    refused(*BODIES)
    assert held.cancel(facts[3]).json()["status"] == "cancelled"
    held.remember("The user owns 9 hats", token=held.client)
    refused("remember")


def test_of_a_long_list_no_more_is_written_out_than_a_page(held, monkeypatch):
    written, rendered = [], routes.rendered
    monkeypatch.setattr(routes, "PAGE", 2)
    monkeypatch.setattr(routes, "rendered", lambda *of: written.append(of) or rendered(*of))
    for number in range(4):
        held.remember(f"The user owns {number} hats")
    written.clear()
    listed = held.get(f"{BASE}/tasks").json()
    assert (len(listed["tasks"]), len(written), "nextCursor" in listed) == (2, 2, True)


@pytest.mark.slow
def test_the_list_is_read_page_by_page_while_it_grows(daemon):
    made, who = [], {"token": daemon.add("pages", "pages-1"), "client": "pages-1"}
    for _ in range(15):
        made += [daemon.submit("dream", {}, **who) for _ in range(7)]
        daemon.wait(made[-1])
    first = daemon.get(f"{BASE}/tasks", **who).json()
    daemon.done("dream", {}, **who)
    second = daemon.get(f"{BASE}/tasks?cursor={first['nextCursor']}", **who).json()
    assert (len(first["tasks"]), "nextCursor" in second) == (100, False)
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
    facts = {f"{number}.md": f"The user has been to city number {number}\n" for number in range(8)}
    facts |= dict.fromkeys(("a.md", "b.md"), "The user prefers tea\n")
    for name, fact in facts.items():
        (alone.root() / name).write_text(fact)
    task = alone.done("dream", {}, token=alone.add("ben", trust="owner"))
    assert (task["status"], task["error"]["code"]) == ("failed", "pending_review")
    assert (bool(task["reviewId"]), set(alone.files())) == (True, set(facts))
    task = alone.done("dream", {})
    assert (task["status"], task["result"]["dedupedEntries"]) == ("completed", 1)
    assert set(alone.files()) == set(facts) - {"b.md"}
    client, words = alone.add("eve", trust="external"), ("city", "cocoa")  # Of which one is not there.
    told = [alone.done("forget", {"query": word}, token=client)["result"] for word in words]
    said = [each.pop("summary") for each in told]
    assert said == [f"no single entry matches: {word}; use its path or more of its words" for word in words]
    assert told[0] == told[1]


def test_every_scope_is_let_through_while_nobody_knows_which_there_are():
    asked = asking.remember({"content": "x", "scope": "team"}, SimpleNamespace(is_open=False, scopes=dict))
    assert asked.arguments["scope"] == "team"


def test_erase_requires_dry_run_and_refuses_yes(alone):
    done = alone.done("remember", {"content": "The harbour master is called Ingrid", "scope": "user"})
    (path,) = done["result"]["filesTouched"]
    yes = [{"yes": each} for each in (False, True)]  # As clients asked, or not, before `dryRun`.
    yes += [each | {"dryRun": dry_run} for each in yes for dry_run in (False, True)]
    for sent in (
        {},
        {"dryRun": None},
        {"dryRun": 0},
        {"dryRun": "true"},
        {"yes": None},
        *yes,
    ):
        refused = alone.post(f"{BASE}/erase", {"target": path, **sent})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), sent
        assert "dryRun" in refused.json()["detail"]
        assert path.removeprefix("user/") in alone.files()
    plan = alone.post(f"{BASE}/erase", {"target": path, "dryRun": True}).json()
    assert (plan["status"], plan["files"]) == ("preview", [path])
    assert path.removeprefix("user/") in alone.files()
    assert alone.post(f"{BASE}/erase", {"target": path, "dryRun": False}).json()["status"] == "erased"
    assert path.removeprefix("user/") not in alone.files()


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
    tasks.append(alone.post(f"{BASE}/erase", {"target": path, "dryRun": False}).json()["taskId"])
    after = alone.get(f"{BASE}/audit/head").json()
    assert int(after["head"].partition(":")[0]) == after["records"] > head["records"]
    with alone.follow(cursor=alone.cursor(0)) as follower:
        seen = follower.until(lambda each: each.data["taskId"] == tasks[-1])
    told = {each.data["taskId"]: each.data for each in seen if each.type == "memory_changed"}
    found = {task_id: data["source"].removeprefix("workspace_memory_") for task_id, data in told.items()}
    assert found == dict(zip(tasks, ("remember", "undo", "undo", "erase"), strict=True))
    assert {(data["scope"], *data["touchedScopes"]) for data in told.values()} == {("managed", "user")}


def test_what_others_write_beside_the_daemon_is_seen_by_the_next_task_and_told_to_who_follows(alone):
    (path,) = alone.done("remember", {"content": "The user prefers red pens"})["result"]["filesTouched"]
    ours = alone.root() / path.removeprefix("user/")
    ours.write_text(ours.read_text(encoding="utf-8") + "\nBy hand: blue pens on Sundays.\n", encoding="utf-8")
    removed = alone.done("forget", {"query": "blue pens sundays"})
    assert [entry["filePath"] for entry in removed["result"]["removedEntries"]] == [path]
    assert (ours.exists(), "blue pens" in ours.read_text(encoding="utf-8")) == (True, False)
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


OWNERS = {
    "erase": {"target": "user/no.md", "dryRun": False},
    "undo": {"taskId": "remember-1"},
    "approve": {"digest": "0"},
}
TABLES = {"content": "The user prefers tables to prose"}
NO_TEXT = (None, 7, "", " ", "\t\n", "\u00a0", "x" * (MAX_FACT_BYTES + 1), "é" * 32_769, ["a"])
FACT_BODIES = {  # field: the code, and values that are refused with it
    "content": ("invalid_content", (*NO_TEXT, "\0" * 3, 10**4000)),
    "contextMode": ("invalid_context_mode", ("", "Workspace", 7, "clean ", True)),
    "scope": ("invalid_scope", ("", "User", "user ", 7, "../user", ["user"])),
    "source": ("invalid_request", ("web", {"trust": "god"}, {"ref": "x" * 513}, {"more": 1})),
    **dict.fromkeys(("context_mode", "Content", "__class__", "", "a" * 100000), ("invalid_request", ("x",))),
}
KINDS = {"remember": "content", "forget": "query", "dream": "request", "recall": "request"}
NO_OBJECTS = (b"[]", b'"x"', b"null", b"-0", b"1" * 4000)
OTHER_BODIES = [  # where, body, code
    *(("forget", {"query": value}, "invalid_query") for value in NO_TEXT),
    ("forget", {}, "invalid_query"),
    ("forget", {"query": "tea", "scope": ""}, "invalid_scope"),
    ("forget", {"query": "tea", "dryRun": True, "dryrun": False}, "invalid_request"),
    ("undo", {"task_id": "remember-1"}, "invalid_request"),
    ("dream", {"scope": "galaxy"}, "invalid_scope"),
    ("dream", {"dryrun": True}, "invalid_request"),
    ("recall", {"query": "tea", "scope": "galaxy"}, "invalid_scope"),
    *((kind, body, f"invalid_{KINDS[kind]}") for kind, body in product(KINDS, NO_OBJECTS)),
]


def test_what_is_the_owners_no_client_may(daemon):
    owners = {each.path.removeprefix(BASE): each.method for each in OPERATIONS if each.owner_only}
    assert set(owners) == {
        *("/review", "/review/{reviewId}", "/review/{reviewId}/approve", "/review/{reviewId}/reject"),
        *("/undo", "/erase", "/audit/head", "/policy/explain", "/metrics", "/ui"),
        *("/edit", "/pin", "/index", "/history", "/why"),
    }
    for told, method in owners.items():
        path = f"{'' if told in {'/metrics', '/ui'} else BASE}{told}".replace("{reviewId}", "r1")
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
    many, seen, body = {f"k{number}": 0 for number in range(50_000)}, [], contract.RememberBody
    real = body.model_validate
    monkeypatch.setattr(body, "model_validate", lambda sent: (seen.append(sent), real(sent))[1])
    for document in many, {"content": "x", "source": many}:
        raised(HttpProblem, asking.parsed, body, document, match="invalid_request")
    assert seen == [{}, {"content": "x", "source": {}}]


def test_nothing_at_all_has_no_content_and_no_query_but_is_a_dream_of_any_media_type(daemon):
    for body in (None, b"", b" \r\n\t", {}):
        for media_type in ("application/json",) if body == {} else ("application/json", "text/plain", ""):
            more = {"content_type": media_type}
            assert daemon.problem("POST", f"{BASE}/remember", body, **more) == (400, "invalid_content")
            assert daemon.problem("POST", f"{BASE}/forget", body, **more) == (400, "invalid_query")
            daemon.wait(daemon.submit("dream", body, **more))


def test_content_is_trimmed_before_it_is_measured_and_a_context_mode_that_is_null_is_the_usual_one(daemon):
    for text in ("x" * MAX_FACT_BYTES, "é" * (MAX_FACT_BYTES // 2)):
        daemon.cancel(daemon.remember(f" \n\t{text}{' ' * 1000}"))
    for sent, told in ({"contextMode": None}, "workspace"), ({"contextMode": "clean"}, "clean"):
        accepted = daemon.post(f"{BASE}/remember", TABLES | sent).json()
        assert accepted["contextMode"] == told == daemon.wait(accepted["taskId"])["contextMode"]


def test_the_first_thing_that_is_wrong_is_what_is_told(daemon):
    body = {"content": " ", "contextMode": "x", "scope": "", "more": 1}
    told, more = [], {"token": daemon.client, "client": "x"}
    for right in {"content": "x"}, {"contextMode": "clean"}, {"more": None}, {"scope": "user"}, {}:
        told.append(daemon.problem("POST", f"{BASE}/remember", body, **more)[1])
        body = {name: value for name, value in (body | right).items() if value is not None}
    names = ("content", "context_mode", "request", "scope", "client_id")
    assert told == [f"invalid_{name}" for name in names]


def test_availability_counts_after_the_body_and_the_client_and_before_the_queue(held, model):
    fact, daemon = {"content": "The user has moved"}, held
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
    task_id = daemon.done("remember", TABLES)["taskId"]
    short = daemon.get(f"{BASE}/remember/{task_id}")
    for name in (daemon.key, quote(str(daemon.work), safe="")):
        sent = daemon.get(f"/workspaces/{name}/memory/remember/{task_id}")
        assert (sent.status_code, sent.content) == (200, short.content)
        accepted = daemon.post(f"/workspaces/{name}/memory/dream", {})
        assert accepted.headers["location"] == f"/workspaces/{name}/memory/dream/{accepted.json()['taskId']}"
        assert daemon.get(accepted.headers["location"], prefer="wait=20").json()["status"] == "completed"
    for path in "/session/any%2fthing/events", f"/workspaces/{daemon.key}/memory/events":
        with daemon.follow(path=path) as follower:
            assert re.fullmatch(r"[0-9a-f]{8}-\d+", follower.start().last_id)


def test_capabilities_say_what_the_contract_says(daemon):
    told = daemon.get("/capabilities").json()
    assert told["workspace"] == daemon.key
    modes = {"modes": ["workspace", "clean"], "scopes": ["project", "user"]}
    details = {f"workspace_memory_{kind}": {"since": "v1"} for kind in KINDS}
    details["workspace_memory_remember"] |= modes
    details["workspace_memory_forget"] |= {"scopes": modes["scopes"]}
    assert told["featureDetails"] == details
    scoped = ("remember_user_scope", "remember_project_scope", "forget_scope")
    names = [*details, *(f"workspace_memory_{each}" for each in scoped)]
    assert set(told["features"]) == {"health", "capabilities", "session_events", *names}
    assert told["protocolVersions"] == {"current": "v1", "supported": ["v1"]}
    assert (told["v"], told["mode"], told["modelServices"]) == (1, "http-bridge", [])
    assert told["transports"] == ["rest"]
    limits = {"contentBytes": 65_536, "pendingTasks": 16, "pendingTidyingTasks": 8}
    assert told["limits"] == told["limits"] | limits
