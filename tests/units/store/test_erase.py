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

from kit.fleet.engines import over_both, rows_of
from kit.meanwhile import nth
from kit.raising import raised
from kit.store.ground import STRICT, Claim, by, lax, new, patience
from kit.store.processes import die, killed
from muniment import errors
from muniment.cancelling import Cancel
from muniment.kernel.change import FileChange, digest
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.root import Root
from muniment.kernel.write import new_token
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.lane_tasks import Ended, NewTask
from muniment.store import erase as module
from muniment.store import tasks
from muniment.store.audit import records, verify
from muniment.store.database import Database
from muniment.store.erase import EraseGround, erase, is_forgotten, left_over, plan
from muniment.store.ledger import ChangeRow, CommitRow, begin, content_at, history, root_key, why
from muniment.store.review import pending, turn_down
from muniment.store.state import State
from muniment.store.tasks import Originator, Runs, telling
from muniment.store.trust import constant
from muniment.store.upkeep import verify as verify_index


def make_secret(size=120):
    """Return random text that shares no piece with other text."""
    return os.urandom(size).hex().encode()


IN_FILES = {"sqlite": {"ledger.db"}, "postgres": set()}
"""The files of the state directory that contain the text of a waiting task."""


@pytest.fixture
def erase_context(ground):
    return EraseGround(ground.state, ground.roots, STRICT, patience())


def find_left(ground, *texts):
    """Return the 16-byte pieces of `texts` that state files or rows contain, by brute force."""
    wanted = {text[at : at + 16] for text in texts for at in range(len(text) - 15)}
    files = [(path.name, path.read_bytes()) for path in ground.state.directory.iterdir()]
    files += rows_of(ground.state)
    return {(name, piece) for name, data in files for piece in wanted if piece in data}


def is_nothing_left(ground, *texts):
    assert find_left(ground, *texts) == set()
    assert verify(ground.state).problems == ()
    return [verify_index(ground.state, root, STRICT).problems for root in ground.roots.values()] == [(), ()]


def commit_versions(ground, path, *versions):
    """Commit one version of `path` after the other, as `task-1` and so on."""
    for number, version in enumerate(versions, 1):
        change = ground.edit(path, version) if (ground.base / path).exists() else new(path, version)
        ground.commit(change, run=by(f"task-{number}"))


def get_root_key(ground, scope="user"):
    return root_key(ground.state, ground.roots[scope])


def read_content(ground, path, task):
    found = canonicalise(path, ground.roots)
    return content_at(ground.state, get_root_key(ground, found.scope), found, task)


@over_both
def test_all_versions_of_a_file_are_erased_with_their_digests(ground, erase_context):
    one, two, three, interrupted_text, other_text = (make_secret() for _ in range(5))
    commit_versions(ground, "user/x.md", one, b"short\n", two)
    ground.commit(new("user/k.md", other_text), run=by("task-k"))
    (ground.user / "x.md").write_bytes(three)
    change = FileChange(CanonicalPath("user", "x.md"), None, interrupted_text, trust=Trust.OWNER)
    row = ChangeRow(0, 0, get_root_key(ground), change, digest(interrupted_text))
    begin(ground.state, CommitRow(0, by("task-4"), new_token(), changes=(row,)))  # An interrupted commit.
    before = ground.contents()
    assert find_left(ground, one, two)
    receipt = erase("user/x.md", erase_context)
    assert not (ground.user / "x.md").exists()
    digests = [digest(text).encode() for text in (one, two, three, b"short\n")]
    assert is_nothing_left(ground, one, two, three, interrupted_text, *digests)
    after = ground.contents()
    assert {path for path in before if before[path] != after.get(path)} == {"user/x.md", "user/MEMORY.md"}
    assert read_content(ground, "user/k.md", "task-k") == other_text
    assert (receipt.files, receipt.versions, {"task-1", "task-3"} < {*receipt.tasks}) == (1, 7, True)
    assert [record.body for record in records(ground.state, task="task-1")] == [None]


