"""Erasure: no piece of the text is left in any file of the state directory, and all the rest is as it was."""

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


def secret(size=120):
    """Random text that no other text holds a piece of."""
    return os.urandom(size).hex().encode()


IN_FILES = {"sqlite": {"ledger.db"}, "postgres": set()}
"""Where the text of a task that waits stands, of the files of the state directory."""


@pytest.fixture
def where(ground):
    return EraseGround(ground.state, ground.roots, STRICT, patience())


def left_in(ground, *texts):
    """Pieces of 16 bytes of `texts` in the files of the state directory or in rows, by trying all of them."""
    wanted = {text[at : at + 16] for text in texts for at in range(len(text) - 15)}
    files = [(path.name, path.read_bytes()) for path in ground.state.directory.iterdir()]
    files += rows_of(ground.state)
    return {(name, piece) for name, data in files for piece in wanted if piece in data}


def nothing_left(ground, *texts):
    assert left_in(ground, *texts) == set()
    assert verify(ground.state).problems == ()
    return [verify_index(ground.state, root, STRICT).problems for root in ground.roots.values()] == [(), ()]


def committed(ground, path, *versions):
    """`path` with one version after the other, by `task-1` and so on."""
    for number, version in enumerate(versions, 1):
        change = ground.edit(path, version) if (ground.base / path).exists() else new(path, version)
        ground.commit(change, run=by(f"task-{number}"))


def key(ground, scope="user"):
    return root_key(ground.state, ground.roots[scope])


def at(ground, path, task):
    found = canonicalise(path, ground.roots)
    return content_at(ground.state, key(ground, found.scope), found, task)


@over_both
def test_every_version_of_a_file_goes_with_its_digests_and_all_else_stays(ground, where):
    one, two, three, left, kept = (secret() for _ in range(5))
    committed(ground, "user/x.md", one, b"short\n", two)
    ground.commit(new("user/k.md", kept), run=by("task-k"))
    (ground.user / "x.md").write_bytes(three)
    change = FileChange(CanonicalPath("user", "x.md"), None, left, trust=Trust.OWNER)
    row = ChangeRow(0, 0, key(ground), change, digest(left))
    begin(ground.state, CommitRow(0, by("task-4"), new_token(), changes=(row,)))  # An interrupted commit.
    before = ground.contents()
    assert left_in(ground, one, two)
    receipt = erase("user/x.md", where)
    assert not (ground.user / "x.md").exists()
    digests = [digest(text).encode() for text in (one, two, three, b"short\n")]
    assert nothing_left(ground, one, two, three, left, *digests)
    after = ground.contents()
    assert {path for path in before if before[path] != after.get(path)} == {"user/x.md", "user/MEMORY.md"}
    assert at(ground, "user/k.md", "task-k") == kept
    assert (receipt.files, receipt.versions, {"task-1", "task-3"} < {*receipt.tasks}) == (1, 7, True)
    assert [record.body for record in records(ground.state, task="task-1")] == [None]


def test_what_a_remaining_entry_says_as_well_is_kept_for_it_and_older_pieces_elsewhere_go(ground, where):
    shared, own, other = secret(), secret(), secret()
    entries = new("user/x.md", shared + own), new("user/k.md", b"# K\n" + shared)
    ground.commit(*entries, run=by("task-0"))
    committed(ground, "user/o.md", other + own[50:80], other)
    told = plan("user/x.md", where)
    assert (told.files, told.others) == (("user/x.md",), ("user/o.md",))
    erase("user/x.md", where)
    assert nothing_left(ground, own, digest(other + own[50:80]).encode())
    raised(errors.Erased, at, ground, "user/o.md", "task-1")
    assert at(ground, "user/o.md", "task-2") == other
    assert at(ground, "user/k.md", "task-0") == b"# K\n" + shared
    assert left_over(shared, where) == {}
    assert left_in(ground, shared)


def test_text_of_a_remaining_entry_that_cannot_be_read_is_kept_for_it(ground, where, monkeypatch):
    shared, own = secret(), secret()
    ground.commit(new("user/x.md", shared + own), new("user/k.md", b"# K\n" + shared), run=by("task-0"))
    real = Root.read_bytes

    def reading(self, path, *limit):
        if path.rel == "k.md":
            raise errors.Unreadable("too many files are open")
        return real(self, path, *limit)

    monkeypatch.setattr(Root, "read_bytes", reading)
    assert plan("user/x.md", where).others == ()
    erase("user/x.md", where)
    assert at(ground, "user/k.md", "task-0") == b"# K\n" + shared


