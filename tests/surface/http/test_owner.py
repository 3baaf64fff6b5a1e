"""What the owner alone may do, and what other programs of the owner do beside the daemon."""

from __future__ import annotations

import muniment
from kit.daemon.process import BASE


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