def test_text_shared_with_a_remaining_entry_is_kept_for_it(ground, erase_context):
    shared, own, other = make_secret(), make_secret(), make_secret()
    entries = new("user/x.md", shared + own), new("user/k.md", b"# K\n" + shared)
    ground.commit(*entries, run=by("task-0"))
    commit_versions(ground, "user/o.md", other + own[50:80], other)
    preview = plan("user/x.md", erase_context)
    assert (preview.files, preview.others) == (("user/x.md",), ("user/o.md",))
    erase("user/x.md", erase_context)
    assert is_nothing_left(ground, own, digest(other + own[50:80]).encode())
    raised(errors.Erased, read_content, ground, "user/o.md", "task-1")
    assert read_content(ground, "user/o.md", "task-2") == other
    assert read_content(ground, "user/k.md", "task-0") == b"# K\n" + shared
    assert left_over(shared, erase_context) == {}
    assert find_left(ground, shared)


def test_text_of_an_unreadable_entry_is_kept_for_it(ground, erase_context, monkeypatch):
    shared, own = make_secret(), make_secret()
    ground.commit(new("user/x.md", shared + own), new("user/k.md", b"# K\n" + shared), run=by("task-0"))
    real = Root.read_bytes

    def read_or_fail(self, path, *limit):
        if path.rel == "k.md":
            raise errors.Unreadable("too many files are open")
        return real(self, path, *limit)

    monkeypatch.setattr(Root, "read_bytes", read_or_fail)
    assert plan("user/x.md", erase_context).others == ()
    erase("user/x.md", erase_context)
    assert read_content(ground, "user/k.md", "task-0") == b"# K\n" + shared


@over_both
def test_pending_reviews_are_erased_by_path_task_and_text(ground, erase_context):
    texts, name = [make_secret(), make_secret(), make_secret()], f"user/{make_secret(20).decode()}.md"
    expect_review = partial(raised, errors.PendingReview, ground.commit, trust=constant(Trust.EXTERNAL))
    for number, text in enumerate(texts, 1):
        expect_review(new(f"user/w{number}.md", text), run=by(f"task-{number}"))
    preview = plan("user/w1.md", erase_context)
    assert (len(preview.reviews), preview.files) == (1, ())
    assert erase("user/w1.md", erase_context).reviews == erase("task-2", erase_context).reviews == 1
    ground.commit(new("user/x.md", texts[2][20:90]))
    assert erase("user/x.md", erase_context).reviews == 1
    assert pending(ground.state) == ()
    review = expect_review(new(name), run=by("task-4")).review_id
    turn_down(ground.state, review, ground.roots, patience(), "2026")
    raised(errors.NotFound, plan, name, erase_context)  # No trace of its proposal is left.
    erase("task-4", erase_context)
    assert is_nothing_left(ground, *texts, name.encode()[5:])


def test_pending_review_is_no_task_and_cannot_be_erased_as_one(ground, erase_context):
    waits = raised(errors.PendingReview, ground.commit, new("user/x.md"), trust=constant(Trust.EXTERNAL))
    for attempt in (plan, erase):
        raised(errors.NotFound, attempt, f"review:{waits.review_id}", erase_context)
    assert [each.id for each in pending(ground.state)] == [waits.review_id]


@over_both
def test_edited_record_does_not_block_an_erasure(ground, erase_context):
    texts = make_secret(), make_secret()
    for number, text in enumerate(texts):
        ground.commit(new(f"user/x{number}.md", text), run=by(f"task-{number}"))
    ground.commit(new("user/y.md"), run=by("task-y"))
    edited = {"task-y": f'{{"path": "user/x0.md", {texts[1].decode()}', "task-0": "["}
    with ground.state.ledger.transaction() as connection:
        for task, body in edited.items():
            connection.execute("UPDATE record SET body = ? WHERE task = ?", (body, task))
    assert plan("user/x1.md", erase_context).records == 2
    assert erase("user/x0.md", erase_context).records == 3
    assert find_left(ground, texts[0]) == set()


