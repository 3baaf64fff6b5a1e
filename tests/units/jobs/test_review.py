"""Reviews: what was shown is what is committed, once, or nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from kit.jobs.places import raising
from kit.store.ground import STRICT, claim, laid_out, lax, new, origin
from muniment import errors
from muniment.confine.cancel import Cancel
from muniment.jobs import review as deciding
from muniment.jobs.place import Place
from muniment.jobs.review import approve, reject, show
from muniment.names import Trust
from muniment.policy.decide import Provenance
from muniment.store import commit as committing
from muniment.store.audit import records, verify
from muniment.store.ledger import of_task, root_key, source_of
from muniment.store.review import approval_task, pending
from muniment.store.state import State
from muniment.store.trust import constant
from muniment.tools.overlay import digest

A = b"# A\nalpha\n"


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


@pytest.fixture
def place(ground):
    return Place(STRICT, ground.roots, ground.state)


def hold(ground, *changes, **terms):
    """Propose what waits for the owner; the id of its review."""
    before = ground.photograph()
    with pytest.raises(errors.PendingReview) as raised:
        ground.commit(*changes, **{"trust": constant(Trust.EXTERNAL), **terms})
    assert ground.photograph() == before
    return raised.value.review_id


def agree(review_id, place):
    return approve(review_id, show(review_id, place).digest, place)


def under(place, **terms):
    return replace(place, policy=STRICT.model_copy(update=terms))


def assert_waits(ground, review, error, match, *given, **terms):
    """An approval that fails so writes nothing, and the review still waits."""
    before = ground.photograph()
    with pytest.raises(getattr(errors, error), match=match):
        approve(review, *given, **terms)
    assert ground.photograph() == before
    assert [each.id for each in pending(ground.state)] == [review]


def test_what_is_approved_is_committed_under_a_task_of_its_own_with_the_trust_that_was_shown(ground, place):
    changes = new("user/n.md", b"new\n"), ground.edit("user/a.md", b"edited\n")
    review = hold(ground, *changes, origin=origin("task-1", trust=Trust.EXTERNAL))
    assert [each.id for each in pending(ground.state)] == [review]
    done = agree(review, place)
    assert [(ground.user / name).read_bytes() for name in ("n.md", "a.md")] == [b"new\n", b"edited\n"]
    assert {change.path for change in done.changes} == {"user/n.md", "user/a.md"}
    assert done.touched_scopes == ("user",)
    key = root_key(ground.state, ground.roots["user"])
    assert source_of(ground.state, key, "n.md", digest(b"new\n")).trust is Trust.EXTERNAL
    kept = of_task(ground.state, done.task_id)
    assert (kept.origin.kind, kept.origin.decided_by) == ("approve", "tests")
    assert {kept.origin.trust, *(change.trust for change in kept.changes)} == {Trust.EXTERNAL}
    assert of_task(ground.state, "task-1") is None
    assert pending(ground.state) == ()
    noted = [("review", "task-1"), ("commit", done.task_id), ("approved", done.task_id)]
    assert [(each.kind, each.task) for each in records(ground.state)] == noted
    assert verify(ground.state).problems == ()


def test_a_review_is_decided_once_also_where_that_was_not_noted(ground, place, monkeypatch):
    def reject_it(review, _):
        told = reject(review, place).as_json()
        assert (told["status"], records(ground.state)[-1].kind) == ("rejected", "rejected")

    def die_before_it_is_noted(review, told):
        with monkeypatch.context() as patch:
            patch.setattr(deciding, "close", raising(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                approve(review, told, place)

    decisions = (reject_it, lambda review, told: approve(review, told, place), die_before_it_is_noted)
    for number, decide in enumerate(decisions):
        path = f"n{number}.md"
        review = hold(ground, new(f"user/{path}"))
        told, waiting = show(review, place).digest, deciding.load(ground.state, review)
        decide(review, told)
        assert pending(ground.state) == ()
        assert (ground.user / path).exists() == (number > 0)
        (ground.user / path).unlink(missing_ok=True)
        how = "approved already" if number else "rejected already"
        for again, *given in ((approve, told), (reject,), (show,)):
            with pytest.raises(errors.ReviewClosed, match=how):
                again(review, *given, place)
        if number == 1:  # An approval that was overtaken once it had looked.
            with monkeypatch.context() as patch:
                patch.setattr(deciding, "load", lambda *_, waiting=waiting: waiting)
                with pytest.raises(errors.ReviewClosed, match=how):
                    approve(review, told, place)
        assert not (ground.user / path).exists()


def test_a_rejection_that_comes_before_the_commit_counts(ground, place, monkeypatch):
    review = hold(ground, new("user/n.md"))
    told, real = show(review, place).digest, deciding.check_roots

    def rejected_meanwhile(*given):
        real(*given)
        reject(review, place)

    monkeypatch.setattr(deciding, "check_roots", rejected_meanwhile)
    with pytest.raises(errors.ReviewClosed, match="rejected already"):
        approve(review, told, place)
    assert not (ground.user / "n.md").exists()


@pytest.mark.threat("T-HUM-04", control="told_as_it_is")
def test_an_approval_whose_last_transaction_fails_is_told_as_what_the_ledger_says(ground, place, monkeypatch):
    """The disk is full as it is noted; or the commit is durable, and its last step reports an error."""
    broken = raising(errors.ManagedMemoryUnavailable("ledger.db", "the disk is full"))
    real = committing.finish
    owners = (deciding, "close", lambda *_: None), (committing, "finish", real)
    for number, (owner, name, first) in enumerate(owners):
        review = hold(ground, new(f"user/n{number}.md", b"new\n"))
        told = show(review, place).digest
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *given, first=first: broken(first(*given)))
            done = approve(review, told, place)
        assert (done.as_json()["status"], done.changes[0].path) == ("approved", f"user/n{number}.md")
        assert "it was written, but then: " in done.notes[-1]
        assert (ground.user / f"n{number}.md").read_bytes() == b"new\n"
        assert (of_task(ground.state, done.task_id) is None, pending(ground.state)) == (False, ())
    review = hold(ground, new("user/m.md", b"new\n"))
    with monkeypatch.context() as patch:
        patch.setattr(committing, "finish", broken)
        with pytest.raises(errors.ManagedMemoryUnavailable, match="the disk is full"):
            agree(review, place)
    assert ((ground.user / "m.md").exists(), [each.id for each in pending(ground.state)]) == (False, [review])
    assert agree(review, place).task_id is not None


@pytest.mark.threat("T-HUM-01", control="bound_approvals")
def test_another_digest_or_policy_than_was_shown_approves_nothing(ground, place):
    review = hold(ground, new("user/n.md"))
    told = show(review, place)
    for wrong in ("", "0" * 64, "short"):
        assert_waits(ground, review, "ReviewChanged", "show", wrong, place)
    other = under(place, limits=lax(files_written=3).limits)
    assert_waits(ground, review, "ReviewChanged", None, told.digest, other)
    fresh = show(review, other)
    assert ("policy has changed" in fresh.text, fresh.digest == told.digest) == (True, False)
    approve(review, fresh.digest, other)


def test_the_judge_runs_again_under_the_policy_of_the_day_and_no_gate_is_skipped(ground, place):
    review = hold(ground, new("user/n.md"))
    for terms, error in (
        ({"layers": (STRICT.layers[0].model_copy(update={"allow": ()}),)}, "Refused"),
        ({"quotas": lax(max_files=1).quotas}, "QuotaExceeded"),
        ({"provenance": Provenance(untrusted_sources="reject")}, "Refused"),
    ):
        other = under(place, **terms)
        assert_waits(ground, review, error, None, show(review, other).digest, other)
    agree(review, under(place, content=STRICT.content.model_copy(update={"reject": ("control",)})))
    lenient = STRICT.model_copy(update={"content": STRICT.content.model_copy(update={"reject": ()})})
    review = hold(ground, new("user/m.md", b"a\x1b[2J\n"), policy=lenient)
    assert_waits(ground, review, "ContentRejected", None, show(review, place).digest, place)


def test_what_it_rests_on_must_still_be_so_and_then_it_stays_pending(ground, place):
    rests = claim("user/a.md", A), claim("user/topic/x.md", None)
    review = hold(ground, new("user/n.md"), claims=rests)
    told = show(review, place)
    assert "changed since" not in told.text
    with Cancel() as cancel:
        cancel.set()
        assert_waits(ground, review, "Cancelled", None, told.digest, place, cancel=cancel)
    (ground.user / "a.md").write_bytes(b"by hand\n")
    assert_waits(ground, review, "StoreConflict", r"user/a\.md", told.digest, place)
    assert "changed since" in show(review, place).text
    (ground.user / "a.md").write_bytes(A)
    (ground.user / "n.md").write_bytes(b"by hand\n")
    assert "cannot be approved" in show(review, place).text
    assert_waits(ground, review, "StoreConflict", None, show(review, place).digest, place)
    (ground.user / "n.md").unlink()
    approve(review, told.digest, place)


def test_what_cannot_be_read_now_is_shown_as_changed(ground, place):
    review, path = hold(ground, ground.edit("user/a.md")), ground.user / "a.md"
    path.unlink()
    path.symlink_to(ground.outside / "secret.md")
    told = show(review, place).text
    assert ("cannot be approved" in told, "secret" in told) == (True, False)
    assert_waits(ground, review, "PathEscape", None, show(review, place).digest, place)
    path.unlink()
    path.mkdir()
    assert_waits(ground, review, "StoreConflict", None, show(review, place).digest, place)


def test_a_removal_that_nobody_was_there_for_waits_and_goes_when_approved(ground, place):
    gone = [claim("user/a.md", A)]
    review = hold(ground, removals=gone, attended=False, trust=constant(Trust.OWNER))
    assert "user/a.md (removed)" in show(review, place).text
    agree(review, place)
    assert not (ground.user / "a.md").exists()


def test_it_is_about_the_directories_that_it_was_asked_for_and_no_other_is_known(ground, place, tmp_path):
    review = hold(ground, new("user/n.md"))
    told = show(review, place).digest
    (tmp_path / "other").mkdir()
    with laid_out(tmp_path / "other") as other:
        elsewhere = replace(place, roots=other.roots)
        for decide in (lambda *given: approve(given[0], told, given[1]), reject, show):
            with pytest.raises(errors.InvalidScope, match="another directory"):
                decide(review, elsewhere)
        assert not (other.user / "n.md").exists()
    with pytest.raises(errors.NotFound, match="review list"):
        approve("rabc123", "0" * 64, place)


@pytest.mark.parametrize("decisions", [("approve",) * 3, ("approve", "reject", "approve")])
def test_of_several_that_decide_at_once_one_does(ground, decisions, tmp_path_factory):
    """Each with a state of its own: only files and locks are shared."""
    directory, at_once = tmp_path_factory.mktemp("shared") / "state", Barrier(len(decisions))

    def decide(what):
        with State(directory) as state:
            place = Place(STRICT, ground.roots, state)
            at_once.wait(60)
            try:
                done = approve(review, told, place) if what == "approve" else reject(review, place)
                return done.as_json()["status"]
            except errors.MunimentError as error:
                return error.code

    with State(directory) as state, ThreadPoolExecutor() as pool:
        review = hold(replace(ground, state=state), new("user/n.md"))
        told = show(review, Place(STRICT, ground.roots, state)).digest
        said = list(pool.map(decide, decisions))
        assert sorted(set(said) - {"review_closed"}) in (["approved"], ["rejected"])
        assert said.count("review_closed") == len(decisions) - 1
        is_approved = "approved" in said
        assert (ground.user / "n.md").exists() == is_approved
        assert (of_task(state, approval_task(review)) is not None) == is_approved
        assert verify(state).problems == ()
