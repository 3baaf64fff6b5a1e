"""A ledger of an older version is opened and nothing is lost; see `facts/ledgers/record.py`.

The expected values are read from the dump by `kit.store.ledgers.RecordedLedger`, which does not use Muniment.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import cycle

import pytest

from kit.catching import catch_error
from kit.cli.commands import run_in_process
from kit.paths import make_path
from kit.server.process import BASE, build_task_path, write_policy
from kit.store.ledgers import RecordedLedger, create_old_memory
from muniment.client import Client
from muniment.errors import (
    AlreadyUndone,
    Erased,
    InvalidScope,
    NotFound,
    PendingReview,
    ReviewChanged,
    ReviewClosed,
    UndoOverlap,
)
from muniment.operations.review import read_content
from muniment.store.review import read_pending
from muniment.testing.scripted_models import ScriptedModel, reply_with_text

HERE = ("user", "project of work")
OTHER = ("other user", "other project")


@pytest.fixture
def old(tmp_path):
    return create_old_memory(tmp_path)


@pytest.fixture
def recording(exit_stack):
    found = RecordedLedger()
    exit_stack.callback(found.close)
    return found


@pytest.fixture
def open_memory(old, open_memory):
    """Return a function that opens the memory in this process; entries never expire, even old ones."""
    lines = {"require": '"none"', "untrusted": '"never"', "max_scope_share": "1.0"}
    policy = write_policy(old.base, **lines)
    return lambda **options: open_memory(policy=policy, in_process=True, **options)


@pytest.fixture
def run_json(old):
    """Return a function that runs a command over the memory and returns its document."""

    def run(*arguments, code=0, stdin=None):
        has_no_workspace = arguments[0] in {"audit", "token"}
        workspace = [] if has_no_workspace else [f"--workspace={old.base / 'work'}"]
        env = {"MUNIMENT_HOME": str(old.home)}
        result = run_in_process([*arguments, *workspace, "--json"], env, stdin)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run


def expected_steps(recording, *roots):
    """Return the history of the dump, newest first."""
    found = []
    for commit, change in recording.list_changes(*roots):
        sides = change["before_digest"], change["after_digest"]
        kind = "new" if sides[0] is None else "removed" if sides[1] is None else "changed"
        of_commit = [commit[name] for name in ("done", "task", "kind", "decided_by", "policy", "undoes")]
        of_file = (change["path"], kind, change["trust"], "erased" in sides)
        found.append((commit["id"], -change["position"], of_commit, *of_file))
    return [each[2:] for each in sorted(found, key=lambda each: each[:2], reverse=True)]


def read_steps(memory, path=None):
    return [
        ([s.at, s.task, s.asked, s.decided_by, s.policy, s.undoes], s.path, s.kind, s.trust, s.is_erased)
        for s in memory.history(path)
    ]


def find_in_state(old, *texts):
    """Return the names of files in the state directory that contain one of `texts`."""
    files = [path for path in (old.home / "state").rglob("*") if path.is_file()]
    return [path.name for path in files if any(text.encode() in path.read_bytes() for text in texts)]


# -- recorded history ----------------------------------------------------------------------------------


def test_recording_covers_every_ledger_feature(recording):
    commits, changes = recording.read_rows("change_set"), list(recording.list_changes(*HERE, *OTHER))
    kinds = {"remember", "forget", "dream", "undo", "edit", "approve", "erase"}
    assert {row["kind"] for row in commits} == kinds
    trusts = {"owner", "workspace", "agent", "external"}
    assert {change["trust"] for _, change in changes} == {*trusts, None}
    assert {row["trust"] for row in recording.read_rows("token")} == trusts
    assert {row["trust"] for row in recording.read_rows("provenance")} == trusts
    assert [row["task"] for row in commits if row["done"] is None] == ["all-applied", "half-applied"]
    assert any(row["notes"] != "[]" for row in commits)
    assert any(not change["path"].isascii() for _, change in changes)
    assert {row["state"] for row in recording.read_rows("review")} == {"pending", "approved", "rejected"}
    statuses = {"queued", "running", "completed", "failed", "cancelled"}
    assert {row["status"] for row in recording.read_rows("task")} == statuses
    records = {"accepted", "approved", "commit", "ended", "erase", "recovery", "rejected", "review", "token"}
    assert {row["kind"] for row in recording.read_rows("record")} == records
    assert {row["type"] for row in recording.read_rows("event")} == {"memory_changed", "task"}
    assert recording.read_rows("forgotten")
    waiting = recording.list_reviews().values()
    assert all(any(each[part] for each in waiting) for part in ("texts", "removals", "claims"))


def test_migration_keeps_copy_of_old_ledger(open_memory, recording, old):
    open_memory()
    (copy,) = (old.home / "state").glob("ledger.db.version-*")
    with closing(sqlite3.connect(copy)) as found:
        assert found.execute("PRAGMA user_version").fetchone() == (recording.version,)
        for table in ("change_set", "change", "provenance", "review", "forgotten", "record", "head", "token"):
            rows = Counter(found.execute(f"SELECT * FROM {table}"))
            assert rows == Counter(tuple(row.values()) for row in recording.read_rows(table)), table


def test_old_history_is_complete_per_memory_and_path(open_memory, recording, old):
    memory = open_memory()
    expected = expected_steps(recording, *HERE)
    assert read_steps(memory) == expected
    for path in {path for _, path, *_ in expected if "erased" not in path}:
        assert read_steps(memory, path) == [each for each in expected if each[1] == path], path
    assert read_steps(open_memory(roots=old.other_roots)) == expected_steps(recording, *OTHER)


def test_old_versions_are_shown_as_committed(open_memory, recording):
    memory, counts = open_memory(), Counter()
    for commit, change in recording.list_changes(*HERE):
        is_erased = "erased" in {change["before_digest"], change["after_digest"]}
        counts["erased" if is_erased else "removed" if change["after"] is None else "kept"] += 1
        if not is_erased:
            assert read_content(memory.context, change["path"], commit["task"]) == change["after"]
    assert min(counts["erased"], counts["removed"], counts["kept"]) > 2


def test_old_erased_entries_are_still_erased(open_memory, old):
    memory, erased = open_memory(), old.recorded["erased"]
    catch_error(Erased, read_content, memory.context, erased["path"], erased["tasks"][0])
    catch_error(Erased, memory.why, erased["path"])
    for task in erased["tasks"]:
        catch_error(Erased, memory.undo, task)


def test_why_reports_old_provenance_of_every_file(open_memory, recording, old):
    memory, states = open_memory(), Counter()
    last = {
        change["path"]: (commit, change)
        for commit, change in recording.list_changes(*HERE)
        if "erased" not in change["rel"]
    }
    files = {f"user/{rel}": data for rel, data in old.read_files("user").items()}
    files |= {f"project/{rel}": data for rel, data in old.read_files("project of work").items()}
    sources = {(row["rel"], row["digest"]): row for row in recording.read_rows("provenance")}
    for path in {*last, *files}:
        why = memory.why(path)
        states[why.state] += 1
        if path not in last:
            assert (why.state, why.task) == ("foreign", None)
            continue
        commit, change = last[path]
        is_unchanged = files.get(path) == change["after"]
        missing_state = "removed" if change["after"] is None else "missing"
        expected = missing_state if path not in files else "committed" if is_unchanged else "edited"
        assert why.state == expected, path
        if is_unchanged and path in files:
            source = sources[change["rel"], change["after_digest"]]
            provenance = (why.request_trust, why.task, why.decided_by, why.policy)
            assert provenance == (source["trust"], source["task"], source["decided_by"], source["policy"])
            assert (why.trust, why.at) == (source["trust"], source["at"])
            (of_task,) = {
                row["fact"] for row in recording.read_rows("change_set") if row["task"] == source["task"]
            }
            assert why.fact == of_task
        else:
            assert why.task == commit["task"]
    assert set(states) == {"committed", "edited", "foreign", "removed", "missing"}


def test_audit_chain_of_old_ledger_is_intact_and_continues(open_memory, recording, old, run_json):
    records = recording.read_rows("record")
    head = old.base / "head"
    head.write_text(f"{records[-1]['seq']}:{records[-1]['mac'].hex()}\n")
    open_memory()
    document = run_json("audit", "verify", f"--head-file={head}")
    assert (document["whole"], document["problems"]) == (True, [])
    assert document["records"] > len(records)  # The migration records its rollbacks.
    records_shown = run_json("audit", "show")["records"][: len(records)]
    bodies = [None if row["body"] is None else json.loads(row["body"]) for row in records]
    assert [(each["kind"], each["task"], each["body"]) for each in records_shown] == [
        (row["kind"], row["task"], body) for row, body in zip(records, bodies, strict=True)
    ]
    assert None in bodies


# -- pending reviews -----------------------------------------------------------------------------------


def test_pending_reviews_are_listed_with_text_and_reasons(open_memory, recording, run_json):
    memory, waiting = open_memory(), recording.list_reviews()
    here = {each: row for each, row in waiting.items() if set(row["roots"].values()) <= set(HERE)}
    document = run_json("review", "list")
    assert document["elsewhere"] == len(waiting) - len(here) > 0
    assert [each["review_id"] for each in document["reviews"]] == [*here]
    for each in document["reviews"]:
        row = here[each["review_id"]]
        expected = (row["at"], row["kind"], row["task"], row["reasons"], [*row["texts"], *row["removals"]])
        assert tuple(each[name] for name in ("at", "kind", "task_id", "reasons", "paths")) == expected
        review = memory.review(row["id"])
        lines = review.text.splitlines()
        assert lines[-1] == f"digest {review.digest}"
        assert all(f"waits because {reason}" in lines for reason in row["reasons"])
        for path, text in row["texts"].items():
            assert any(line.startswith(f"{path} (") and row["trusts"][path] in line for line in lines)
            assert all({f"+ {line}", f"| {line}"} & {*lines} for line in text.decode().splitlines())
        assert all(f"{path} (removed)" in lines for path in row["removals"])
        assert all(any(line.startswith(f"depends on {path}: ") for line in lines) for path in row["claims"])


def test_pending_reviews_normalize_claim_paths(open_memory, recording, old):
    """Old workers wrote paths of claims as `/user/x.md` or `/memories/user/x.md`."""
    with closing(sqlite3.connect(old.home / "state" / "ledger.db")) as ledger:
        for review, row in recording.list_reviews().items():
            proposal = json.loads(row["proposal"])
            for (path, *_), start in zip(proposal["claims"], cycle(("/", "/memories/", "")), strict=False):
                row["proposal"] = row["proposal"].replace(f'["{path}"', f'["{start}{path}"')
            ledger.execute("UPDATE review SET proposal = ? WHERE id = ?", (row["proposal"], review))
        ledger.commit()
    waiting = {each.id: each for each in read_pending(open_memory().context.state)}
    for review, row in recording.list_reviews().items():
        assert [each.path.text for each in waiting[review].change_set.claims] == row["claims"]


def test_pending_review_is_approved_only_with_shown_digest(open_memory, recording, old):
    memory, waiting = open_memory(), recording.list_reviews()
    reviews = [
        old.recorded["reviews"][name] for name in ("instructions", "scope", "lower trust", "of a lane")
    ]
    for review in (*reviews, old.recorded["reviews"]["removal"]):
        row, review_shown = waiting[review], memory.review(review)
        catch_error(ReviewChanged, memory.approve, review, review_shown.digest[::-1])
        catch_error(ReviewChanged, memory.approve, review, row["digest"][::-1])
        assert memory.approve(review, review_shown.digest).task_id == f"approve:{review}"
        for path, text in row["texts"].items():
            assert (
                memory.context.roots[path.partition("/")[0]].root.read_bytes(make_path(*path.split("/", 1)))
                == text
            )
            why = memory.why(path)
            assert (why.state, why.trust, why.asked) == ("committed", row["trusts"][path], "approve")
        assert all(memory.why(path).state == "removed" for path in row["removals"])
        assert memory.history()[0].task == f"approve:{review}"
        catch_error(ReviewClosed, memory.approve, review, review_shown.digest)
        catch_error(ReviewClosed, memory.reject, review)


def test_rejected_review_cannot_be_approved(open_memory, old, run_json):
    memory, review = open_memory(), old.recorded["reviews"]["external"]
    before, digest = old.read_files("project of work"), memory.review(review).digest
    memory.reject(review)
    catch_error(ReviewClosed, memory.approve, review, digest)
    assert old.read_files("project of work") == before
    assert review not in {each["review_id"] for each in run_json("review", "list")["reviews"]}


def test_closed_reviews_stay_closed_without_end_record(open_memory, old):
    memory = open_memory()
    for name in ("approved", "approved, undone", "approved, not closed", "rejected"):
        error = catch_error(ReviewClosed, memory.review, old.recorded["reviews"][name])
        assert name.partition(",")[0] in str(error), name
    catch_error(NotFound, memory.review, old.recorded["reviews"]["erased"])


def test_review_is_bound_to_its_roots(open_memory, old):
    here, review = old.recorded["reviews"]["external"], old.recorded["reviews"]["elsewhere"]
    catch_error(InvalidScope, open_memory().review, review)
    other = open_memory(roots=old.other_roots)
    catch_error(InvalidScope, other.review, here)
    assert other.approve(review, other.review(review).digest).touched_scopes == ("project",)


def test_review_of_changed_file_is_not_approved(open_memory, old):
    memory, review = open_memory(), old.recorded["reviews"]["lower trust"]
    digest = memory.review(review).digest
    memory.undo("light")
    with pytest.raises(Exception, match="changed") as caught:
        memory.approve(review, digest)
    assert caught.value.code == "store_conflict"
    assert memory.review(review).digest == digest


# -- interrupted commits -------------------------------------------------------------------------------


def test_interrupted_commits_are_rolled_back_and_repeatable(open_memory, recording, old):
    interrupted = {commit["task"]: [] for commit, _ in recording.list_changes(*HERE, *OTHER, done=False)}
    for commit, change in recording.list_changes(*HERE, *OTHER, done=False):
        interrupted[commit["task"]].append((change["path"], change["before"]))
    assert (len(interrupted["half-applied"]), len(interrupted["all-applied"])) == (3, 1)
    for task, roots, names in (("half-applied", None, HERE), ("all-applied", old.other_roots, OTHER)):
        assert any(".muniment-" in path for path in old.read_files("user")) == (task == "half-applied")
        memory = open_memory(roots=roots)
        assert any(note.startswith(f"rolled back {task}") for note in memory.context.notes)
        files = {"user": old.read_files(names[0]), "project": old.read_files(names[1])}
        for path, before in interrupted[task]:
            scope, _, rel = path.partition("/")
            assert files[scope].get(rel) == before, path
        assert not [path for each in files.values() for path in each if ".muniment-" in path]
        assert task not in {step.task for step in memory.history()}
        result = memory.remember("The sluice opens at low water", task_id=task)
        assert (result.repeated, memory.history()[0].task) == (False, task)
    assert not (old.roots["user"] / "brandneu").exists()
    assert not (old.roots["other user"] / "half").exists()


def test_committed_task_is_not_committed_twice(open_memory, recording, old):
    memory = open_memory()
    before = read_steps(memory)
    repeated = [
        memory.remember("The user prefers dark mode in all editors", task_id="dark"),
        memory.remember("The garage key hangs behind the kitchen door", task_id="stays"),
        memory.forget("bicycle mender's", task_id="forgotten"),
        memory.dream(task_id="merged"),
    ]
    assert all(each.repeated for each in repeated)
    (first,) = [change for commit, change in recording.list_changes(*HERE) if commit["task"] == "dark"]
    assert repeated[0].files_touched == (first["path"],)
    assert read_steps(memory) == before
    other = open_memory(roots=old.other_roots).remember(
        "The other memory knows the tide table", task_id="other"
    )
    (notes,) = [row["notes"] for row in recording.read_rows("change_set") if row["task"] == "other"]
    assert (other.repeated, [*other.notes]) == (True, json.loads(notes))
    assert other.notes


def test_task_with_pending_review_creates_no_second_review(open_memory, old):
    memory, review = open_memory(), old.recorded["reviews"]["removal"]
    error = catch_error(PendingReview, memory.dream, attended=False, task_id="unattended")
    assert error.review_id == review


# -- undo and erase ------------------------------------------------------------------------------------


def test_undo_restores_original_bytes(open_memory, recording, old):
    memory, approved = open_memory(), f"approve:{old.recorded['reviews']['approved']}"
    for task in ("light", "forgotten", "merged", "item", approved):
        memory.undo(task)
        files = {"user": old.read_files("user"), "project": old.read_files("project of work")}
        for change in [change for commit, change in recording.list_changes(*HERE) if commit["task"] == task]:
            assert files[change["scope"]].get(change["rel"]) == change["before"], task
    catch_error(AlreadyUndone, memory.undo, "taken-back")
    catch_error(AlreadyUndone, memory.undo, f"approve:{old.recorded['reviews']['approved, undone']}")
    (edit, *_) = [row["task"] for row in recording.read_rows("change_set") if row["kind"] == "edit"]
    catch_error(UndoOverlap, memory.undo, edit)  # Its files were changed manually and by a later task.
    catch_error(NotFound, memory.undo, "half-applied")
    memory.undo("undone")  # The undo of this task was undone.


def test_erase_removes_every_trace(open_memory, recording, old, run_json):
    open_memory().close()
    drinks, letters = "user/drinks.md", "project/the-letter-box-is-emptied-at-five.md"
    waiting = recording.list_reviews()[old.recorded["reviews"]["external"]]
    ((path, text),) = waiting["texts"].items()
    texts = ("coffee after lunch", "tea in the morning", "letter box is emptied", "øresund-bridge")
    texts = (*texts, base64.b64encode(text).decode())
    assert all(find_in_state(old, each) for each in texts)
    for target in (drinks, letters, path):
        assert run_json("erase", target, "--yes")["status"] == "erased"
    assert find_in_state(old, *texts) == []
    assert waiting["id"] not in {each["review_id"] for each in run_json("review", "list")["reviews"]}
    for fact in ("The user drinks coffee after lunch", "The letter box is emptied at five"):
        assert run_json("erase", "--verify", "-", stdin=fact)["left"] == {}
    assert run_json("audit", "verify")["whole"]
    assert run_json("why", drinks, code=1)["error"]["code"] == "erased"


def test_dream_does_not_rewrite_erased_facts(open_memory, old, run_json):
    memory = open_memory()
    assert find_in_state(old, *old.recorded["erased"]["texts"]) == []
    for text in old.recorded["erased"]["texts"]:
        assert run_json("erase", "--verify", "-", stdin=text)["left"] == {}
    other_fact = "The boiler of the old mill was mended by the carpenter from Visby. Ask Ann. Ask Ben."
    for number, text in enumerate((*old.recorded["erased"]["texts"], other_fact)):
        fact, *names = text.removesuffix(".").split(". ")
        for name in names:
            path = old.roots["user"] / f"{number} {name}.md"
            path.write_text(f"---\nname: {number} {name}\n---\n{fact}. {name}.\n", encoding="utf-8")

    def merge(request):
        prompt = "".join(message.text for message in request.messages)
        matching = [
            text
            for text in (*old.recorded["erased"]["texts"], other_fact)
            if text.partition(".")[0] in prompt
        ]
        merges = [{"ids": ["c1", "c2"], "keep": "c1", "text": text} for text in matching]
        return reply_with_text(json.dumps({"merges": merges}))

    result = open_memory(model=ScriptedModel([merge] * 9)).dream(scope="user")
    assert result.counts.rewritten == 1
    assert sum("was erased" in note for note in result.notes) == len(old.recorded["erased"]["texts"])
    assert memory.recall("boiler of the old mill").entries
    assert find_in_state(old, *(f"{text}\n" for text in old.recorded["erased"]["texts"])) == []


# -- lanes ---------------------------------------------------------------------------------------------


def has_all_members(old, new):
    """Return whether `new` contains all members of `old`, which had fewer fields."""
    if isinstance(old, dict):
        return all(has_all_members(each, new[name]) for name, each in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(has_all_members, old, new))
    return old == new


def test_old_tokens_work_and_see_their_tasks(old, start_http, recording, run_json):
    listed = {each["name"]: each for each in run_json("token", "list")["tokens"]}
    daemon, tasks = start_http(), {row["id"]: row for row in recording.read_rows("task")}
    for name, each in old.recorded["tokens"].items():
        answer = daemon.send_request("GET", f"{BASE}/tasks", token=each["token"])
        assert (answer.status == 200) == (name in listed), name
        if name in listed:
            assert (listed[name]["trust"], listed[name]["clients"]) == (each["trust"], each["clients"])
    assert set(listed) == {row["name"] for row in recording.read_rows("token")}
    assert daemon.token == old.recorded["token"]
    for task, row in tasks.items():
        if row["status"] in {"queued", "running"} or row["workspace"] != "work":
            continue
        for token in ("owner", *old.recorded["tokens"]):
            token_value = daemon.token if token == "owner" else old.recorded["tokens"][token]["token"]
            answer = daemon.send_request("GET", build_task_path(task), token=token_value)
            is_visible = token in listed and token == row["token"]
            assert (answer.status == 200) == (is_visible or token == "owner"), (token, answer.body)
        for client in old.recorded["tokens"][row["token"]]["clients"] if row["client"] else ():
            token_value, header = (
                old.recorded["tokens"][row["token"]]["token"],
                f"X-Muniment-Client-Id: {client}",
            )
            answer = daemon.send_request("GET", build_task_path(task), header, token=token_value)
            assert (answer.status == 200) == (client == row["client"])
        document = daemon.send_request("GET", build_task_path(task)).json
        assert (document["status"], document["createdAt"]) == (row["status"], row["created"])
        result = {} if row["result"] is None else json.loads(row["result"])
        old_result = {name: value for name, value in result.items() if value is not None}
        assert has_all_members(old_result, document.get("result", {}))
        error = None if row["error"] is None else json.loads(row["error"])["code"]
        assert document.get("error", {}).get("code") == error


def test_queued_tasks_resume_and_committed_one_is_not_repeated(old, start_http, recording, run_json):
    lane = old.recorded["lane"]
    work, work2 = old.base / "work", old.base / "work2"
    daemon = start_http(workspaces=(work, work2))
    commits = [
        change for commit, change in recording.list_changes(*HERE) if commit["task"] == lane["committed"]
    ]
    with (
        Client(daemon.url, token=daemon.token, workspace=work) as here,
        Client(daemon.url, token=daemon.token, workspace=work2) as there,
    ):
        done = here.handle(lane["committed"]).wait(60)
        assert done.files_touched == tuple(change["path"] for change in commits)
        here.handle(lane["queued"]).wait(60)
        (path,) = here.handle(lane["queued, of a client"]).wait(60).files_touched
        assert there.handle(lane["begun"]).wait(60).files_touched
    assert run_json("why", path)["trust"] == "agent"
    tasks = [step["task"] for step in run_json("history")["steps"]]
    assert [tasks.count(lane[name]) for name in ("committed", "queued, of a client")] == [1, 1]


@pytest.mark.usefixtures("old")
def test_old_events_are_streamed_from_the_start(start_http, recording):
    daemon, expected = start_http(), list(recording.list_events("work", *HERE))
    with daemon.follow_events(cursor=daemon.cursor(0)) as follower:
        found = [next(follower) for _ in expected]
    members = ("source", "kind", "status", "attempt", "code")
    assert [
        (each.number, each.type, each.data["taskId"], *map(each.data.get, members)) for each in found
    ] == [(row["number"], row["type"], row["task"], *map(row["data"].get, members)) for row in expected]
    for row, event in zip(expected, found, strict=True):
        assert event.data.get("touchedScopes", []) == row["scopes"]