@over_both
def test_erased_path_is_marked_and_its_notes_are_removed(ground, erase_context):
    name, keyed_fact = f"user/{make_secret(20).decode()}.md", ground.state.keyed("the fact")
    ground.commit(new(name), run=by("task-1", fact=keyed_fact))
    with ground.state.ledger.transaction() as connection:
        for task, note in (("task-2", f"{name} was changed since"), ("task-3", "the index is behind")):
            ground.commit(new(f"user/{task}.md"), run=by(task))
            connection.execute("UPDATE change_set SET notes = ? WHERE task = ?", (json.dumps([note]), task))
    erase(name, erase_context)
    assert is_nothing_left(ground, name.encode()[5:])
    assert ground.state.ledger.rows("SELECT task FROM change_set WHERE notes <> '[]'") == [("task-3",)]
    path = canonicalise(name, ground.roots)
    raised(errors.Erased, read_content, ground, name, "task-1")
    raised(errors.Erased, why, ground.state, get_root_key(ground), path, None, Trust.OWNER)
    steps = history(ground.state, {get_root_key(ground): "user"}, path)
    assert [(step.asked, step.is_erased) for step in steps] == [("erase", True), ("edit", True)]
    assert name[5:] not in str(steps)
    # A keyed digest of the fact and of the text is kept.
    forgotten = {fact for (fact,) in ground.state.ledger.rows("SELECT fact FROM forgotten")}
    assert forgotten == {keyed_fact, ground.state.keyed("new")}
    assert ground.state.ledger.rows("SELECT fact FROM change_set WHERE task = 'task-1'") == [(None,)]


# Permissions of an erasure.


def test_protected_entry_is_erased_only_by_its_exact_path(ground, erase_context):
    (ground.user / "pinned").mkdir()
    text = make_secret()
    ground.commit(new("user/pinned/x.md", text), policy=lax(), run=by("task-1"))
    before = ground.photograph()
    raised(errors.Refused, erase, "task-1", erase_context)
    assert ground.photograph() == before
    erase("user/pinned/x.md", erase_context)
    assert is_nothing_left(ground, text)


def test_invalid_target_is_rejected_and_nothing_changes(ground, erase_context):
    (ground.user / "link.md").symlink_to(ground.outside / "secret.md")
    ground.commit(new("user/n.md"))
    ground.commit(new("project/x.md"), run=by("task-1"))
    before, previous_records = ground.photograph(), records(ground.state)
    rows = [
        ("user/MEMORY.md user/index/x.md /user", errors.Refused, "indexes are generated from entries"),
        ("user/none.md task-9", errors.NotFound, None),
        ("user/../x.md /etc/passwd user/link.md", errors.PathEscape, None),
        ("task-1", errors.InvalidScope, "another directory"),
    ]
    for targets, error, words in rows:
        for target, attempt in product(targets.split(), (plan, erase)):
            raised(
                error,
                attempt,
                target,
                replace(erase_context, roots={"user": ground.roots["user"]}),
                match=words,
            )
    with Cancel() as cancel:
        cancel.set()
        raised(errors.Cancelled, erase, "user/n.md", replace(erase_context, patience=patience(cancel=cancel)))
    assert ground.photograph() == before
    assert records(ground.state) == previous_records


def test_unbound_directories_keep_their_last_known_text(ground, erase_context):
    kept, removed = make_secret(), make_secret()
    ground.commit(new("project/y.md", kept), new("project/z.md", removed), run=by("task-1"))
    ground.commit(removals=[Claim("project/z.md", digest(removed))])
    ground.commit(new("user/x.md", kept + removed))
    only_user = replace(erase_context, roots={"user": ground.roots["user"]})
    assert plan("user/x.md", only_user).others == ("project/z.md",)
    erase("user/x.md", only_user)
    assert read_content(ground, "project/y.md", "task-1") == kept
    assert find_left(ground, removed) == set()


def test_removed_entry_keeps_nothing_and_a_rewrite_is_a_conflict(ground, erase_context):
    text = make_secret()
    ground.commit(new("user/x.md", text), new("user/k.md", text), new("user/y.md"))

    with nth(module, "view_of", 1, (ground.user / "k.md").unlink, after=True):
        erase("user/x.md", erase_context)
    assert find_left(ground, text) == set()
    with nth(module, "_remove", 1, lambda: (ground.user / "y.md").write_bytes(b"again\n"), after=True):
        raised(errors.StoreConflict, erase, "user/y.md", erase_context)
    erase("user/y.md", erase_context)
    assert not (ground.user / "y.md").exists()


