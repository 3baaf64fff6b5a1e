"""What the owner alone may do, and what other programs of the owner do beside the daemon."""

from __future__ import annotations

import muniment
from kit.daemon.process import BASE


def test_an_undo_takes_back_and_can_be_undone_and_the_audit_head_grows_with_it(daemon):
    head = daemon.get(f"{BASE}/audit/head").json()
    done = daemon.done("remember", {"content": "The user prefers undo to regret", "scope": "user"})
    (path,) = done["result"]["filesTouched"]
    rel = path.removeprefix("user/")
    before = daemon.files()[rel]
    undone = daemon.post(f"{BASE}/undo", {"taskId": done["taskId"]}).json()
    assert (undone["undone"], undone["filesTouched"]) == (done["taskId"], [path])
    assert rel not in daemon.files()
    again = daemon.post(f"{BASE}/undo", {"taskId": undone["taskId"]}).json()
    assert again["filesTouched"] == [path]
    assert daemon.files()[rel] == before
    after = daemon.get(f"{BASE}/audit/head").json()
    assert after["records"] > head["records"]
    assert after["head"].startswith(f"{after['records']}:")


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
