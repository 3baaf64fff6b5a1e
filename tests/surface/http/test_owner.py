"""What the owner alone may do, and what other programs of the owner do beside the daemon."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kit.daemon.process import BASE, HeldModel, serving


@pytest.mark.slow
def test_programs_that_open_and_close_the_ledger_leave_the_daemon_its_log(start_daemon):
    """Else SQLite takes the daemon for gone, deletes its write-ahead log, and two ledgers go on."""
    daemon = start_daemon()
    tokens = [daemon.new_token(f"t{number}") for number in range(3)]
    assert [daemon.get("/healthz", token=token).status_code for token in tokens] == [200] * 3
    opened = [str(fd.readlink()) for fd in Path(f"/proc/{daemon.process.pid}/fd").iterdir()]
    assert [path for path in opened if path.endswith("(deleted)")] == []
    ours = daemon.wait(daemon.remember("The user prefers one ledger to two"))
    assert ours["status"] == "completed"
    daemon.kill()
    history = daemon.muniment("history")
    assert ours["taskId"] in str(history)


def test_a_review_shows_what_an_approval_commits(world):
    text = "The user reads before signing"
    waiting, digest = world.review("user/signed.md", text)
    listed = {each["reviewId"]: each for each in world.picky.get(f"{BASE}/review").json()["reviews"]}
    assert listed[waiting]["paths"] == ["user/signed.md"]
    assert listed[waiting]["kind"] == "remember"
    assert text in world.picky.get(f"{BASE}/review/{waiting}").json()["text"]
    assert "signed.md" not in world.picky.files()
    approved = world.approve(waiting, digest).json()
    assert (approved["status"], approved["filesTouched"]) == ("approved", ["user/signed.md"])
    assert approved["touchedScopes"] == ["user"]
    assert text in world.picky.files()["signed.md"]
    left = world.picky.get(f"{BASE}/review").json()["reviews"]
    assert waiting not in {each["reviewId"] for each in left}


def test_what_is_rejected_is_never_written(world):
    waiting, digest = world.review("user/rejected.md", "The user is turned down")
    rejected = world.picky.post(f"{BASE}/review/{waiting}/reject").json()
    assert (rejected["status"], rejected["taskId"], rejected["filesTouched"]) == ("rejected", None, [])
    assert world.approve(waiting, digest).status_code == 409
    assert "rejected.md" not in world.picky.files()


def test_an_undo_takes_back_and_can_be_undone(daemon):
    done = daemon.wait(daemon.remember("The user prefers undo to regret", scope="user"))
    (path,) = done["result"]["filesTouched"]
    rel = path.removeprefix("user/")
    before = daemon.files()[rel]
    undone = daemon.post(f"{BASE}/undo", {"taskId": done["taskId"]}).json()
    assert (undone["undone"], undone["filesTouched"]) == (done["taskId"], [path])
    assert rel not in daemon.files()
    again = daemon.post(f"{BASE}/undo", {"taskId": undone["taskId"]}).json()
    assert again["filesTouched"] == [path]
    assert daemon.files()[rel] == before


def test_an_erasure_is_told_before_it_is_done_and_leaves_nothing(start_daemon):
    daemon = start_daemon()
    text = "The user regrets having met Ozymandias"
    done = daemon.wait(daemon.remember(text))
    plan = daemon.post(f"{BASE}/erase", {"target": done["taskId"]}).json()
    assert (plan["status"], plan["files"]) == ("preview", done["result"]["filesTouched"])
    assert "Ozymandias" in str(daemon.files())
    receipt = daemon.post(f"{BASE}/erase", {"target": done["taskId"], "yes": True}).json()
    assert (receipt["status"], receipt["laneTasks"]) == ("erased", 1)
    assert "Ozymandias" not in str(receipt)
    told = daemon.look(done["taskId"])
    assert (told["status"], told["error"]["code"], told["result"]) == ("failed", "erased", None)
    assert "Ozymandias" not in daemon.get(f"{BASE}/tasks").text
    assert daemon.stop() == 0
    kept = [path for path in daemon.home.rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if b"Ozymandias" in path.read_bytes()] == []


@pytest.mark.slow
def test_what_waits_is_erased_before_it_is_begun(tmp_path):
    """An erasure finds the text in a queued task as well, and ends that."""
    with HeldModel() as model, serving(tmp_path, *model.flags) as daemon:
        done = daemon.wait(daemon.remember("The user regrets having met Ramesses"))
        asked = len(model.server.requests)
        model.hold()
        ahead = daemon.remember("The user likes pyramids")
        waiting = daemon.remember("The user regrets having met Ramesses")
        model.wait_until_asked(asked + 1)
        erased = daemon.post(f"{BASE}/erase", {"target": done["taskId"], "yes": True})
        assert erased.json()["status"] == "erased"
        told = daemon.look(waiting)
        assert (told["status"], told["error"]["code"]) == ("failed", "erased")
        model.release()
        assert daemon.wait(ahead)["status"] == "completed"
        assert "Ramesses" not in str(daemon.files())


def test_the_audit_head_grows_with_what_is_done(daemon):
    before = daemon.get(f"{BASE}/audit/head").json()
    daemon.wait(daemon.remember("The user prefers chains to promises"))
    after = daemon.get(f"{BASE}/audit/head").json()
    assert after["records"] > before["records"]
    assert after["head"].startswith(f"{after['records']}:")
    verified = daemon.muniment("audit", "verify")
    assert verified["whole"] is True


def test_the_policy_is_explained_by_the_rule_that_counts(daemon):
    def asked(verb, path):
        return daemon.get(f"{BASE}/policy/explain?verb={verb}&path={path}").json()

    assert asked("create", "user/a.md")["verdict"] == "allow"
    denied = asked("create", "user/pinned/a.md")
    assert (denied["verdict"], denied["rule"]) == ("deny", "pinned")
    assert asked("delete", "user/a.md")["verdict"] == "deny"
    assert asked("create", "../a.md")["rule"] == "path_escape"


def test_an_edit_by_hand_beside_the_daemon_is_seen_by_the_next_task(start_daemon):
    daemon = start_daemon()
    (path,) = daemon.wait(daemon.remember("The user prefers red pens"))["result"]["filesTouched"]
    ours = daemon.root() / path.removeprefix("user/")
    ours.write_text(ours.read_text(encoding="utf-8") + "\nBy hand: blue pens on Sundays.\n", encoding="utf-8")
    removed = daemon.wait(daemon.submit("forget", {"query": "blue pens sundays"}))
    assert [entry["filePath"] for entry in removed["result"]["removedEntries"]] == [path]
    assert not ours.exists()


def test_a_revoked_token_ends_at_once(daemon):
    token = daemon.new_token("revoked")
    assert daemon.get("/healthz", token=token).status_code == 200
    daemon.muniment("token", "revoke", "revoked")
    assert daemon.get("/healthz", token=token).status_code == 401


def test_a_revoked_token_follows_no_more(daemon):
    token, done = daemon.new_token("follower"), threading.Event()

    def be_busy():
        while not done.is_set():
            daemon.wait(daemon.submit("dream", {}))

    busy = threading.Thread(target=be_busy)
    with daemon.follow(token=token) as follower:
        follower.start()
        daemon.muniment("token", "revoke", "follower")
        busy.start()
        try:
            # It ends; what other tests had committed before may still be told.
            assert {event.type for event in follower} <= {"memory_changed"}
        finally:
            done.set()
            busy.join()
