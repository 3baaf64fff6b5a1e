"""Valid requests, the states of a task, and the separation of clients."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import product
from types import SimpleNamespace
from urllib.parse import quote

import pytest

import muniment
from kit.catching import catch_error
from kit.content.secret_values import fill_example
from kit.operations.contexts import make_raising_step
from kit.server.process import BASE, build_task_path, write_policy
from kit.server.raw import start_local_daemon
from muniment import errors as library
from muniment.agent.model import ModelError
from muniment.client import errors
from muniment.kernel.names import Trust
from muniment.names import MAX_FACT_BYTES
from muniment.server import contract, requests, routes
from muniment.server.contract import HttpProblem
from muniment.server.lane import MAX_PENDING, MAX_TIDYING
from muniment.server.service import OPERATIONS
from muniment.store.audit import read_records
from muniment.store.handles import build_task_handle
from muniment.testing.scripted_models import ScriptedModel

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
    """Create a token of a client with an id."""
    return daemon.add_client("ada", "ada-id")


def test_task_is_accepted_and_completed_in_contract_shape(daemon, subtests):
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
            location = [answer.headers[name] for name in ("location", "retry-after")]
            assert location == [build_task_path(accepted["taskId"]), "1"]
            task = daemon.wait_for_task(accepted["taskId"])
            assert task["status"] == "completed"
            assert set(task["result"]) == KEYS[kind]
            assert task["createdAt"] == accepted["createdAt"] <= task["updatedAt"]
            assert set(task) == {*accepted, "result"}
            assert daemon.cancel(accepted["taskId"]).json() == task == daemon.read_task(accepted["taskId"])
            assert str(daemon.home) not in str(task)
    assert (type(task["result"]["dedupedEntries"]), type(task["result"]["rejected"])) == (int, int)


def test_forget_reports_removed_entries_and_dry_run_previews(daemon):
    fact = {"content": "The user prefers umbrellas to raincoats", "scope": "user"}
    saved = daemon.run_task("remember", fact)
    (path,) = saved["result"]["filesTouched"]
    assert (saved["scope"], saved["result"]["touchedScopes"], path[:5]) == ("user", ["user"], "user/")
    rel, query = path.removeprefix("user/"), {"query": "umbrellas raincoats"}
    preview = daemon.run_task("forget", {**query, "dryRun": True})["result"]
    (entry,) = preview["removedEntries"]
    assert (set(entry), entry["filePath"]) == ({"topic", "summary", "filePath"}, path)
    assert (preview["touchedScopes"], preview["touchedTopics"], rel in daemon.read_files()) == ([], [], True)
    result = daemon.run_task("forget", query)["result"]
    expected = {"removedEntries": [entry], "touchedScopes": ["user"], "touchedTopics": [entry["topic"]]}
    assert (result, rel in daemon.read_files()) == (result | expected, False)


def test_end_date_is_stored_and_reported_separately(start_http):
    daemon = start_http()
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
    for invalid in ("yesterday", "0d", "2020-01-01", "", "9" * 64):
        assert (
            catch_error(
                library.InvalidContent, client.remember, "The user lends a fan", expires=invalid
            ).status
            == 400
        )


FAILING = [make_raising_step(ModelError("no connection to models.example"))] * 2
DESCRIPTION = "how long the UPS in rack B lasts"


def write_ups_entry(daemon):
    path = daemon.home / "user" / "ups.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("The UPS in rack B lasts 18 minutes\n")
    return path


def test_forget_with_failing_model_reports_reason(start_http):
    daemon = start_http(ScriptedModel(FAILING), on_model_failure="fail")
    path, reason = write_ups_entry(daemon), "the model scripted failed: no connection to models.example"
    error = daemon.run_task("forget", {"query": DESCRIPTION})["error"]
    assert (error["code"], error["reason"]) == ("forget_failed", reason)
    assert reason in str(catch_error(errors.TaskFailed, daemon.open_client().forget(DESCRIPTION).wait))
    assert path.exists()


def test_forget_with_failing_model_falls_back_to_rules(start_http):
    daemon = start_http(ScriptedModel(FAILING))
    path = write_ups_entry(daemon)
    result = daemon.open_client().forget(DESCRIPTION).wait()
    assert [each.file_path for each in result.removed_entries] == ["user/ups.md"]
    assert "the model scripted failed: no connection" in result.notes[0]
    assert not path.exists()


def test_forget_over_limit_fails_and_dry_run_lists_all(start_http):
    daemon = start_http()
    paths = [f"user/sextant-{number:02}.md" for number in range(12)]
    for path in paths:
        (daemon.home / path).write_text("A sextant hangs in the hall\n")
    (daemon.home / "user" / "notes.md").write_text("The astrolabe is lent.\n\nThe compass is broken.\n")
    client = daemon.open_client()
    error = catch_error(errors.TaskFailed, client.forget("sextant hall").wait)
    assert (error.code, error.meant, error.limit, list(error.paths)) == ("forget_failed", 12, 5, paths[:10])
    assert "12 items match, and one forget may remove 5" in str(error)
    preview = client.forget("sextant hall", dry_run=True).wait()
    assert [each.file_path for each in preview.removed_entries] == paths
    assert any("12 items, and one forget may remove 5" in note for note in preview.notes)
    assert client.forget("a sextant or two").wait().near[:2] == tuple(paths[:2])
    (paragraph,) = client.forget("compass broken", dry_run=True).wait().removed_entries
    assert (paragraph.file_path, paragraph.line, paragraph.text) == (
        "user/notes.md",
        3,
        "The compass is broken.",
    )
    (removed,) = client.forget(paths[0]).wait().removed_entries  # A path selects one entry only.
    assert (removed.file_path, removed.text) == (paths[0], None)
    (daemon.home / "user" / "pinned").mkdir()
    (daemon.home / "user" / "pinned" / "a.md").write_text("A barometer\n")
    ((path, reason),) = ((each.file_path, each.reason) for each in client.forget("barometer").wait().kept)
    assert (path, "the policy protects it" in reason) == ("user/pinned/a.md", True)
    assert (
        daemon.run_task("forget", {"query": "barometer"}, token=daemon.add_client("bot", trust="agent"))[
            "result"
        ]["kept"]
        == []
    )


@pytest.mark.threat("T-API-02", control="own_tasks")
def test_foreign_task_is_answered_like_unknown_one(daemon, ada):
    """The same holds for the owner with another id, and for an id and the tasks of another one."""
    task = daemon.run_task("dream", {}, token=ada, client="ada-id")["taskId"]
    plain = daemon.run_task("dream", {}, token=ada)["taskId"]

    def visible_tasks(**who):
        listed = {each["taskId"] for each in daemon.get(f"{BASE}/tasks", **who).json()["tasks"]}
        for each, method in product((task, plain), ("GET", "DELETE")):
            found = daemon.send(method, build_task_path(each), **who)
            absent = daemon.send(method, build_task_path(f"dream-{'0' * 36}"), **who)
            assert found.status_code == (200 if each in listed else 404)
            if each not in listed:
                assert found.content == absent.content
                assert dict(found.headers) | {"date": ""} == dict(absent.headers) | {"date": ""}
        return listed & {task, plain}

    assert visible_tasks() == visible_tasks(token=ada) == {task, plain}
    assert visible_tasks(token=ada, client="ada-id") == visible_tasks(client="ada-id") == {task}
    for other in "remember", "forget":  # A task id of another kind is also unknown.
        for method in "GET", "DELETE":
            assert daemon.request_problem(method, f"{BASE}/{other}/{task}") == (
                404,
                f"{other}_task_not_found",
            )
    token, client = {"token": daemon.client}, {"client": "client-1"}
    for who in token, client, token | client:
        assert visible_tasks(**who) == set()


@pytest.mark.threat("T-API-04", control="registered_ids")
def test_client_id_must_belong_to_the_token(daemon, ada):
    names, fact = ("x_qwen_client_id", "x_muniment_client_id"), {"content": "The user is somebody"}
    for name in names:
        sent = {"token": ada, name: "ada-id"}
        assert daemon.run_task("dream", {}, **sent)["status"] == "completed"
        assert daemon.get(f"{BASE}/tasks", **{name: "ada-id"}).status_code == 200
        for bad in ("client-1", "owner", "ada", "", "x", "ADA-ID", "ada-id,ada-id", "*", b"ada-id\xa0"):
            for method, path, body in ("GET", "tasks", None), ("POST", "remember", fact):
                sent = daemon.request_problem(method, f"{BASE}/{path}", body, token=ada, **{name: bad})
                assert sent == (400, "invalid_client_id"), bad
        assert daemon.request_problem("GET", f"{BASE}/tasks", **{name: "nobody"}) == (
            400,
            "invalid_client_id",
        )
    both = dict.fromkeys(names, "ada-id")
    assert daemon.get(f"{BASE}/tasks", token=ada, **both).status_code == 200
    both[names[0]] = "another"
    assert daemon.request_problem("GET", f"{BASE}/tasks", token=ada, **both) == (400, "invalid_client_id")


@pytest.mark.threat("T-API-04", control="token_trust")
def test_trust_of_client_is_limited_by_its_token(daemon):
    order = list(Trust)
    for token_trust in order:
        token = daemon.add_client(f"trust-{token_trust}", f"trust-{token_trust}-1", trust=token_trust)
        for claimed in order:
            fact = f"The user prefers {token_trust} trust to {claimed} control"
            source = {"trust": claimed, "ref": "https://example.org/1"}
            task_id = daemon.remember(fact, token=token, source=source)
            found = read_records(daemon.core.state, task=task_id)
            accepted = next(each.body for each in found if each.kind == "accepted")
            least = order[max(order.index(claimed), order.index(token_trust))]
            recorded = [accepted[name] for name in ("trust", "token", "client")]
            assert recorded == [least, f"trust-{token_trust}", None]
        done = daemon.wait_for_task(task_id)
        for path in done.get("result", {"filesTouched": ()})["filesTouched"]:
            assert f'"trust": "{least}"' in daemon.read_files()[path.removeprefix("user/")]


def test_etag_avoids_resending_and_long_poll_answers_at_end(daemon):
    for prefer in ("wait=50", "respond-async, wait = 50, foo"):
        task_id = daemon.submit("dream", {})
        whole = daemon.get(build_task_path(task_id), prefer=prefer)
        assert whole.json()["status"] == "completed"
        assert "retry-after" not in whole.headers
    tag = whole.headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}'):
        answer = daemon.get(build_task_path(task_id), if_none_match=sent)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert daemon.get(build_task_path(task_id), if_none_match='"other"').content == whole.content


def test_old_client_polls_until_known_status(blocked_daemon, model):
    """It requests no proof, sends no valid preference, and receives the status at once."""
    who = {"token": blocked_daemon.client, "x_qwen_client_id": "client-1"}
    task_id = blocked_daemon.submit("remember", {"content": "The user keeps a client of 2025"}, **who)
    for prefer in ("wait=0", "wait", "wait=x", "wait=-1", "respond-async", "wait=99999", ""):
        answer = blocked_daemon.get(build_task_path(task_id), prefer=prefer, **who)
        assert answer.json()["status"] in {"queued", "running"}
        assert answer.headers["retry-after"] == "1"
    model.resume()
    while (task := blocked_daemon.read_task(task_id, **who))["status"] in {"queued", "running"}:
        pass
    assert (task["status"], "error" in task) == ("completed", False)


@pytest.mark.threat("T-API-06", control="repeats")
def test_repeated_idempotency_key_returns_same_task(blocked_daemon, model):
    body = {"content": "The user prefers one to two"}

    def send(body=body, **more):
        return blocked_daemon.post(f"{BASE}/remember", body, idempotency_key="k1", **more)

    first = send(token=blocked_daemon.client)
    others = [blocked_daemon.remember(f"The user fills {number}") for number in range(MAX_PENDING - 1)]
    for status in "queued", "completed":
        second = send(token=blocked_daemon.client)
        assert (second.status_code, second.json()["taskId"]) == (202, first.json()["taskId"])
        assert (second.json()["status"] == "completed") == (status == "completed")
        assert second.headers["idempotency-replayed"] == "true"
        assert second.headers["location"] == first.headers["location"]
        model.resume()
        blocked_daemon.wait_for_task(first.json()["taskId"])
    assert "idempotency-replayed" not in first.headers
    assert len(blocked_daemon.get(f"{BASE}/tasks", token=blocked_daemon.client).json()["tasks"]) == 1
    assert (
        send(body | {"source": {"ref": "x"}}, token=blocked_daemon.client).json()["code"]
        == "idempotency_mismatch"
    )
    assert send().json()["taskId"] != first.json()["taskId"]
    blocked_daemon.wait_for_task(others[-1])
    secret = [fill_example("The deploy token is ghp_{a62:36}", seed) for seed in (1, 1, 2)]
    answers = [
        blocked_daemon.post(f"{BASE}/remember", {"content": each}, idempotency_key="k2") for each in secret
    ]
    assert [each.status_code for each in answers] == [202, 202, 422]  # The secret is stored nowhere.
    for key in ("", "a b", "x" * 256, "é".encode()):
        assert blocked_daemon.request_problem("POST", f"{BASE}/dream", {}, idempotency_key=key) == (
            400,
            "invalid_request",
        )


@pytest.mark.threat("T-API-03", control="lane_caps")
def test_full_lane_answers_429_and_keeps_places_for_facts(blocked_daemon):
    def assert_refused(*kinds):
        for kind in kinds:
            answer = blocked_daemon.post(f"{BASE}/{kind}", BODIES[kind], token=blocked_daemon.client)
            answer_code = answer.status_code, answer.json()["code"], answer.headers["retry-after"]
            assert answer_code == (429, "remember_queue_full", "5")

    blocked_daemon.remember("The user is first")  # All other tasks wait for it.
    for number in range(MAX_TIDYING):
        blocked_daemon.submit(
            *(("forget", BODIES["forget"]), ("dream", {}))[number % 2], token=blocked_daemon.client
        )
    assert_refused("forget", "dream")
    facts = [
        blocked_daemon.remember(f"The user owns {number} hats")
        for number in range(MAX_PENDING - MAX_TIDYING - 1)
    ]
    assert_refused(*BODIES)
    assert blocked_daemon.cancel(facts[3]).json()["status"] == "cancelled"
    blocked_daemon.remember("The user owns 9 hats", token=blocked_daemon.client)
    assert_refused("remember")


def test_list_renders_one_page_only(blocked_daemon, monkeypatch):
    written, rendered = [], routes.render_task
    monkeypatch.setattr(routes, "PAGE_SIZE", 2)
    monkeypatch.setattr(routes, "render_task", lambda *of: written.append(of) or rendered(*of))
    for number in range(4):
        blocked_daemon.remember(f"The user owns {number} hats")
    written.clear()
    listed = blocked_daemon.get(f"{BASE}/tasks").json()
    assert (len(listed["tasks"]), len(written), "nextCursor" in listed) == (2, 2, True)


@pytest.mark.slow
def test_list_pages_are_stable_while_list_grows(daemon):
    made, who = [], {"token": daemon.add_client("pages", "pages-1"), "client": "pages-1"}
    for _ in range(15):
        made += [daemon.submit("dream", {}, **who) for _ in range(7)]
        daemon.wait_for_task(made[-1])
    first = daemon.get(f"{BASE}/tasks", **who).json()
    daemon.run_task("dream", {}, **who)
    second = daemon.get(f"{BASE}/tasks?cursor={first['nextCursor']}", **who).json()
    assert (len(first["tasks"]), "nextCursor" in second) == (100, False)
    assert [task["taskId"] for task in (*first["tasks"], *second["tasks"])] == made[::-1]


def test_list_filters_by_status_and_rejects_unknown_one(daemon):
    done = daemon.run_task("dream", {}, token=daemon.client)["taskId"]
    for status, found in ("completed", True), ("cancelled", False):
        listed = daemon.get(f"{BASE}/tasks?status={status}", token=daemon.client).json()["tasks"]
        assert {task["status"] for task in listed} <= {status}
        assert (done in [task["taskId"] for task in listed]) == found
    for query in ("cursor=0", "cursor=x", "cursor=", "cursor=-1", "status=", "status=done"):
        assert daemon.request_problem("GET", f"{BASE}/tasks?{query}") == (400, "invalid_request")


# -- tidying by clients --------------------------------------------------------------------------------


def test_removals_of_client_dream_wait_for_owner(separate_daemon):
    facts = {f"{number}.md": f"The user has been to city number {number}\n" for number in range(8)}
    facts |= dict.fromkeys(("a.md", "b.md"), "The user prefers tea\n")
    for name, fact in facts.items():
        (separate_daemon.get_root() / name).write_text(fact)
    task = separate_daemon.run_task("dream", {}, token=separate_daemon.add_client("ben", trust="owner"))
    assert (task["status"], task["error"]["code"]) == ("failed", "pending_review")
    assert (bool(task["reviewId"]), set(separate_daemon.read_files())) == (True, set(facts))
    task = separate_daemon.run_task("dream", {})
    assert (task["status"], task["result"]["dedupedEntries"]) == ("completed", 1)
    assert set(separate_daemon.read_files()) == set(facts) - {"b.md"}
    client, words = (
        separate_daemon.add_client("eve", trust="external"),
        ("city", "cocoa"),
    )  # The second word matches nothing.
    results = [separate_daemon.run_task("forget", {"query": word}, token=client)["result"] for word in words]
    summaries = [each.pop("summary") for each in results]
    assert summaries == [
        f"no single entry matches: {word}; use its path or more of its words" for word in words
    ]
    assert results[0] == results[1]


def test_every_scope_is_accepted_while_scopes_are_unknown():
    request = requests.parse_remember(
        {"content": "x", "scope": "team"}, SimpleNamespace(is_open=False, scopes=dict)
    )
    assert request.arguments["scope"] == "team"


def test_erase_requires_dry_run_and_rejects_yes(separate_daemon):
    done = separate_daemon.run_task(
        "remember", {"content": "The harbour master is called Ingrid", "scope": "user"}
    )
    (path,) = done["result"]["filesTouched"]
    yes = [{"yes": each} for each in (False, True)]  # The form of older clients, before `dryRun`.
    yes += [each | {"dryRun": dry_run} for each in yes for dry_run in (False, True)]
    for sent in (
        {},
        {"dryRun": None},
        {"dryRun": 0},
        {"dryRun": "true"},
        {"yes": None},
        *yes,
    ):
        refused = separate_daemon.post(f"{BASE}/erase", {"target": path, **sent})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), sent
        assert "dryRun" in refused.json()["detail"]
        assert path.removeprefix("user/") in separate_daemon.read_files()
    plan = separate_daemon.post(f"{BASE}/erase", {"target": path, "dryRun": True}).json()
    assert (plan["status"], plan["files"]) == ("preview", [path])
    assert path.removeprefix("user/") in separate_daemon.read_files()
    assert (
        separate_daemon.post(f"{BASE}/erase", {"target": path, "dryRun": False}).json()["status"] == "erased"
    )
    assert path.removeprefix("user/") not in separate_daemon.read_files()


# -- owner operations, and other programs of the owner -------------------------------------------------


def test_undo_and_erase_events_name_source_and_extend_audit(separate_daemon):
    head = separate_daemon.get(f"{BASE}/audit/head").json()
    done = separate_daemon.run_task(
        "remember", {"content": "The user prefers undo to regret", "scope": "user"}
    )
    (path,) = done["result"]["filesTouched"]
    rel = path.removeprefix("user/")
    before, tasks = separate_daemon.read_files()[rel], [done["taskId"]]
    for is_present in False, True:  # An undo can be undone.
        name = build_task_handle(tasks[-1])[:4].upper() if is_present else tasks[-1]
        undone = separate_daemon.post(f"{BASE}/undo", {"taskId": name}).json()
        assert (undone["undone"], undone["filesTouched"]) == (tasks[-1], [path])
        assert separate_daemon.read_files().get(rel) == (before if is_present else None)
        tasks.append(undone["taskId"])
    tasks.append(separate_daemon.post(f"{BASE}/erase", {"target": path, "dryRun": False}).json()["taskId"])
    after = separate_daemon.get(f"{BASE}/audit/head").json()
    assert int(after["head"].partition(":")[0]) == after["records"] > head["records"]
    with separate_daemon.follow_events(cursor=separate_daemon.cursor(0)) as follower:
        seen = follower.read_until(lambda each: each.data["taskId"] == tasks[-1])
    changes = {each.data["taskId"]: each.data for each in seen if each.type == "memory_changed"}
    found = {task_id: data["source"].removeprefix("workspace_memory_") for task_id, data in changes.items()}
    assert found == dict(zip(tasks, ("remember", "undo", "undo", "erase"), strict=True))
    assert {(data["scope"], *data["touchedScopes"]) for data in changes.values()} == {("managed", "user")}


def test_external_writes_are_seen_by_tasks_and_followers(separate_daemon):
    (path,) = separate_daemon.run_task("remember", {"content": "The user prefers red pens"})["result"][
        "filesTouched"
    ]
    path_on_disk = separate_daemon.get_root() / path.removeprefix("user/")
    path_on_disk.write_text(
        path_on_disk.read_text(encoding="utf-8") + "\nBy hand: blue pens on Sundays.\n", encoding="utf-8"
    )
    removed = separate_daemon.run_task("forget", {"query": "blue pens sundays"})
    assert [entry["filePath"] for entry in removed["result"]["removedEntries"]] == [path]
    assert (path_on_disk.exists(), "blue pens" in path_on_disk.read_text(encoding="utf-8")) == (True, False)
    with separate_daemon.follow_events() as follower:
        follower.read_to_start()
        settings = {
            "home": separate_daemon.home,
            "policy": str(separate_daemon.base / "policy.toml"),
            "in_process": True,
        }
        with muniment.open(separate_daemon.work, **settings) as memory:
            task_id = memory.remember("The user prefers the library to browsers").task_id
        (seen,) = follower.read_until(lambda each: each.data["taskId"] == task_id)
    assert (seen.type, seen.data["source"]) == ("memory_changed", "workspace_memory_remember")


def test_review_is_listed_only_in_its_workspace(tmp_path):
    (tmp_path / "other" / ".git").mkdir(parents=True)
    policy = write_policy(tmp_path, require='"none"', project='{ trust = "owner", commit = "review" }')
    workspaces = (tmp_path / "work", tmp_path / "other")
    with start_local_daemon(tmp_path, policy=policy, workspaces=workspaces) as daemon:
        first, second = (f"/workspaces/{key}/memory" for key in daemon.core.workspaces)
        fact = {"content": "This project is reviewed", "scope": "project"}
        task_id = daemon.post(f"{second}/remember", fact).json()["taskId"]
        waiting = daemon.get(f"{second}/remember/{task_id}", prefer="wait=60").json()["reviewId"]
        listed = [daemon.get(f"{prefix}/review").json()["reviews"] for prefix in (first, second)]
        assert [[each["reviewId"] for each in found] for found in listed] == [[], [waiting]]


OWNERS = {
    "erase": {"target": "user/no.md", "dryRun": False},
    "undo": {"taskId": "remember-1"},
    "approve": {"digest": "0"},
}
TABLES = {"content": "The user prefers tables to prose"}
NO_TEXT = (None, 7, "", " ", "\t\n", "\u00a0", "x" * (MAX_FACT_BYTES + 1), "é" * 32_769, ["a"])
FACT_BODIES = {  # field: the code, and values that are rejected with it
    "content": ("invalid_content", (*NO_TEXT, "\0" * 3, 10**4000)),
    "contextMode": ("invalid_context_mode", ("", "Workspace", 7, "clean ", True)),
    "scope": ("invalid_scope", ("", "User", "user ", 7, "../user", ["user"])),
    "source": ("invalid_request", ("web", {"trust": "god"}, {"ref": "x" * 513}, {"more": 1})),
    **dict.fromkeys(("context_mode", "Content", "__class__", "", "a" * 100000), ("invalid_request", ("x",))),
}
KINDS = {"remember": "content", "forget": "query", "dream": "request", "recall": "request"}
NO_OBJECTS = (b"[]", b'"x"', b"null", b"-0", b"1" * 4000)
OTHER_BODIES = [  # path, body, code
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


def test_owner_operations_are_denied_to_clients(daemon):
    owners = {each.path.removeprefix(BASE): each.method for each in OPERATIONS if each.is_owner_only}
    assert set(owners) == {
        *("/review", "/review/{reviewId}", "/review/{reviewId}/approve", "/review/{reviewId}/reject"),
        *("/undo", "/erase", "/audit/head", "/policy/explain", "/metrics", "/ui"),
        *("/edit", "/pin", "/index", "/history", "/why"),
    }
    for operation, method in owners.items():
        path = f"{'' if operation in {'/metrics', '/ui'} else BASE}{operation}".replace("{reviewId}", "r1")
        body = OWNERS.get(path.rpartition("/")[2], {}) if method == "POST" else None
        for token in daemon.client, daemon.add_client(f"trusted-{len(operation)}", trust="owner"):
            assert daemon.request_problem(method, path, body, token=token) == (403, "owner_required")
        daemon.core.tokens.revoke(f"trusted-{len(operation)}")
        assert daemon.send(method, path, b"{", token=daemon.client).status_code in {400, 403}


def test_invalid_body_is_rejected_with_its_code(daemon, subtests):
    for field, (code, values) in FACT_BODIES.items():
        for value in values:
            with subtests.test(f"{field[:20]}: {str(value)[:20]!r}" if value != 10**4000 else "long number"):
                sent = daemon.post(f"{BASE}/remember", {"content": "The user is right", field: value})
                assert (sent.status_code, sent.json()["code"]) == (400, code)
                assert len(sent.content) < 1000
    for kind, body, code in OTHER_BODIES:
        with subtests.test(f"{kind} {str(body)[:40]}"):
            assert daemon.request_problem("POST", f"{BASE}/{kind}", body) == (400, code)


def test_many_unknown_fields_never_reach_validation(monkeypatch):
    many, seen, body = {f"k{number}": 0 for number in range(50_000)}, [], contract.RememberBody
    real = body.model_validate
    monkeypatch.setattr(body, "model_validate", lambda sent: (seen.append(sent), real(sent))[1])
    for document in many, {"content": "x", "source": many}:
        catch_error(HttpProblem, requests.validate_document, body, document, match="invalid_request")
    assert seen == [{}, {"content": "x", "source": {}}]


def test_empty_body_is_valid_for_dream_only(daemon):
    for body in (None, b"", b" \r\n\t", {}):
        for media_type in ("application/json",) if body == {} else ("application/json", "text/plain", ""):
            more = {"content_type": media_type}
            assert daemon.request_problem("POST", f"{BASE}/remember", body, **more) == (
                400,
                "invalid_content",
            )
            assert daemon.request_problem("POST", f"{BASE}/forget", body, **more) == (400, "invalid_query")
            daemon.wait_for_task(daemon.submit("dream", body, **more))


def test_content_is_trimmed_and_null_context_is_default(daemon):
    for text in ("x" * MAX_FACT_BYTES, "é" * (MAX_FACT_BYTES // 2)):
        daemon.cancel(daemon.remember(f" \n\t{text}{' ' * 1000}"))
    for sent, expected in ({"contextMode": None}, "workspace"), ({"contextMode": "clean"}, "clean"):
        accepted = daemon.post(f"{BASE}/remember", TABLES | sent).json()
        assert accepted["contextMode"] == expected == daemon.wait_for_task(accepted["taskId"])["contextMode"]


def test_first_error_of_request_is_reported(daemon):
    body = {"content": " ", "contextMode": "x", "scope": "", "more": 1}
    codes, more = [], {"token": daemon.client, "client": "x"}
    for correct in {"content": "x"}, {"contextMode": "clean"}, {"more": None}, {"scope": "user"}, {}:
        codes.append(daemon.request_problem("POST", f"{BASE}/remember", body, **more)[1])
        body = {name: value for name, value in (body | correct).items() if value is not None}
    names = ("content", "context_mode", "request", "scope", "client_id")
    assert codes == [f"invalid_{name}" for name in names]


def test_availability_is_checked_after_body_and_before_queue(blocked_daemon, model):
    fact, daemon = {"content": "The user has moved"}, blocked_daemon
    accepted = [daemon.remember(f"The user waits {number}") for number in range(MAX_PENDING)]
    assert daemon.request_problem("POST", f"{BASE}/remember", fact) == (429, "remember_queue_full")
    daemon.get_root().rename(daemon.base / "elsewhere")
    assert daemon.request_problem("POST", f"{BASE}/remember", {"content": ""}) == (400, "invalid_content")
    assert daemon.request_problem("POST", f"{BASE}/remember", fact, client="x") == (400, "invalid_client_id")
    assert daemon.request_problem("POST", f"{BASE}/remember", fact) == (409, "managed_memory_unavailable")
    model.resume()
    # A moved root is bound like at startup: queued tasks use it.
    assert {daemon.wait_for_task(task_id)["status"] for task_id in accepted} <= {"failed", "completed"}


def test_workspace_is_named_by_key_or_path(daemon):
    task_id = daemon.run_task("remember", TABLES)["taskId"]
    short = daemon.get(f"{BASE}/remember/{task_id}")
    for name in (daemon.key, quote(str(daemon.work), safe="")):
        sent = daemon.get(f"/workspaces/{name}/memory/remember/{task_id}")
        assert (sent.status_code, sent.content) == (200, short.content)
        accepted = daemon.post(f"/workspaces/{name}/memory/dream", {})
        assert accepted.headers["location"] == f"/workspaces/{name}/memory/dream/{accepted.json()['taskId']}"
        assert daemon.get(accepted.headers["location"], prefer="wait=20").json()["status"] == "completed"
    for path in "/session/any%2fthing/events", f"/workspaces/{daemon.key}/memory/events":
        with daemon.follow_events(path=path) as follower:
            assert re.fullmatch(r"[0-9a-f]{8}-\d+", follower.read_to_start().last_id)


def test_capabilities_match_the_contract(daemon):
    document = daemon.get("/capabilities").json()
    assert document["workspace"] == daemon.key
    modes = {"modes": ["workspace", "clean"], "scopes": ["project", "user"]}
    details = {f"workspace_memory_{kind}": {"since": "v1"} for kind in KINDS}
    details["workspace_memory_remember"] |= modes
    details["workspace_memory_forget"] |= {"scopes": modes["scopes"]}
    assert document["featureDetails"] == details
    scoped = ("remember_user_scope", "remember_project_scope", "forget_scope")
    names = [*details, *(f"workspace_memory_{each}" for each in scoped)]
    assert set(document["features"]) == {"health", "capabilities", "session_events", *names}
    assert document["protocolVersions"] == {"current": "v1", "supported": ["v1"]}
    assert (document["v"], document["mode"], document["modelServices"]) == (1, "http-bridge", [])
    assert document["transports"] == ["rest"]
    limits = {"contentBytes": 65_536, "pendingTasks": 16, "pendingTidyingTasks": 8}
    assert document["limits"] == document["limits"] | limits
