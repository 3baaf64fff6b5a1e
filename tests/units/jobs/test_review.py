"""Reviews: what was shown is what is committed, once, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kit.store.ground import STRICT, claim, laid_out, lax, new, origin
from kit.where import TESTS
from muniment.confine.cancel import Cancel
from muniment.errors import (
    Cancelled,
    ContentRejected,
    InvalidScope,
    ManagedMemoryUnavailable,
    NotFound,
    PathEscape,
    PendingReview,
    QuotaExceeded,
    Refused,
    ReviewChanged,
    ReviewClosed,
    StoreConflict,
)
from muniment.jobs.place import Place
from muniment.jobs.review import approve, reject, show
from muniment.names import Trust
from muniment.policy.decide import Provenance
from muniment.store.audit import records, verify
from muniment.store.ledger import of_task, root_key, source_of
from muniment.store.review import approval_task, pending
from muniment.store.state import State
from muniment.store.trust import constant
from muniment.tools.overlay import Claim, digest

OUTSIDE = {"trust": constant(Trust.EXTERNAL)}


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


@pytest.fixture
def place(ground):
    return Place(STRICT, ground.roots, ground.state)


def hold(ground, *changes, **more):
    """Propose what waits for the owner; the id of its review."""
    before = ground.photograph()
    with pytest.raises(PendingReview) as raised:
        ground.commit(*changes, **{**OUTSIDE, **more})
    assert ground.photograph() == before
    return raised.value.review_id


def agree(review_id, place):
    return approve(review_id, show(review_id, place).digest, place)


def test_what_is_approved_is_committed_under_a_task_of_its_own_with_the_trust_that_was_shown(ground, place):
    review = hold(
        ground, new("user/n.md", b"new\n"), ground.edit("user/a.md", b"edited\n"), origin=origin("task-1")
    )
    assert [each.id for each in pending(ground.state)] == [review]
    done = agree(review, place)
    assert (ground.user / "n.md").read_bytes() == b"new\n"
    assert (ground.user / "a.md").read_bytes() == b"edited\n"
    assert {change.path for change in done.changes} == {"user/n.md", "user/a.md"}
    assert done.touched_scopes == ("user",)
    key = root_key(ground.state, ground.roots["user"])
    assert source_of(ground.state, key, "n.md", digest(b"new\n")).trust is Trust.EXTERNAL
    kept = of_task(ground.state, done.task_id)
    assert (kept.origin.kind, kept.origin.decided_by) == ("approve", "tests")
    assert of_task(ground.state, "task-1") is None
    assert pending(ground.state) == ()
    assert [(each.kind, each.task) for each in records(ground.state)] == [
        ("review", "task-1"),
        ("commit", done.task_id),
        ("approved", done.task_id),
    ]
    assert verify(ground.state).problems == ()


def test_a_rejected_one_is_never_committed(ground, place):
    review = hold(ground, new("user/n.md"))
    told = show(review, place).digest
    assert reject(review, place).as_json()["status"] == "rejected"
    for again in (
        lambda: approve(review, told, place),
        lambda: reject(review, place),
        lambda: show(review, place),
    ):
        with pytest.raises(ReviewClosed, match="rejected already"):
            again()
    assert not (ground.user / "n.md").exists()
    assert records(ground.state)[-1].kind == "rejected"


def test_an_approved_one_cannot_be_used_again(ground, place):
    review = hold(ground, new("user/n.md"))
    told = show(review, place).digest
    agree(review, place)
    (ground.user / "n.md").unlink()
    for again in (lambda: approve(review, told, place), lambda: reject(review, place)):
        with pytest.raises(ReviewClosed, match="approved already"):
            again()
    assert not (ground.user / "n.md").exists()


def test_an_approval_whose_process_died_before_it_was_noted_is_still_an_approval(ground, place, monkeypatch):
    from muniment.jobs import review as module

    review = hold(ground, new("user/n.md"))
    told = show(review, place).digest

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "close", die)
    with pytest.raises(KeyboardInterrupt):
        approve(review, told, place)
    assert pending(ground.state) == ()
    for again in (lambda: approve(review, told, place), lambda: reject(review, place)):
        with pytest.raises(ReviewClosed, match="approved already"):
            again()


BROKEN = ManagedMemoryUnavailable("ledger.db", "the disk is full; make room and try again")


@pytest.mark.threat("T-HUM-04", control="told_as_it_is")
@pytest.mark.parametrize("owner", ["close", "finish"])
def test_an_approval_whose_last_transaction_fails_is_told_as_what_the_ledger_says(
    ground, place, monkeypatch, owner
):
    """The disk is full as it is noted; or the commit is durable, and its last step reports an error."""
    from muniment.jobs import review as deciding
    from muniment.store import commit as committing

    review = hold(ground, new("user/n.md", b"new\n"))
    told = show(review, place).digest
    real = committing.finish

    def broken(*given):
        if owner == "finish":
            real(*given)
        raise BROKEN

    monkeypatch.setattr(deciding if owner == "close" else committing, owner, broken)
    done = approve(review, told, place)
    monkeypatch.undo()
    assert [change.path for change in done.changes] == ["user/n.md"]
    assert (done.as_json()["status"], done.touched_scopes) == ("approved", ("user",))
    assert "it was written, but then: " in done.notes[-1]
    assert (ground.user / "n.md").read_bytes() == b"new\n"
    assert of_task(ground.state, done.task_id) is not None
    assert pending(ground.state) == ()


def test_an_approval_that_could_not_be_committed_says_so_and_still_waits(ground, place, monkeypatch):
    from muniment.store import commit as committing

    review = hold(ground, new("user/n.md", b"new\n"))
    told = show(review, place).digest

    def broken(*_):
        raise BROKEN

    monkeypatch.setattr(committing, "finish", broken)
    with pytest.raises(ManagedMemoryUnavailable, match="the disk is full"):
        approve(review, told, place)
    monkeypatch.undo()
    assert not (ground.user / "n.md").exists()
    assert [each.id for each in pending(ground.state)] == [review]
    assert agree(review, place).task_id is not None


def test_a_rejection_that_comes_before_the_commit_counts(ground, place, monkeypatch):
    from muniment.jobs import review as module

    review = hold(ground, new("user/n.md"))
    told = show(review, place).digest
    real = module.check_roots

    def rejected_meanwhile(*given):
        real(*given)
        reject(review, place)

    monkeypatch.setattr(module, "check_roots", rejected_meanwhile)
    with pytest.raises(ReviewClosed, match="rejected already"):
        approve(review, told, place)
    assert not (ground.user / "n.md").exists()


def test_an_approval_that_was_overtaken_says_so(ground, place, monkeypatch):
    from muniment.jobs import review as module

    review = hold(ground, new("user/n.md"))
    told, waiting = show(review, place).digest, module.load(ground.state, review)
    agree(review, place)
    (ground.user / "n.md").unlink()
    monkeypatch.setattr(module, "load", lambda *_: waiting)
    with pytest.raises(ReviewClosed, match="approved already"):
        approve(review, told, place)
    assert not (ground.user / "n.md").exists()


@pytest.mark.threat("T-HUM-01", control="bound_approvals")
@pytest.mark.parametrize("wrong", ["", "0" * 64, "short"])
def test_another_digest_approves_nothing(ground, place, wrong):
    review = hold(ground, new("user/n.md"))
    with pytest.raises(ReviewChanged, match="review show"):
        approve(review, wrong, place)
    assert not (ground.user / "n.md").exists()
    agree(review, place)


def test_a_policy_that_changed_needs_a_fresh_look(ground, place):
    review = hold(ground, new("user/n.md"))
    told = show(review, place)
    other = replace(place, policy=STRICT.model_copy(update={"limits": lax(files_written=3).limits}))
    with pytest.raises(ReviewChanged):
        approve(review, told.digest, other)
    fresh = show(review, other)
    assert "policy has changed" in fresh.text
    assert fresh.digest != told.digest
    approve(review, fresh.digest, other)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"layers": ()}, Refused),
        ({"quotas": lax(max_files=1).quotas}, QuotaExceeded),
        ({"provenance": Provenance(untrusted_sources="reject")}, Refused),
        ({"content": STRICT.content.model_copy(update={"reject": ("control",)})}, None),
    ],
    ids=["path", "quota", "source", "none"],
)
def test_the_judge_runs_again_under_the_policy_of_the_day(ground, place, change, error):
    review = hold(ground, new("user/n.md"))
    if change == {"layers": ()}:
        change = {"layers": (STRICT.layers[0].model_copy(update={"allow": ()}),)}
    other = replace(place, policy=STRICT.model_copy(update=change))
    if error is None:
        agree(review, other)
        return
    with pytest.raises(error):
        agree(review, other)
    assert not (ground.user / "n.md").exists()
    assert [each.id for each in pending(ground.state)] == [review]


def test_a_gate_is_never_skipped(ground, place):
    policy = STRICT.model_copy(update={"content": STRICT.content.model_copy(update={"reject": ()})})
    review = hold(ground, new("user/n.md", b"a\x1b[2J\n"), policy=policy)
    with pytest.raises(ContentRejected):
        agree(review, place)
    assert not (ground.user / "n.md").exists()


def test_what_it_rests_on_must_still_be_so_and_then_it_stays_pending(ground, place):
    rests = claim("user/a.md", b"# A\nalpha\n"), claim("user/topic/x.md", None)
    review = hold(ground, new("user/n.md"), claims=rests)
    told = show(review, place)
    assert "changed since" not in told.text
    (ground.user / "a.md").write_bytes(b"by hand\n")
    with pytest.raises(StoreConflict, match=r"user/a\.md"):
        approve(review, told.digest, place)
    assert "changed since" in show(review, place).text
    (ground.user / "a.md").write_bytes(b"# A\nalpha\n")
    approve(review, told.digest, place)


def test_a_file_that_took_its_name_meanwhile_is_kept(ground, place):
    review = hold(ground, new("user/n.md"))
    (ground.user / "n.md").write_bytes(b"by hand\n")
    assert "cannot be approved" in show(review, place).text
    with pytest.raises(StoreConflict):
        agree(review, place)
    assert (ground.user / "n.md").read_bytes() == b"by hand\n"


def test_a_removal_that_nobody_was_there_for_waits_and_goes_when_approved(ground, place):
    with pytest.raises(PendingReview) as raised:
        ground.commit(removals=[Claim("user/a.md", digest(b"# A\nalpha\n"))], attended=False)
    review = raised.value.review_id
    assert "user/a.md (removed)" in show(review, place).text
    agree(review, place)
    assert not (ground.user / "a.md").exists()


def test_a_trust_is_never_raised_by_an_approval(ground, place):
    review = hold(ground, new("user/n.md"), origin=origin("task-1", trust=Trust.EXTERNAL))
    done = agree(review, place)
    kept = of_task(ground.state, done.task_id)
    assert (kept.origin.trust, kept.changes[0].trust) == (Trust.EXTERNAL, Trust.EXTERNAL)


def test_it_is_about_the_directories_that_it_was_asked_for(ground, place, tmp_path):
    review = hold(ground, new("user/n.md"))
    told = show(review, place)
    (tmp_path / "other").mkdir()
    with laid_out(tmp_path / "other") as other:
        elsewhere = Place(STRICT, other.roots, ground.state)
        for decide in (
            lambda: approve(review, told.digest, elsewhere),
            lambda: reject(review, elsewhere),
            lambda: show(review, elsewhere),
        ):
            with pytest.raises(InvalidScope, match="another directory"):
                decide()
        assert not (other.user / "n.md").exists()
    unbound = replace(place, roots={"project": ground.roots["project"]})
    with pytest.raises(InvalidScope):
        approve(review, told.digest, unbound)


def test_an_unknown_one_is_told(place):
    with pytest.raises(NotFound, match="review list"):
        approve("rabc123", "0" * 64, place)


def test_a_cancel_leaves_it_pending(ground, place):
    review = hold(ground, new("user/n.md"))
    told = show(review, place)
    with Cancel() as cancel:
        cancel.set()
        with pytest.raises(Cancelled):
            approve(review, told.digest, place, cancel=cancel)
    assert len(pending(ground.state)) == 1


def test_what_cannot_be_read_now_is_shown_as_changed(ground, place):
    review = hold(ground, ground.edit("user/a.md"))
    (ground.user / "a.md").unlink()
    (ground.user / "a.md").symlink_to(ground.outside / "secret.md")
    told = show(review, place).text
    assert "cannot be approved" in told
    assert "secret" not in told
    with pytest.raises(PathEscape):
        agree(review, place)
    (ground.user / "a.md").unlink()
    (ground.user / "a.md").mkdir()
    with pytest.raises(StoreConflict):
        agree(review, place)


DECIDER = """
import json, sys
from pathlib import Path
from muniment.confine.binding import bind_all
from muniment.errors import MunimentError
from muniment.jobs.place import Place
from muniment.jobs.review import approve, reject
from muniment.store.state import State
from kit.store.ground import STRICT
directory, base, review, digest, what = sys.argv[1:]
with State(Path(directory)) as state:
    place = Place(STRICT, bind_all({"user": Path(base) / "user"}), state)
    sys.stdin.readline()
    try:
        done = approve(review, digest, place) if what == "approve" else reject(review, place)
        print(json.dumps(done.as_json()["status"]))
    except MunimentError as error:
        print(json.dumps(error.code))
"""


@contextmanager
def deciders(places, review, told, decisions):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", DECIDER, *places, review, told, what],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for what in decisions
    ]
    yield running
    for each in running:
        each.wait()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("decisions", [("approve",) * 3, ("approve", "reject", "approve")])
def test_of_several_processes_that_decide_at_once_one_does(ground, decisions, tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared") / "state"
    with State(directory) as state:
        shared = replace(ground, state=state)
        review = hold(shared, new("user/n.md"))
        told = show(review, Place(STRICT, ground.roots, state)).digest
        with deciders([directory, ground.base], review, told, decisions) as running:
            for each in running:
                each.stdin.write(b"go\n")
                each.stdin.flush()
            said = [json.loads(each.communicate()[0]) for each in running]
        assert sorted(set(said) - {"review_closed"}) in (["approved"], ["rejected"])
        assert said.count("review_closed") == len(decisions) - 1
        assert (ground.user / "n.md").exists() == ("approved" in said)
        assert (of_task(state, approval_task(review)) is not None) == ("approved" in said)
        assert verify(state).problems == ()