@over_both
def test_what_waits_for_review_goes_by_path_task_and_text_and_once_decided_leaves_no_name(ground, where):
    texts, name = [secret(), secret(), secret()], f"user/{secret(20).decode()}.md"
    waits = partial(raised, errors.PendingReview, ground.commit, trust=constant(Trust.EXTERNAL))
    for number, text in enumerate(texts, 1):
        waits(new(f"user/w{number}.md", text), run=by(f"task-{number}"))
    told = plan("user/w1.md", where)
    assert (len(told.reviews), told.files) == (1, ())
    assert erase("user/w1.md", where).reviews == erase("task-2", where).reviews == 1
    ground.commit(new("user/x.md", texts[2][20:90]))
    assert erase("user/x.md", where).reviews == 1
    assert pending(ground.state) == ()
    review = waits(new(name), run=by("task-4")).review_id
    turn_down(ground.state, review, ground.roots, patience(), "2026")
    raised(errors.NotFound, plan, name, where)  # Nothing says any more that it was ever proposed.
    erase("task-4", where)
    assert nothing_left(ground, *texts, name.encode()[5:])


def test_what_waits_is_no_task_so_that_nobody_is_told_it_was_erased_while_it_waits(ground, where):
    waits = raised(errors.PendingReview, ground.commit, new("user/x.md"), trust=constant(Trust.EXTERNAL))
    for attempt in (plan, erase):
        raised(errors.NotFound, attempt, f"review:{waits.review_id}", where)
    assert [each.id for each in pending(ground.state)] == [waits.review_id]


@over_both
def test_a_record_that_somebody_edited_holds_up_no_erasure_and_goes_with_what_it_says(ground, where):
    texts = secret(), secret()
    for number, text in enumerate(texts):
        ground.commit(new(f"user/x{number}.md", text), run=by(f"task-{number}"))
    ground.commit(new("user/y.md"), run=by("task-y"))
    edited = {"task-y": f'{{"path": "user/x0.md", {texts[1].decode()}', "task-0": "["}
    with ground.state.ledger.transaction() as connection:
        for task, body in edited.items():
            connection.execute("UPDATE record SET body = ? WHERE task = ?", (body, task))
    assert plan("user/x1.md", where).records == 2
    assert erase("user/x0.md", where).records == 3
    assert left_in(ground, texts[0]) == set()


@over_both
def test_what_was_erased_is_called_so_and_notes_of_other_tasks_that_name_it_go(ground, where):
    name, asked = f"user/{secret(20).decode()}.md", ground.state.keyed("the fact")
    ground.commit(new(name), run=by("task-1", fact=asked))
    with ground.state.ledger.transaction() as connection:
        for task, note in (("task-2", f"{name} was changed since"), ("task-3", "the index is behind")):
            ground.commit(new(f"user/{task}.md"), run=by(task))
            connection.execute("UPDATE change_set SET notes = ? WHERE task = ?", (json.dumps([note]), task))
    erase(name, where)
    assert nothing_left(ground, name.encode()[5:])
    assert ground.state.ledger.rows("SELECT task FROM change_set WHERE notes <> '[]'") == [("task-3",)]
    path = canonicalise(name, ground.roots)
    raised(errors.Erased, at, ground, name, "task-1")
    raised(errors.Erased, why, ground.state, key(ground), path, None, Trust.OWNER)
    steps = history(ground.state, {key(ground): "user"}, path)
    assert [(step.asked, step.is_erased) for step in steps] == [("erase", True), ("edit", True)]
    assert name[5:] not in str(steps)
    # A keyed digest of the fact and of the text stays.
    forgotten = {fact for (fact,) in ground.state.ledger.rows("SELECT fact FROM forgotten")}
    assert forgotten == {asked, ground.state.keyed("new")}
    assert ground.state.ledger.rows("SELECT fact FROM change_set WHERE task = 'task-1'") == [(None,)]


# What may be erased.


def test_what_the_policy_protects_goes_by_its_exact_path_alone(ground, where):
    (ground.user / "pinned").mkdir()
    text = secret()
    ground.commit(new("user/pinned/x.md", text), policy=lax(), run=by("task-1"))
    before = ground.photograph()
    raised(errors.Refused, erase, "task-1", where)
    assert ground.photograph() == before
    erase("user/pinned/x.md", where)
    assert nothing_left(ground, text)


