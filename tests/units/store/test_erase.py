"""Erasure: no piece of the text is left in the state directory, and everything else is unchanged."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from kit.catching import catch_error
from kit.fleet.engines import both_engines, read_rows
from kit.interleave import act_at_call
from kit.store.bench import STRICT, Claim, make_deadline, make_lax_policy, make_run, propose_new
from kit.store.processes import assert_dies, die
from muniment import errors
from muniment.cancelling import Cancel
from muniment.kernel.change import FileChange, digest
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.root import Root
from muniment.kernel.write import new_token
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.lane_tasks import NewTask, TaskOutcome
from muniment.store import erase as module
from muniment.store import tasks
from muniment.store.audit import read_records, verify
from muniment.store.database import Database
from muniment.store.erase import EraseContext, erase, find_remains, is_erased_text, plan_erasure
from muniment.store.index_upkeep import verify_root_index as verify_index
from muniment.store.ledger import (
    ChangeRow,
    CommitRow,
    begin,
    explain_origin,
    get_root_key,
    read_content_after,
    read_history,
)
from muniment.store.review import read_pending, reject_pending
from muniment.store.state import State
from muniment.store.tasks import Originator, Runs, split_meaningful_parts
from muniment.store.trust import build_constant_rule


def make_secret(size=120):
    """Return random text that shares no piece with other text."""
    return os.urandom(size).hex().encode()


IN_FILES = {"sqlite": {"ledger.db"}, "postgres": set()}
"""The files of the state directory that contain the text of a waiting task."""


@pytest.fixture
def erase_context(store_bench):
    return EraseContext(store_bench.state, store_bench.roots, STRICT, make_deadline())


def find_left(ground, *texts):
    """Return the 16-byte pieces of `texts` that state files or rows contain, by brute force."""
    wanted = {text[at : at + 16] for text in texts for at in range(len(text) - 15)}
    files = [(path.name, path.read_bytes()) for path in ground.state.directory.iterdir()]
    files += read_rows(ground.state)
    return {(name, piece) for name, data in files for piece in wanted if piece in data}


def is_nothing_left(ground, *texts):
    assert find_left(ground, *texts) == set()
    assert verify(ground.state).problems == ()
    return [verify_index(ground.state, root, STRICT).problems for root in ground.roots.values()] == [(), ()]


def commit_versions(ground, path, *versions):
    """Commit one version of `path` after the other, as `task-1` and so on."""
    for number, version in enumerate(versions, 1):
        change = (
            ground.propose_edit(path, version)
            if (ground.base / path).exists()
            else propose_new(path, version)
        )
        ground.commit(change, run=make_run(f"task-{number}"))


def get_scope_key(ground, scope="user"):
    return get_root_key(ground.state, ground.roots[scope])


def read_content(ground, path, task):
    found = canonicalise(path, ground.roots)
    return read_content_after(ground.state, get_scope_key(ground, found.scope), found, task)


@both_engines
def test_all_versions_of_a_file_are_erased_with_their_digests(store_bench, erase_context):
    one, two, three, interrupted_text, other_text = (make_secret() for _ in range(5))
    commit_versions(store_bench, "user/x.md", one, b"short\n", two)
    store_bench.commit(propose_new("user/k.md", other_text), run=make_run("task-k"))
    (store_bench.user / "x.md").write_bytes(three)
    change = FileChange(CanonicalPath("user", "x.md"), None, interrupted_text, trust=Trust.OWNER)
    row = ChangeRow(0, 0, get_scope_key(store_bench), change, digest(interrupted_text))
    begin(
        store_bench.state, CommitRow(0, make_run("task-4"), new_token(), changes=(row,))
    )  # An interrupted commit.
    before = store_bench.read_contents()
    assert find_left(store_bench, one, two)
    receipt = erase("user/x.md", erase_context)
    assert not (store_bench.user / "x.md").exists()
    digests = [digest(text).encode() for text in (one, two, three, b"short\n")]
    assert is_nothing_left(store_bench, one, two, three, interrupted_text, *digests)
    after = store_bench.read_contents()
    assert {path for path in before if before[path] != after.get(path)} == {"user/x.md", "user/MEMORY.md"}
    assert read_content(store_bench, "user/k.md", "task-k") == other_text
    assert (receipt.files, receipt.versions, {"task-1", "task-3"} < {*receipt.tasks}) == (1, 7, True)
    assert [record.body for record in read_records(store_bench.state, task="task-1")] == [None]


def test_text_shared_with_a_remaining_entry_is_kept_for_it(store_bench, erase_context):
    shared, own, other = make_secret(), make_secret(), make_secret()
    entries = propose_new("user/x.md", shared + own), propose_new("user/k.md", b"# K\n" + shared)
    store_bench.commit(*entries, run=make_run("task-0"))
    commit_versions(store_bench, "user/o.md", other + own[50:80], other)
    preview = plan_erasure("user/x.md", erase_context)
    assert (preview.files, preview.others) == (("user/x.md",), ("user/o.md",))
    erase("user/x.md", erase_context)
    assert is_nothing_left(store_bench, own, digest(other + own[50:80]).encode())
    catch_error(errors.Erased, read_content, store_bench, "user/o.md", "task-1")
    assert read_content(store_bench, "user/o.md", "task-2") == other
    assert read_content(store_bench, "user/k.md", "task-0") == b"# K\n" + shared
    assert find_remains(shared, erase_context) == {}
    assert find_left(store_bench, shared)


def test_text_of_an_unreadable_entry_is_kept_for_it(store_bench, erase_context, monkeypatch):
    shared, own = make_secret(), make_secret()
    store_bench.commit(
        propose_new("user/x.md", shared + own),
        propose_new("user/k.md", b"# K\n" + shared),
        run=make_run("task-0"),
    )
    real = Root.read_bytes

    def read_or_fail(self, path, *limit):
        if path.rel == "k.md":
            raise errors.Unreadable("too many files are open")
        return real(self, path, *limit)

    monkeypatch.setattr(Root, "read_bytes", read_or_fail)
    assert plan_erasure("user/x.md", erase_context).others == ()
    erase("user/x.md", erase_context)
    assert read_content(store_bench, "user/k.md", "task-0") == b"# K\n" + shared


@both_engines
def test_pending_reviews_are_erased_by_path_task_and_text(store_bench, erase_context):
    texts, name = [make_secret(), make_secret(), make_secret()], f"user/{make_secret(20).decode()}.md"
    expect_review = partial(
        catch_error, errors.PendingReview, store_bench.commit, trust=build_constant_rule(Trust.EXTERNAL)
    )
    for number, text in enumerate(texts, 1):
        expect_review(propose_new(f"user/w{number}.md", text), run=make_run(f"task-{number}"))
    preview = plan_erasure("user/w1.md", erase_context)
    assert (len(preview.reviews), preview.files) == (1, ())
    assert erase("user/w1.md", erase_context).reviews == erase("task-2", erase_context).reviews == 1
    store_bench.commit(propose_new("user/x.md", texts[2][20:90]))
    assert erase("user/x.md", erase_context).reviews == 1
    assert read_pending(store_bench.state) == ()
    review = expect_review(propose_new(name), run=make_run("task-4")).review_id
    reject_pending(store_bench.state, review, store_bench.roots, make_deadline(), "2026")
    catch_error(errors.NotFound, plan_erasure, name, erase_context)  # No trace of its proposal is left.
    erase("task-4", erase_context)
    assert is_nothing_left(store_bench, *texts, name.encode()[5:])


def test_pending_review_is_no_task_and_cannot_be_erased_as_one(store_bench, erase_context):
    waits = catch_error(
        errors.PendingReview,
        store_bench.commit,
        propose_new("user/x.md"),
        trust=build_constant_rule(Trust.EXTERNAL),
    )
    for attempt in (plan_erasure, erase):
        catch_error(errors.NotFound, attempt, f"review:{waits.review_id}", erase_context)
    assert [each.id for each in read_pending(store_bench.state)] == [waits.review_id]


@both_engines
def test_edited_record_does_not_block_an_erasure(store_bench, erase_context):
    texts = make_secret(), make_secret()
    for number, text in enumerate(texts):
        store_bench.commit(propose_new(f"user/x{number}.md", text), run=make_run(f"task-{number}"))
    store_bench.commit(propose_new("user/y.md"), run=make_run("task-y"))
    edited = {"task-y": f'{{"path": "user/x0.md", {texts[1].decode()}', "task-0": "["}
    with store_bench.state.ledger.transaction() as connection:
        for task, body in edited.items():
            connection.execute("UPDATE record SET body = ? WHERE task = ?", (body, task))
    assert plan_erasure("user/x1.md", erase_context).records == 2
    assert erase("user/x0.md", erase_context).records == 3
    assert find_left(store_bench, texts[0]) == set()


@both_engines
def test_erased_path_is_marked_and_its_notes_are_removed(store_bench, erase_context):
    name, keyed_fact = (
        f"user/{make_secret(20).decode()}.md",
        store_bench.state.compute_keyed_digest("the fact"),
    )
    store_bench.commit(propose_new(name), run=make_run("task-1", fact=keyed_fact))
    with store_bench.state.ledger.transaction() as connection:
        for task, note in (("task-2", f"{name} was changed since"), ("task-3", "the index is behind")):
            store_bench.commit(propose_new(f"user/{task}.md"), run=make_run(task))
            connection.execute("UPDATE change_set SET notes = ? WHERE task = ?", (json.dumps([note]), task))
    erase(name, erase_context)
    assert is_nothing_left(store_bench, name.encode()[5:])
    assert store_bench.state.ledger.rows("SELECT task FROM change_set WHERE notes <> '[]'") == [("task-3",)]
    path = canonicalise(name, store_bench.roots)
    catch_error(errors.Erased, read_content, store_bench, name, "task-1")
    catch_error(
        errors.Erased, explain_origin, store_bench.state, get_scope_key(store_bench), path, None, Trust.OWNER
    )
    steps = read_history(store_bench.state, {get_scope_key(store_bench): "user"}, path)
    assert [(step.asked, step.is_erased) for step in steps] == [("erase", True), ("edit", True)]
    assert name[5:] not in str(steps)
    # A keyed digest of the fact and of the text is kept.
    forgotten = {fact for (fact,) in store_bench.state.ledger.rows("SELECT fact FROM forgotten")}
    assert forgotten == {keyed_fact, store_bench.state.compute_keyed_digest("new")}
    assert store_bench.state.ledger.rows("SELECT fact FROM change_set WHERE task = 'task-1'") == [(None,)]


# Permissions of an erasure.


def test_protected_entry_is_erased_only_by_its_exact_path(store_bench, erase_context):
    (store_bench.user / "pinned").mkdir()
    text = make_secret()
    store_bench.commit(
        propose_new("user/pinned/x.md", text), policy=make_lax_policy(), run=make_run("task-1")
    )
    before = store_bench.take_snapshot()
    catch_error(errors.Refused, erase, "task-1", erase_context)
    assert store_bench.take_snapshot() == before
    erase("user/pinned/x.md", erase_context)
    assert is_nothing_left(store_bench, text)


def test_invalid_target_is_rejected_and_nothing_changes(store_bench, erase_context):
    (store_bench.user / "link.md").symlink_to(store_bench.outside / "secret.md")
    store_bench.commit(propose_new("user/n.md"))
    store_bench.commit(propose_new("project/x.md"), run=make_run("task-1"))
    before, previous_records = store_bench.take_snapshot(), read_records(store_bench.state)
    rows = [
        ("user/MEMORY.md user/index/x.md /user", errors.Refused, "indexes are generated from entries"),
        ("user/none.md task-9", errors.NotFound, None),
        ("user/../x.md /etc/passwd user/link.md", errors.PathEscape, None),
        ("task-1", errors.InvalidScope, "another directory"),
    ]
    for targets, error, words in rows:
        for target, attempt in product(targets.split(), (plan_erasure, erase)):
            catch_error(
                error,
                attempt,
                target,
                replace(erase_context, roots={"user": store_bench.roots["user"]}),
                match=words,
            )
    with Cancel() as cancel:
        cancel.set()
        catch_error(
            errors.Cancelled,
            erase,
            "user/n.md",
            replace(erase_context, deadline=make_deadline(cancel=cancel)),
        )
    assert store_bench.take_snapshot() == before
    assert read_records(store_bench.state) == previous_records


def test_unbound_directories_keep_their_last_known_text(store_bench, erase_context):
    kept, removed = make_secret(), make_secret()
    store_bench.commit(
        propose_new("project/y.md", kept), propose_new("project/z.md", removed), run=make_run("task-1")
    )
    store_bench.commit(removals=[Claim("project/z.md", digest(removed))])
    store_bench.commit(propose_new("user/x.md", kept + removed))
    only_user = replace(erase_context, roots={"user": store_bench.roots["user"]})
    assert plan_erasure("user/x.md", only_user).others == ("project/z.md",)
    erase("user/x.md", only_user)
    assert read_content(store_bench, "project/y.md", "task-1") == kept
    assert find_left(store_bench, removed) == set()


def test_removed_entry_keeps_nothing_and_a_rewrite_is_a_conflict(store_bench, erase_context):
    text = make_secret()
    store_bench.commit(
        propose_new("user/x.md", text), propose_new("user/k.md", text), propose_new("user/y.md")
    )

    with act_at_call(module, "open_view", 1, (store_bench.user / "k.md").unlink, after=True):
        erase("user/x.md", erase_context)
    assert find_left(store_bench, text) == set()
    with act_at_call(
        module, "_remove_files", 1, lambda: (store_bench.user / "y.md").write_bytes(b"again\n"), after=True
    ):
        catch_error(errors.StoreConflict, erase, "user/y.md", erase_context)
    erase("user/y.md", erase_context)
    assert not (store_bench.user / "y.md").exists()


def test_check_names_the_files_that_contain_a_piece(store_bench, erase_context):
    text, backup = make_secret(), store_bench.state.directory / "my-own-backup"
    store_bench.commit(propose_new("user/x.md", text))
    assert find_remains(text, erase_context) == {}  # It is still an entry.
    receipt = erase("user/x.md", erase_context).as_json()
    assert not [word for word in ("x.md", text.decode()[:16], digest(text)) if word in json.dumps(receipt)]
    assert find_remains(text, erase_context) == {}
    for before, content, pieces in ((1 << 20, text[:20], 5), ((1 << 20) - 8, text[:16], 1)):
        backup.write_bytes(b"x" * before + content)
        assert find_remains(text, erase_context) == {"my-own-backup": pieces}
    catch_error(errors.ConfigInvalid, find_remains, b"too short", erase_context, match="at least 16 bytes")


def test_deleted_text_is_scrubbed_from_pages_log_and_catalog(store_bench):
    text = make_secret(2000)
    store_bench.commit(propose_new("user/x.md", text))
    (store_bench.user / "x.md").unlink()
    with store_bench.state.ledger.transaction() as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("UPDATE change SET after = NULL, after_digest = 'erased'")
    assert find_left(store_bench, text)
    module.scrub(store_bench.state)
    assert find_left(store_bench, text) == set()


MODULE_STEPS = (
    "recover_roots",
    "_remove_files",
    "_find_traces",
    "delete_traces",
    "scrub",
    "remove_empty_directories",
    "rebuild_index",
    "EraseResult",
)
STEPS = {
    "truncate_log": Database,
    "remove_copies": State,
    "recreate_catalog": State,
    **dict.fromkeys(MODULE_STEPS, module),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("target", ["user/x.md", "task-1"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_erasure_killed_at_any_step_is_completed_by_a_rerun(store_bench, tmp_path, step, after, target):
    directory, one, two = tmp_path / "state", make_secret(), make_secret()
    with State(directory) as state:
        own_ground = replace(store_bench, state=state)
        own_ground.commit(propose_new("user/x.md", one), run=make_run("task-1"))
        own_ground.commit(own_ground.propose_edit("user/x.md", two))
    shutil.copy(directory / "ledger.db", directory / "ledger.db.version-0")

    def erase_and_die():
        real = getattr(STEPS[step], step)
        setattr(STEPS[step], step, lambda *args, **more: die(after and real(*args, **more)))
        with State(directory) as state:
            erase(target, EraseContext(state, store_bench.roots, STRICT, make_deadline()))

    assert_dies(erase_and_die)
    with State(directory) as state:
        erase(target, EraseContext(state, store_bench.roots, STRICT, make_deadline()))
        assert not (store_bench.user / "x.md").exists()
        assert is_nothing_left(replace(store_bench, state=state), one, two)
        assert state.list_copies() == ()


# Tasks of lanes.

OWNER = Originator("owner")
SHOWN_FIELDS = {"contextMode": "workspace", "scope": "user"}
CLEARED = ("failed", None, None, {"code": "erased"})


@pytest.fixture
def lane(store_bench):
    return Lane(store_bench.state, "w")


def submit_task(lane, content, *, kind="remember"):
    return lane.submit(NewTask(kind, {"content": content}, OWNER, SHOWN_FIELDS)).task


def start_task(lane, content):
    submit_task(lane, content)
    return lane.claim()


def complete_task(lane, summary="saved", *paths, **more):
    result = {"summary": summary, "filesTouched": list(paths), "removedEntries": [{"summary": summary}]}
    return lane.finish(start_task(lane, "x"), TaskOutcome("completed", {**result, **more}))


def read_outcome(lane, task):
    task = lane.get(task.id)
    return (task.status, task.arguments, task.result, task.error)


def read_last_event(ground, task):
    return [event for event in tasks.read_events(ground.state.ledger, 0, 1_000) if event.task == task.id][-1]


@both_engines
def test_every_task_that_contains_the_text_is_cleared(store_bench, erase_context, lane):
    text = make_secret().decode() + '\nÉl toma\nté "verde"\tsin azúcar, 日本のお茶が好きです\n'
    other_lane, writer = Lane(store_bench.state, "elsewhere"), start_task(lane, "x")
    store_bench.commit(propose_new("user/x.md", text.encode()), run=make_run(writer.id))
    lane.finish(writer, TaskOutcome("completed", {"summary": "saved", "filesTouched": ["user/x.md"]}))
    invented = complete_task(lane, later=[{"invented": text}])
    matching = [(lane, writer), (lane, invented), (lane, complete_task(lane, text[-60:]))]
    matching.append((other_lane, complete_task(other_lane, text)))
    assert plan_erasure("user/x.md", erase_context).lane_tasks == 4
    receipt = erase("user/x.md", erase_context)
    assert (receipt.tasks, receipt.lane_tasks) == ((writer.id,), 4)
    assert [read_outcome(*each) for each in matching] == [CLEARED] * 4
    after = lane.get(writer.id)
    assert (after.kind, after.shown, after.seq) == ("remember", SHOWN_FIELDS, writer.seq)
    assert (
        read_last_event(store_bench, invented).data["status"] == "completed"
    )  # A finished task gets no event.
    assert find_left(store_bench, text.encode()[:240]) == set()
    assert find_remains(text.encode(), erase_context) == {}
    assert verify(store_bench.state).problems == ()


def test_waiting_task_with_the_text_fails_and_others_still_wait(store_bench, erase_context, lane):
    text, fact = make_secret().decode(), store_bench.state.compute_keyed_digest("likes tea")
    store_bench.commit(propose_new("user/x.md", f"# X\n{text}\n".encode()), run=make_run(fact=fact))
    first = submit_task(lane, "The user drinks tea")
    matching = submit_task(lane, f"The page says {text[8:40]}", kind="forget")
    short = submit_task(lane, " likes tea\n")  # Shorter than any searched piece: it is found by its digest.
    last = submit_task(lane, "likes teas", kind="forget")
    erase("user/x.md", erase_context)
    assert read_outcome(lane, matching) == read_outcome(lane, short) == CLEARED
    assert lane.get(matching.id).updated > matching.updated
    event = read_last_event(store_bench, matching)
    assert (event.type, event.workspace, event.token, event.client) == ("task", "w", "owner", None)
    assert event.data == {"kind": "forget", "status": "failed", "attempt": 0, "code": "erased"}
    pending_now = lane_tasks.count_pending(store_bench.state.ledger, lane.workspace)
    assert (lane.claim().id, pending_now) == (first.id, {"remember": 1, "forget": 1})
    assert lane.get(last.id) == last
    assert find_left(store_bench, text.encode()) == set()


WORDS = ["user", "workspace", "remember", "content", "summary", "saved", "rules", "reference", "user/k.md"]
OTHER_NAMES = ["superuser/x.md", "user/x.mdx", "user/x.md/y.md", "project/user/x.md", "user/x.md-2.md"]


def test_common_words_and_similar_names_erase_no_task(store_bench, erase_context, lane):
    """Names of fields, fixed words, scopes and paths are not text of the entry."""
    removed = {"topic": "reference", "summary": "tea", "filePath": "user/k.md"}
    result = {"removedEntries": [removed], "touchedTopics": ["reference"], "touchedScopes": ["user"]}
    remaining = [
        complete_task(lane, text, "user/k.md", **result, decidedBy="rules") for text in ("saved it", "")
    ]
    for other in OTHER_NAMES:
        remaining += [complete_task(lane, f"filed {other}, as asked"), complete_task(lane, "filed", other)]
        conflict = TaskOutcome("failed", error={"code": "store_conflict", "paths": [other]})
        remaining.append(lane.finish(start_task(lane, "x"), conflict))
    cancelled = submit_task(lane, "about user/x.md")
    lane.cancel(cancelled.id, OWNER)
    arguments = {"content": "The user drinks tea", "scope": "user", "context": "workspace"}
    remaining += [
        lane.get(cancelled.id),
        lane.submit(NewTask("remember", arguments, OWNER, SHOWN_FIELDS)).task,
    ]
    store_bench.commit(propose_new("user/x.md", b"---\nname: Nothing yet\n---\n"), run=make_run(cancelled.id))
    words = [propose_new(f"user/{number}.md", word.encode()) for number, word in enumerate(WORDS)]
    store_bench.commit(*words, run=make_run("words"))
    for target in ("user/x.md", "words"):
        assert erase(target, erase_context).lane_tasks == 0
        assert [lane.get(each.id) for each in remaining] == remaining
        assert target != "user/x.md" or store_bench.state.ledger.rows("SELECT fact FROM forgotten") == []
    assert not is_erased_text(store_bench.state, "")


@both_engines
@pytest.mark.parametrize("when", ["before", "while it is removed"])
def test_running_task_with_the_text_must_end_first(store_bench, erase_context, lane, monkeypatch, when):
    text, real = make_secret(), module._remove_files
    store_bench.commit(propose_new("user/x.md", text), run=make_run("task-1"))
    running = (start_task if when == "before" else submit_task)(lane, text.decode())
    monkeypatch.setattr(module, "_remove_files", lambda *args, **more: (lane.claim(), real(*args, **more))[1])
    before = store_bench.read_contents(), read_records(store_bench.state)
    assert plan_erasure("user/x.md", erase_context).lane_tasks == 1
    catch_error(
        errors.DeadlineExceeded,
        erase,
        "user/x.md",
        erase_context,
        match=f"{running.id} is running and contains the text",
    )
    assert when != "before" or (store_bench.read_contents(), read_records(store_bench.state)) == before
    assert lane.get(running.id).arguments == {"content": text.decode()}
    lane.finish(lane.get(running.id), TaskOutcome("failed", error={"code": "remember_failed"}))
    erase("user/x.md", erase_context)
    assert find_left(store_bench, text) == set()


@both_engines
def test_task_without_a_commit_is_erased_by_its_id(engine, store_bench, erase_context, lane):
    """Every character of the second text is an escape, so the file contains none of its bytes."""
    for text in (make_secret(), "日本のお茶が好きです、毎朝飲みます".encode()):
        task = submit_task(lane, text.decode())
        assert plan_erasure(task.id, erase_context).lane_tasks == 1
        assert {name.partition("-")[0] for name in find_remains(text, erase_context)} == IN_FILES[engine]
        erase(task.id, erase_context)
        assert read_outcome(lane, task) == CLEARED
        assert find_remains(text, erase_context) == {}
        assert erase(task.id, erase_context).lane_tasks == 0  # Nothing is left to clear.
        assert read_records(store_bench.state, task=task.id)[0].body is None


def test_damaged_or_moved_transcript_is_read_as_far_as_possible(store_bench, tmp_path):
    text_piece = "sixteen bytes and more"
    runs, index = Runs([text_piece.encode()]), store_bench.state.directory / tasks.TRANSCRIPTS_NAME
    calls = [{"tool": "x", "arguments": {"n": 1, "deep": [text_piece]}}]
    texts = {
        "cut": '{"from": "user", "text": "sixteen bytes and mo',
        "deep": json.dumps({"from": "assistant", "calls": calls}) + "\n",
        "kept": '{"from": "user", "text": "something else is said"}\n',
        "moved": f"{text_piece}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text('{"from": "system", "text": "x"}\n' + text)
        tasks.record_transcript(store_bench.state, f"task-{name}", tmp_path / name)
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    assert [tasks.delete_transcripts(store_bench.state, (), runs) for _ in range(2)] == [2, 0]
    assert {name for name in (*texts, "elsewhere") if (tmp_path / name).exists()} == {"kept", "elsewhere"}
    assert tasks.delete_transcripts(store_bench.state, ["task-kept"], Runs(())) == 1
    assert (index.read_text(), stat.S_IMODE(index.stat().st_mode)) == ("", 0o600)


def test_only_meaningful_parts_of_an_entry_count():
    provenance = b'muniment: {"id": "01", "trust": "owner"}\n---\nThe body.\n'
    entry = b'---\nname: A name\ndescription: "What \\u00e9"\nkeywords: [one, two]\ntype: reference\n%s'
    assert list(split_meaningful_parts(entry % provenance)) == [
        b"The body.\n",
        b"A name",
        "What é".encode(),
        b"one",
        b"two",
    ]
    for text, expected in ((b"only text\n", None), (b"\xff\xfe no text", None), (b"", [b""])):
        assert list(split_meaningful_parts(text)) == (expected or [text])
