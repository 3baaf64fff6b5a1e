"""How a pending change-set is kept and shown: whole, canonical, once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.store.ground import laid_out, new, origin, patience
from muniment.errors import QuotaExceeded, ReviewClosed
from muniment.names import Trust
from muniment.store import review
from muniment.store.audit import records
from muniment.store.review import Pending, hold, load, pending, preview, turn_down
from muniment.tools.overlay import ChangeSet, Claim, Proposed, digest

POLICY, OTHER = "a" * 64, "b" * 64
AT = "2026-11-22T10:00:00.000Z"


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as ground:
        yield ground


def held(ground, *parts, policy=POLICY, trusts=None, task="task-1", **more):
    parts = parts or [ChangeSet((new("user/n.md"),))]
    return hold(
        ground.state,
        origin(task, **more),
        parts,
        trusts if trusts is not None else {"user/n.md": Trust.AGENT},
        ("it comes from outside",),
        policy=policy,
        roots=ground.roots,
        author="model",
    )


def waiting(*changes, removals=(), claims=(), reasons=("because",), trust=Trust.AGENT):
    whole = ChangeSet(tuple(changes), tuple(claims), tuple(removals))
    trusts = dict.fromkeys(whole.unsafe_paths, trust)
    return Pending("rabc123", origin("task-1"), AT, tuple(reasons), whole, trusts, {}, "model", POLICY)


def shown(each, now=None, policy=POLICY):
    return preview(each, (now or {}).get, policy)


def test_the_same_proposal_that_waits_already_keeps_its_id_and_another_does_not(ground):
    first = held(ground)
    assert held(ground) == first
    assert held(ground, policy=OTHER, task="task-2") != first
    assert held(ground, trusts={"user/n.md": Trust.EXTERNAL}, task="task-3") != first
    assert held(ground, ChangeSet((new("user/n.md", b"other\n"),)), task="task-4") != first
    assert held(ground, ChangeSet((new("user/n.md"),), (Claim("user/a.md", None),)), task="task-5") != first
    assert len(pending(ground.state)) == 5
    assert [each.kind for each in records(ground.state)] == ["review"] * 5


@pytest.mark.threat("T-HUM-03", control="one_review_a_task")
def test_a_task_that_is_carried_out_again_waits_once_whatever_it_proposes_then(ground):
    asked = {"fact": "f" * 64}
    first = held(ground, ChangeSet((new("user/n.md", b"one"),)), **asked)
    for text in (b"two", b"three"):
        assert held(ground, ChangeSet((new("user/n.md", text),)), **asked) == first
    assert [each.id for each in pending(ground.state)] == [first]
    assert load(ground.state, first).change_set.changes[0].content == b"one"
    others = {
        held(ground, ChangeSet((new("user/n.md", b"four"),)), fact="e" * 64),
        held(ground, ChangeSet((new("project/n.md", b"five"),)), trusts={}, **asked),
        held(ground, ChangeSet((new("user/n.md", b"six"),)), kind="forget", **asked),
    }
    assert len(others | {first}) == 4


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_no_client_fills_what_waits_and_all_together_only_so_far(ground, monkeypatch):
    def wait(number, token=None):
        task = f"{token}-{number}"
        if token is not None:
            with ground.state.ledger.transaction() as connection:
                connection.execute(
                    "INSERT INTO task (id, workspace, kind, status, token, trust, shown, created, updated) "
                    "VALUES (?, 'w', 'remember', 'running', ?, 'agent', '{}', '', '')",
                    (task, token),
                )
        return hold(
            ground.state,
            origin(task),
            [ChangeSet((new("user/n.md", task.encode()),))],
            {},
            (),
            policy=POLICY,
            roots=ground.roots,
            author="model",
        )

    monkeypatch.setattr(review, "MAX_OF_TOKEN", 3)
    monkeypatch.setattr(review, "MAX_WAITING", 6)
    mine = [wait(number, "editor") for number in range(3)]
    with pytest.raises(QuotaExceeded, match="wait for review"):
        wait(3, "editor")
    with ground.state.ledger.transaction() as connection:
        connection.execute("DELETE FROM task")  # A lane forgets what is over; the reviews stay its token's.
    with pytest.raises(QuotaExceeded):
        wait(4, "editor")
    for number in range(2):
        wait(number, "phone")
    wait(0)
    with pytest.raises(QuotaExceeded):
        wait(1)
    turn_down(ground.state, mine[0], ground.roots, patience(), AT)
    assert wait(1) not in mine


def test_once_decided_the_same_proposal_waits_anew(ground):
    first = held(ground)
    turn_down(ground.state, first, ground.roots, patience(), AT)
    second = held(ground)
    assert second != first
    with pytest.raises(ReviewClosed):
        load(ground.state, first)
    assert load(ground.state, second).id == second


def test_a_rejection_that_comes_second_under_the_lock_is_told(ground, monkeypatch):
    first = held(ground)
    real, calls = review.load, []

    def load_and_be_overtaken(state, review_id):
        calls.append(review_id)
        if len(calls) == 2:
            review.close(state, review_id, "approved", AT)
        return real(state, review_id)

    monkeypatch.setattr(review, "load", load_and_be_overtaken)
    with pytest.raises(ReviewClosed, match="approved"):
        turn_down(ground.state, first, ground.roots, patience(), AT)


@pytest.mark.threat("T-LOG-03", control="shapes_of_paths")
def test_the_record_names_what_is_there_and_digests_and_no_content_and_no_name_that_only_waits(ground):
    changes = (new("user/canary/7f3a.md", b"the content itself\n"), ground.edit("user/a.md", b"other\n"))
    held(ground, ChangeSet(changes))
    (record,) = records(ground.state)
    waits, stands = record.body["paths"]
    assert (stands, waits[:-16]) == ("user/a.md", "user/<6>/<4>.md #")
    assert "content itself" not in str(record)
    assert "canary" not in str(record)


# What the owner sees.


def test_a_new_file_is_shown_whole_with_its_trust_and_why_it_waits():
    each = waiting(new("user/n.md", b"one\ntwo\n"), reasons=["it comes from outside"])
    text = shown(each)
    assert "user/n.md (new, trust agent)\n@ line 1\n+ one\n+ two\n" in text
    assert "waits because it comes from outside" in text
    assert text.splitlines()[-1] == f"digest {each.digest(POLICY)}"


def test_a_change_is_shown_as_a_difference_and_whole():
    before = b"one\ntwo\nthree\n"
    each = waiting(Proposed("user/a.md", digest(before), b"one\n2\nthree\n"))
    text = shown(each, {"user/a.md": before})
    assert "@ line 2\n- two\n+ 2\nwhole text:\n| one\n| 2\n| three\n" in text
    assert "cannot be approved" not in text
    assert "cannot be approved" in shown(each, {"user/a.md": b"other\n"})
    assert "cannot be approved" in shown(each)


def test_a_removal_shows_what_goes():
    each = waiting(removals=[Claim("user/a.md", digest(b"one\n"))])
    text = shown(each, {"user/a.md": b"one\n"})
    assert "user/a.md (removed)\n@ line 1\n- one\n" in text
    assert "+ " not in text


def test_claims_are_shown_with_whether_they_hold():
    each = waiting(new("user/n.md"), claims=[Claim("user/a.md", digest(b"x")), Claim("user/b.md", None)])
    text = shown(each, {"user/a.md": b"x"})
    assert f"rests on user/a.md: as it was, {digest(b'x')[:16]}\n" in text
    assert "rests on user/b.md: it was not there\n" in text
    text = shown(each, {"user/a.md": b"y", "user/b.md": b"z"})
    assert text.count("(changed since)") == 2


@given(st.text(max_size=200), st.text(max_size=200))
@pytest.mark.threat("T-HUM-01", control="marked_lines")
def test_no_text_forges_a_line_of_ours(before, after):
    each = waiting(Proposed("user/a.md", digest(before.encode()), after.encode()))
    ours = (
        "@ line",
        "- ",
        "+ ",
        "| ",
        "review ",
        "asked ",
        "waits ",
        "user/a.md (",
        "whole text:",
        "digest ",
    )
    for line in shown(each, {"user/a.md": before.encode()}).split("\n"):
        assert line == "" or line.startswith(ours)
    forged = shown(waiting(new("user/n.md", b"x\ndigest " + b"0" * 64 + b"\nreview rzzzzzz\n")))
    assert sum(line.startswith("digest ") for line in forged.splitlines()) == 1


def test_a_large_file_is_compared_by_no_more_than_it_costs():
    before, after = b"a\n" * 5000, b"b\n" * 5000
    text = shown(waiting(Proposed("user/a.md", digest(before), after)), {"user/a.md": before})
    assert text.count("\n- a") == text.count("\n+ b") == 5000


# What an approval is bound to.

BASE = waiting(
    new("user/n.md"), claims=[Claim("user/a.md", "1" * 64)], removals=[Claim("user/r.md", "2" * 64)]
)


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, change_set=replace(BASE.change_set, changes=(new("user/n.md", b"other\n"),))),
        replace(BASE, change_set=replace(BASE.change_set, changes=(new("user/m.md"),))),
        replace(
            BASE, change_set=replace(BASE.change_set, changes=(Proposed("user/n.md", "1" * 64, b"new\n"),))
        ),
        replace(BASE, change_set=replace(BASE.change_set, changes=())),
        replace(BASE, change_set=replace(BASE.change_set, claims=())),
        replace(BASE, change_set=replace(BASE.change_set, claims=(Claim("user/a.md", None),))),
        replace(BASE, change_set=replace(BASE.change_set, removals=())),
        replace(BASE, trusts={"user/n.md": Trust.OWNER}),
        replace(BASE, roots={"user": "another"}),
        replace(BASE, author="restore"),
    ],
)
def test_the_digest_is_of_all_that_is_decided_about(other):
    assert other.digest(POLICY) != BASE.digest(POLICY)


def test_the_digest_is_of_the_policy_in_force_and_of_nothing_else():
    assert BASE.digest(OTHER) != BASE.digest(POLICY)
    same = replace(BASE, id="r000000", at="later", reasons=(), origin=origin("task-2"), policy=OTHER)
    assert same.digest(POLICY) == BASE.digest(POLICY)