def test_what_is_an_index_or_not_known_or_not_ours_is_refused_and_nothing_changes(ground, where):
    (ground.user / "link.md").symlink_to(ground.outside / "secret.md")
    ground.commit(new("user/n.md"))
    ground.commit(new("project/x.md"), run=by("task-1"))
    before, kept = ground.photograph(), records(ground.state)
    rows = [
        ("user/MEMORY.md user/index/x.md /user", errors.Refused, "indexes are generated from entries"),
        ("user/none.md task-9", errors.NotFound, None),
        ("user/../x.md /etc/passwd user/link.md", errors.PathEscape, None),
        ("task-1", errors.InvalidScope, "another directory"),
    ]
    for targets, error, words in rows:
        for target, attempt in product(targets.split(), (plan, erase)):
            raised(error, attempt, target, replace(where, roots={"user": ground.roots["user"]}), match=words)
    with Cancel() as cancel:
        cancel.set()
        raised(errors.Cancelled, erase, "user/n.md", replace(where, patience=patience(cancel=cancel)))
    assert ground.photograph() == before
    assert records(ground.state) == kept


def test_of_directories_that_are_not_bound_the_last_known_text_remains_and_what_went_does_not(ground, where):
    stays, gone = secret(), secret()
    ground.commit(new("project/y.md", stays), new("project/z.md", gone), run=by("task-1"))
    ground.commit(removals=[Claim("project/z.md", digest(gone))])
    ground.commit(new("user/x.md", stays + gone))
    only_user = replace(where, roots={"user": ground.roots["user"]})
    assert plan("user/x.md", only_user).others == ("project/z.md",)
    erase("user/x.md", only_user)
    assert at(ground, "project/y.md", "task-1") == stays
    assert left_in(ground, gone) == set()


def test_an_entry_that_is_gone_keeps_nothing_and_one_written_anew_is_a_conflict(ground, where):
    text = secret()
    ground.commit(new("user/x.md", text), new("user/k.md", text), new("user/y.md"))

    with nth(module, "view_of", 1, (ground.user / "k.md").unlink, after=True):
        erase("user/x.md", where)
    assert left_in(ground, text) == set()
    with nth(module, "_remove", 1, lambda: (ground.user / "y.md").write_bytes(b"again\n"), after=True):
        raised(errors.StoreConflict, erase, "user/y.md", where)
    erase("user/y.md", where)
    assert not (ground.user / "y.md").exists()


def test_the_check_names_the_files_that_hold_a_piece(ground, where):
    text, backup = secret(), ground.state.directory / "my-own-backup"
    ground.commit(new("user/x.md", text))
    assert left_over(text, where) == {}  # It is still an entry.
    receipt = erase("user/x.md", where).as_json()
    assert not [word for word in ("x.md", text.decode()[:16], digest(text)) if word in json.dumps(receipt)]
    assert left_over(text, where) == {}
    for before, held, pieces in ((1 << 20, text[:20], 5), ((1 << 20) - 8, text[:16], 1)):
        backup.write_bytes(b"x" * before + held)
        assert left_over(text, where) == {"my-own-backup": pieces}
    raised(errors.ConfigInvalid, left_over, b"too short", where, match="fewer than 16 bytes")


def test_what_a_plain_deletion_leaves_in_pages_log_and_catalog_is_scrubbed(ground):
    text = secret(2000)
    ground.commit(new("user/x.md", text))
    (ground.user / "x.md").unlink()
    with ground.state.ledger.transaction() as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("UPDATE change SET after = NULL, after_digest = 'erased'")
    assert left_in(ground, text)
    module.scrub(ground.state)
    assert left_in(ground, text) == set()