def test_check_names_the_files_that_contain_a_piece(ground, erase_context):
    text, backup = make_secret(), ground.state.directory / "my-own-backup"
    ground.commit(new("user/x.md", text))
    assert left_over(text, erase_context) == {}  # It is still an entry.
    receipt = erase("user/x.md", erase_context).as_json()
    assert not [word for word in ("x.md", text.decode()[:16], digest(text)) if word in json.dumps(receipt)]
    assert left_over(text, erase_context) == {}
    for before, content, pieces in ((1 << 20, text[:20], 5), ((1 << 20) - 8, text[:16], 1)):
        backup.write_bytes(b"x" * before + content)
        assert left_over(text, erase_context) == {"my-own-backup": pieces}
    raised(errors.ConfigInvalid, left_over, b"too short", erase_context, match="fewer than 16 bytes")


def test_deleted_text_is_scrubbed_from_pages_log_and_catalog(ground):
    text = make_secret(2000)
    ground.commit(new("user/x.md", text))
    (ground.user / "x.md").unlink()
    with ground.state.ledger.transaction() as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("UPDATE change SET after = NULL, after_digest = 'erased'")
    assert find_left(ground, text)
    module.scrub(ground.state)
    assert find_left(ground, text) == set()


MODULE_STEPS = (
    "recover_all",
    "_remove",
    "_search",
    "drop",
    "scrub",
    "remove_emptied",
    "rebuild",
    "EraseResult",
)
STEPS = {
    "drain": Database,
    "remove_copies": State,
    "renew_catalog": State,
    **dict.fromkeys(MODULE_STEPS, module),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("target", ["user/x.md", "task-1"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_erasure_killed_at_any_step_is_completed_by_a_rerun(ground, tmp_path, step, after, target):
    directory, one, two = tmp_path / "state", make_secret(), make_secret()
    with State(directory) as state:
        own_ground = replace(ground, state=state)
        own_ground.commit(new("user/x.md", one), run=by("task-1"))
        own_ground.commit(own_ground.edit("user/x.md", two))
    shutil.copy(directory / "ledger.db", directory / "ledger.db.version-0")

    def erase_and_die():
        real = getattr(STEPS[step], step)
        setattr(STEPS[step], step, lambda *args, **more: die(after and real(*args, **more)))
        with State(directory) as state:
            erase(target, EraseGround(state, ground.roots, STRICT, patience()))

    killed(erase_and_die)
    with State(directory) as state:
        erase(target, EraseGround(state, ground.roots, STRICT, patience()))
        assert not (ground.user / "x.md").exists()
        assert is_nothing_left(replace(ground, state=state), one, two)
        assert state.copies() == ()


# Tasks of lanes.

OWNER = Originator("owner")
SHOWN_FIELDS = {"contextMode": "workspace", "scope": "user"}
CLEARED = ("failed", None, None, {"code": "erased"})


@pytest.fixture
def lane(ground):
    return Lane(ground.state, "w")


def submit_task(lane, content, *, kind="remember"):
    return lane.submit(NewTask(kind, {"content": content}, OWNER, SHOWN_FIELDS)).task


def start_task(lane, content):
    submit_task(lane, content)
    return lane.claim()


def complete_task(lane, summary="saved", *paths, **more):
    result = {"summary": summary, "filesTouched": list(paths), "removedEntries": [{"summary": summary}]}
    return lane.finish(start_task(lane, "x"), Ended("completed", {**result, **more}))


def read_outcome(lane, task):
    task = lane.get(task.id)
    return (task.status, task.arguments, task.result, task.error)


def read_last_event(ground, task):
    return [event for event in tasks.read(ground.state.ledger, 0, 1_000) if event.task == task.id][-1]


@over_both
def test_every_task_that_contains_the_text_is_cleared(ground, erase_context, lane):
    text = make_secret().decode() + '\nÉl toma\nté "verde"\tsin azúcar, 日本のお茶が好きです\n'
    other_lane, writer = Lane(ground.state, "elsewhere"), start_task(lane, "x")
    ground.commit(new("user/x.md", text.encode()), run=by(writer.id))
    lane.finish(writer, Ended("completed", {"summary": "saved", "filesTouched": ["user/x.md"]}))
    invented = complete_task(lane, later=[{"invented": text}])
    matching = [(lane, writer), (lane, invented), (lane, complete_task(lane, text[-60:]))]
    matching.append((other_lane, complete_task(other_lane, text)))
    assert plan("user/x.md", erase_context).lane_tasks == 4
    receipt = erase("user/x.md", erase_context)
    assert (receipt.tasks, receipt.lane_tasks) == ((writer.id,), 4)
    assert [read_outcome(*each) for each in matching] == [CLEARED] * 4
    after = lane.get(writer.id)
    assert (after.kind, after.shown, after.seq) == ("remember", SHOWN_FIELDS, writer.seq)
    assert read_last_event(ground, invented).data["status"] == "completed"  # A finished task gets no event.
    assert find_left(ground, text.encode()[:240]) == set()
    assert left_over(text.encode(), erase_context) == {}
    assert verify(ground.state).problems == ()


def test_waiting_task_with_the_text_fails_and_others_still_wait(ground, erase_context, lane):
    text, fact = make_secret().decode(), ground.state.keyed("likes tea")
    ground.commit(new("user/x.md", f"# X\n{text}\n".encode()), run=by(fact=fact))
    first = submit_task(lane, "The user drinks tea")
    matching = submit_task(lane, f"The page says {text[8:40]}", kind="forget")
    short = submit_task(lane, " likes tea\n")  # Shorter than any searched piece: it is found by its digest.
    last = submit_task(lane, "likes teas", kind="forget")
    erase("user/x.md", erase_context)
    assert read_outcome(lane, matching) == read_outcome(lane, short) == CLEARED
    assert lane.get(matching.id).updated > matching.updated
    event = read_last_event(ground, matching)
    assert (event.type, event.workspace, event.token, event.client) == ("task", "w", "owner", None)
    assert event.data == {"kind": "forget", "status": "failed", "attempt": 0, "code": "erased"}
    pending_now = lane_tasks.count_pending(ground.state.ledger, lane.workspace)
    assert (lane.claim().id, pending_now) == (first.id, {"remember": 1, "forget": 1})
    assert lane.get(last.id) == last
    assert find_left(ground, text.encode()) == set()


WORDS = ["user", "workspace", "remember", "content", "summary", "saved", "rules", "reference", "user/k.md"]
OTHER_NAMES = ["superuser/x.md", "user/x.mdx", "user/x.md/y.md", "project/user/x.md", "user/x.md-2.md"]


def test_common_words_and_similar_names_erase_no_task(ground, erase_context, lane):
    """Names of fields, fixed words, scopes and paths are not text of the entry."""
    removed = {"topic": "reference", "summary": "tea", "filePath": "user/k.md"}
    result = {"removedEntries": [removed], "touchedTopics": ["reference"], "touchedScopes": ["user"]}
    remaining = [
        complete_task(lane, text, "user/k.md", **result, decidedBy="rules") for text in ("saved it", "")
    ]
    for other in OTHER_NAMES:
        remaining += [complete_task(lane, f"filed {other}, as asked"), complete_task(lane, "filed", other)]
        conflict = Ended("failed", error={"code": "store_conflict", "paths": [other]})
        remaining.append(lane.finish(start_task(lane, "x"), conflict))
    cancelled = submit_task(lane, "about user/x.md")
    lane.cancel(cancelled.id, OWNER)
    arguments = {"content": "The user drinks tea", "scope": "user", "context": "workspace"}
    remaining += [
        lane.get(cancelled.id),
        lane.submit(NewTask("remember", arguments, OWNER, SHOWN_FIELDS)).task,
    ]
    ground.commit(new("user/x.md", b"---\nname: Nothing yet\n---\n"), run=by(cancelled.id))
    words = [new(f"user/{number}.md", word.encode()) for number, word in enumerate(WORDS)]
    ground.commit(*words, run=by("words"))
    for target in ("user/x.md", "words"):
        assert erase(target, erase_context).lane_tasks == 0
        assert [lane.get(each.id) for each in remaining] == remaining
        assert target != "user/x.md" or ground.state.ledger.rows("SELECT fact FROM forgotten") == []
    assert not is_forgotten(ground.state, "")


@over_both
@pytest.mark.parametrize("when", ["before", "while it is removed"])
def test_running_task_with_the_text_must_end_first(ground, erase_context, lane, monkeypatch, when):
    text, real = make_secret(), module._remove
    ground.commit(new("user/x.md", text), run=by("task-1"))
    running = (start_task if when == "before" else submit_task)(lane, text.decode())
    monkeypatch.setattr(module, "_remove", lambda *args, **more: (lane.claim(), real(*args, **more))[1])
    before = ground.contents(), records(ground.state)
    assert plan("user/x.md", erase_context).lane_tasks == 1
    raised(
        errors.DeadlineExceeded,
        erase,
        "user/x.md",
        erase_context,
        match=f"{running.id} is running and contains the text",
    )
    assert when != "before" or (ground.contents(), records(ground.state)) == before
    assert lane.get(running.id).arguments == {"content": text.decode()}
    lane.finish(lane.get(running.id), Ended("failed", error={"code": "remember_failed"}))
    erase("user/x.md", erase_context)
    assert find_left(ground, text) == set()


@over_both
def test_task_without_a_commit_is_erased_by_its_id(engine, ground, erase_context, lane):
    """Every character of the second text is an escape, so the file contains none of its bytes."""
    for text in (make_secret(), "日本のお茶が好きです、毎朝飲みます".encode()):
        task = submit_task(lane, text.decode())
        assert plan(task.id, erase_context).lane_tasks == 1
        assert {name.partition("-")[0] for name in left_over(text, erase_context)} == IN_FILES[engine]
        erase(task.id, erase_context)
        assert read_outcome(lane, task) == CLEARED
        assert left_over(text, erase_context) == {}
        assert erase(task.id, erase_context).lane_tasks == 0  # Nothing is left to clear.
        assert records(ground.state, task=task.id)[0].body is None


def test_damaged_or_moved_transcript_is_read_as_far_as_possible(ground, tmp_path):
    text_piece = "sixteen bytes and more"
    runs, index = Runs([text_piece.encode()]), ground.state.directory / tasks.NAME
    calls = [{"tool": "x", "arguments": {"n": 1, "deep": [text_piece]}}]
    texts = {
        "cut": '{"from": "user", "text": "sixteen bytes and mo',
        "deep": json.dumps({"from": "assistant", "calls": calls}) + "\n",
        "kept": '{"from": "user", "text": "something else is said"}\n',
        "moved": f"{text_piece}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text('{"from": "system", "text": "x"}\n' + text)
        tasks.note(ground.state, f"task-{name}", tmp_path / name)
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    assert [tasks.remove_telling(ground.state, (), runs) for _ in range(2)] == [2, 0]
    assert {name for name in (*texts, "elsewhere") if (tmp_path / name).exists()} == {"kept", "elsewhere"}
    assert tasks.remove_telling(ground.state, ["task-kept"], Runs(())) == 1
    assert (index.read_text(), stat.S_IMODE(index.stat().st_mode)) == ("", 0o600)


def test_only_meaningful_parts_of_an_entry_count():
    provenance = b'muniment: {"id": "01", "trust": "owner"}\n---\nThe body.\n'
    entry = b'---\nname: A name\ndescription: "What \\u00e9"\nkeywords: [one, two]\ntype: reference\n%s'
    assert list(telling(entry % provenance)) == [b"The body.\n", b"A name", "What é".encode(), b"one", b"two"]
    for text, expected in ((b"only text\n", None), (b"\xff\xfe no text", None), (b"", [b""])):
        assert list(telling(text)) == (expected or [text])