OURS = "recover_all", "_remove", "_search", "drop", "scrub", "remove_emptied", "rebuild", "EraseResult"
STEPS = {"drain": Database, "remove_copies": State, "renew_catalog": State, **dict.fromkeys(OURS, module)}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("target", ["user/x.md", "task-1"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_running_it_again_finishes(ground, tmp_path, step, after, target):
    directory, one, two = tmp_path / "state", secret(), secret()
    with State(directory) as state:
        ours = replace(ground, state=state)
        ours.commit(new("user/x.md", one), run=by("task-1"))
        ours.commit(ours.edit("user/x.md", two))
    shutil.copy(directory / "ledger.db", directory / "ledger.db.version-0")

    def erasing():
        real = getattr(STEPS[step], step)
        setattr(STEPS[step], step, lambda *args, **more: die(after and real(*args, **more)))
        with State(directory) as state:
            erase(target, EraseGround(state, ground.roots, STRICT, patience()))

    killed(erasing)
    with State(directory) as state:
        erase(target, EraseGround(state, ground.roots, STRICT, patience()))
        assert not (ground.user / "x.md").exists()
        assert nothing_left(replace(ground, state=state), one, two)
        assert state.copies() == ()


# Tasks of lanes.

OWNER = Originator("owner")
SHOWN = {"contextMode": "workspace", "scope": "user"}
CLEARED = ("failed", None, None, {"code": "erased"})


@pytest.fixture
def lane(ground):
    return Lane(ground.state, "w")


def queued(lane, content, *, kind="remember"):
    return lane.submit(NewTask(kind, {"content": content}, OWNER, SHOWN)).task


def begun(lane, content):
    queued(lane, content)
    return lane.claim()


def completed(lane, summary="saved", *paths, **more):
    result = {"summary": summary, "filesTouched": list(paths), "removedEntries": [{"summary": summary}]}
    return lane.finish(begun(lane, "x"), Ended("completed", {**result, **more}))


def shape(lane, task):
    task = lane.get(task.id)
    return (task.status, task.arguments, task.result, task.error)


def last_event(ground, task):
    return [event for event in tasks.read(ground.state.ledger, 0, 1_000) if event.task == task.id][-1]


@over_both
def test_every_task_that_holds_it_in_any_field_and_workspace_says_nothing_of_it_any_more(ground, where, lane):
    text = secret().decode() + '\nÉl toma\nté "verde"\tsin azúcar, 日本のお茶が好きです\n'
    elsewhere, writer = Lane(ground.state, "elsewhere"), begun(lane, "x")
    ground.commit(new("user/x.md", text.encode()), run=by(writer.id))
    lane.finish(writer, Ended("completed", {"summary": "saved", "filesTouched": ["user/x.md"]}))
    invented = completed(lane, later=[{"invented": text}])
    holding = [(lane, writer), (lane, invented), (lane, completed(lane, text[-60:]))]
    holding.append((elsewhere, completed(elsewhere, text)))
    assert plan("user/x.md", where).lane_tasks == 4
    receipt = erase("user/x.md", where)
    assert (receipt.tasks, receipt.lane_tasks) == ((writer.id,), 4)
    assert [shape(*each) for each in holding] == [CLEARED] * 4
    after = lane.get(writer.id)
    assert (after.kind, after.shown, after.seq) == ("remember", SHOWN, writer.seq)
    assert last_event(ground, invented).data["status"] == "completed"  # What is over: without an event.
    assert left_in(ground, text.encode()[:240]) == set()
    assert left_over(text.encode(), where) == {}
    assert verify(ground.state).problems == ()


def test_what_waits_and_holds_it_fails_and_is_told_and_all_else_still_waits(ground, where, lane):
    text, fact = secret().decode(), ground.state.keyed("likes tea")
    ground.commit(new("user/x.md", f"# X\n{text}\n".encode()), run=by(fact=fact))
    first = queued(lane, "The user drinks tea")
    holding = queued(lane, f"The page says {text[8:40]}", kind="forget")
    short = queued(lane, " likes tea\n")  # Shorter than any piece that is looked for: it goes by its digest.
    last = queued(lane, "likes teas", kind="forget")
    erase("user/x.md", where)
    assert shape(lane, holding) == shape(lane, short) == CLEARED
    assert lane.get(holding.id).updated > holding.updated
    event = last_event(ground, holding)
    assert (event.type, event.workspace, event.token, event.client) == ("task", "w", "owner", None)
    assert event.data == {"kind": "forget", "status": "failed", "attempt": 0, "code": "erased"}
    pending_now = lane_tasks.count_pending(ground.state.ledger, lane.workspace)
    assert (lane.claim().id, pending_now) == (first.id, {"remember": 1, "forget": 1})
    assert lane.get(last.id) == last
    assert left_in(ground, text.encode()) == set()


WORDS = ["user", "workspace", "remember", "content", "summary", "saved", "rules", "reference", "user/k.md"]
OTHER_NAMES = ["superuser/x.md", "user/x.mdx", "user/x.md/y.md", "project/user/x.md", "user/x.md-2.md"]


def test_common_words_empty_entries_and_names_that_contain_it_take_no_task_along(ground, where, lane):
    """Names of fields, fixed words, scopes and paths are no text of the entry."""
    removed = {"topic": "reference", "summary": "tea", "filePath": "user/k.md"}
    result = {"removedEntries": [removed], "touchedTopics": ["reference"], "touchedScopes": ["user"]}
    stay = [completed(lane, text, "user/k.md", **result, decidedBy="rules") for text in ("saved it", "")]
    for other in OTHER_NAMES:
        stay += [completed(lane, f"filed {other}, as asked"), completed(lane, "filed", other)]
        conflict = Ended("failed", error={"code": "store_conflict", "paths": [other]})
        stay.append(lane.finish(begun(lane, "x"), conflict))
    cancelled = queued(lane, "about user/x.md")
    lane.cancel(cancelled.id, OWNER)
    arguments = {"content": "The user drinks tea", "scope": "user", "context": "workspace"}
    stay += [lane.get(cancelled.id), lane.submit(NewTask("remember", arguments, OWNER, SHOWN)).task]
    ground.commit(new("user/x.md", b"---\nname: Nothing yet\n---\n"), run=by(cancelled.id))
    words = [new(f"user/{number}.md", word.encode()) for number, word in enumerate(WORDS)]
    ground.commit(*words, run=by("words"))
    for target in ("user/x.md", "words"):
        assert erase(target, where).lane_tasks == 0
        assert [lane.get(each.id) for each in stay] == stay
        assert target != "user/x.md" or ground.state.ledger.rows("SELECT fact FROM forgotten") == []
    assert not is_forgotten(ground.state, "")


@over_both
@pytest.mark.parametrize("when", ["before", "while it is removed"])
def test_a_task_that_runs_and_holds_it_must_end_first(ground, where, lane, monkeypatch, when):
    text, real = secret(), module._remove
    ground.commit(new("user/x.md", text), run=by("task-1"))
    running = (begun if when == "before" else queued)(lane, text.decode())
    monkeypatch.setattr(module, "_remove", lambda *args, **more: (lane.claim(), real(*args, **more))[1])
    before = ground.contents(), records(ground.state)
    assert plan("user/x.md", where).lane_tasks == 1
    raised(
        errors.DeadlineExceeded,
        erase,
        "user/x.md",
        where,
        match=f"{running.id} is running and contains the text",
    )
    assert when != "before" or (ground.contents(), records(ground.state)) == before
    assert lane.get(running.id).arguments == {"content": text.decode()}
    lane.finish(lane.get(running.id), Ended("failed", error={"code": "remember_failed"}))
    erase("user/x.md", where)
    assert left_in(ground, text) == set()


@over_both
def test_a_task_that_never_committed_is_erased_by_its_id(engine, ground, where, lane):
    """Every letter of the second is an escape, of which the bytes of the file hold no piece."""
    for text in (secret(), "日本のお茶が好きです、毎朝飲みます".encode()):
        task = queued(lane, text.decode())
        assert plan(task.id, where).lane_tasks == 1
        assert {name.partition("-")[0] for name in left_over(text, where)} == IN_FILES[engine]
        erase(task.id, where)
        assert shape(lane, task) == CLEARED
        assert left_over(text, where) == {}
        assert erase(task.id, where).lane_tasks == 0  # Nothing of it is left to be cleared.
        assert records(ground.state, task=task.id)[0].body is None


def test_a_transcript_that_was_cut_or_moved_is_read_as_far_as_it_goes(ground, tmp_path):
    said = "sixteen bytes and more"
    runs, index = Runs([said.encode()]), ground.state.directory / tasks.NAME
    calls = [{"tool": "x", "arguments": {"n": 1, "deep": [said]}}]
    texts = {
        "cut": '{"from": "user", "text": "sixteen bytes and mo',
        "deep": json.dumps({"from": "assistant", "calls": calls}) + "\n",
        "kept": '{"from": "user", "text": "something else is said"}\n',
        "moved": f"{said}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text('{"from": "system", "text": "x"}\n' + text)
        tasks.note(ground.state, f"task-{name}", tmp_path / name)
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    assert [tasks.remove_telling(ground.state, (), runs) for _ in range(2)] == [2, 0]
    assert {name for name in (*texts, "elsewhere") if (tmp_path / name).exists()} == {"kept", "elsewhere"}
    assert tasks.remove_telling(ground.state, ["task-kept"], Runs(())) == 1
    assert (index.read_text(), stat.S_IMODE(index.stat().st_mode)) == ("", 0o600)


def test_of_an_entry_only_what_says_something_counts():
    provenance = b'muniment: {"id": "01", "trust": "owner"}\n---\nThe body.\n'
    entry = b'---\nname: A name\ndescription: "What \\u00e9"\nkeywords: [one, two]\ntype: reference\n%s'
    assert list(telling(entry % provenance)) == [b"The body.\n", b"A name", "What é".encode(), b"one", b"two"]
    for text, told_of in ((b"only text\n", None), (b"\xff\xfe no text", None), (b"", [b""])):
        assert list(telling(text)) == (told_of or [text])
