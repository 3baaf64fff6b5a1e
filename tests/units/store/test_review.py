"""How a pending change set is stored and shown: complete, canonical, once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.fleet.engines import ENGINES, meanwhile
from kit.raising import raised
from kit.store.ground import STRICT, Claim, Proposed, by, change_set, claim, new, patience, trusted
from muniment.errors import QuotaExceeded, ReviewClosed
from muniment.kernel.change import digest
from muniment.kernel.names import Trust
from muniment.store import ledger, review
from muniment.store.audit import records
from muniment.store.review import Pending, hold, load, pending, preview, turn_down, waiting_of
from muniment.store.upkeep import recover_all

POLICY, OTHER = "a" * 64, "b" * 64
AT = "2026-11-22T10:00:00.000Z"
WHY = ("it comes from outside",)
AGENTS = {"user/n.md": Trust.AGENT}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """The engine of the ledger."""
    return request.param


def submit_review(ground, *changes, policy=POLICY, trusts=AGENTS, task="task-1", claims=(), **more):
    whole = trusted(change_set(changes or (new("user/n.md"),), claims), trusts)
    return hold(ground.state, by(task, **more), whole, WHY, policy=policy, roots=ground.roots)


def reject_review(ground, review):
    turn_down(ground.state, review, ground.roots, patience(), AT)


def test_equal_pending_proposal_keeps_its_id_until_decided(ground):
    first = submit_review(ground)
    assert submit_review(ground) == first
    others = [
        submit_review(ground, policy=OTHER, task="task-2"),
        submit_review(ground, trusts={"user/n.md": Trust.EXTERNAL}, task="task-3"),
        submit_review(ground, new("user/n.md", b"other\n"), task="task-4"),
        submit_review(ground, claims=(Claim("user/a.md", None),), task="task-5"),
    ]
    assert len({first, *others}) == len(pending(ground.state)) == 5
    assert [each.kind for each in records(ground.state)] == ["review"] * 5
    reject_review(ground, first)
    second = submit_review(ground)
    assert second not in {first, *others}
    raised(ReviewClosed, load, ground.state, first)
    assert load(ground.state, second).id == second


def test_new_id_is_unique(ground, monkeypatch):
    drawn = iter("a" * review.ID_CHARS * 2 + "b" * review.ID_CHARS)
    monkeypatch.setattr(review.secrets, "choice", lambda _: next(drawn))
    first = submit_review(ground)
    assert submit_review(ground, task="task-2", policy=OTHER) == "r" + "b" * review.ID_CHARS != first


@pytest.mark.threat("T-HUM-03", control="one_review_a_task")
def test_repeated_task_has_one_review_for_any_proposal(ground):
    def submit(text, path="user/n.md", fact="f" * 64, **more):
        return submit_review(ground, new(path, text), trusts={path: Trust.AGENT}, fact=fact, **more)

    first = submit(b"one")
    assert submit(b"two") == submit(b"three") == first
    assert [each.id for each in pending(ground.state)] == [first]
    assert load(ground.state, first).change_set.changes[0].after == b"one"
    others = {submit(b"4", fact="e" * 64), submit(b"5", "project/n.md"), submit(b"6", kind="forget")}
    assert len(others | {first}) == 4


def test_review_is_read_completely_during_a_concurrent_decision(ground, monkeypatch):
    first, real = submit_review(ground, claims=(Claim("user/a.md", None),)), review.commits

    def decide_meanwhile(*args):
        meanwhile(
            ground.state,
            "UPDATE review SET state = 'rejected'",
            "DELETE FROM claim",
            "DELETE FROM change_set",
        )
        return real(*args)

    monkeypatch.setattr(review, "commits", decide_meanwhile)
    for read in (partial(load, review_id=first), partial(waiting_of, task="task-1"), lambda s: pending(s)[0]):
        found = read(ground.state).change_set
        assert [each.path.text for each in (*found.changes, *found.claims)] == ["user/n.md", "user/a.md"]


def test_pending_review_is_not_part_of_history_or_recovery(ground):
    """Otherwise unapproved text could return as the previous state of a file."""
    state, key = ground.state, ledger.root_key(ground.state, ground.roots["user"])
    pending_change, edited = new("user/n.md", b"waits\n"), ground.edit("user/a.md", b"waits too\n")
    found, contents = submit_review(ground, pending_change, edited, task="task-1"), ground.contents()
    for rel, text in (("n.md", b"waits\n"), ("a.md", b"waits too\n")):
        assert ledger.source_of(state, key, rel, digest(text)) is None
        assert not ledger.is_known(state, key, rel, digest(text))
    assert ledger.unfinished(state, [key]) == ledger.history(state, {key: "user"}) == ()
    assert recover_all(state, ground.roots, STRICT, patience()) == ()
    assert ([each.id for each in pending(state)], ground.contents()) == ([found], contents)
    ground.commit(new("user/other.md"), run=by("task-1"))  # It needs no review here.
    assert [each.id for each in pending(state)] == [found]
    reject_review(ground, found)
    assert state.ledger.rows("SELECT task FROM change_set") == [("task-1",)]
    assert state.ledger.rows("SELECT 1 FROM change WHERE rel <> 'other.md'") == []
    assert state.ledger.rows("SELECT 1 FROM claim") == []


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_pending_reviews_are_limited_per_token_and_in_total(ground, monkeypatch):
    row = "INSERT INTO task (id, workspace, kind, status, token, trust, shown, created, updated) "
    values = "VALUES (?, 'w', 'remember', 'running', ?, 'agent', '{}', '', '')"

    def execute(statement, values=()):
        with ground.state.ledger.transaction() as connection:
            connection.execute(statement, values)

    def submit_one(number, token=None):
        task = f"{token}-{number}"
        if token is not None:
            execute(row + values, (task, token))
        return submit_review(ground, new("user/n.md", task.encode()), trusts={}, task=task)

    monkeypatch.setattr(review, "MAX_OF_TOKEN", 3)
    monkeypatch.setattr(review, "MAX_WAITING", 6)
    first = [submit_one(number, "editor") for number in range(3)]
    raised(QuotaExceeded, submit_one, 3, "editor", match="wait for review")
    execute("DELETE FROM task")  # A lane deletes finished tasks; its reviews still count for the token.
    raised(QuotaExceeded, submit_one, 4, "editor")
    for arguments in ((0, "phone"), (1, "phone"), (0,)):
        submit_one(*arguments)
    raised(QuotaExceeded, submit_one, 1)
    reject_review(ground, first[0])
    assert submit_one(1) not in first


def submit_by_trust(ground, number, trust, size=1):
    return submit_review(
        ground, new("user/n.md", b"%d " % number * size), trusts={}, task=f"t-{number}", trust=trust
    )


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_reviews_of_agents_leave_room_for_the_owner(ground, monkeypatch):
    monkeypatch.setattr(review, "MAX_OF_AGENTS", 2)
    monkeypatch.setattr(review, "MAX_WAITING", 4)
    first = submit_by_trust(ground, 1, Trust.AGENT)
    submit_by_trust(ground, 2, Trust.EXTERNAL)
    for trust in (Trust.AGENT, Trust.EXTERNAL):
        error = raised(QuotaExceeded, submit_by_trust, ground, 3, trust)
        assert "2 of agents" in str(error)
        assert "muniment review list" in str(error)
    assert submit_by_trust(ground, 1, Trust.AGENT) == first
    submit_by_trust(ground, 4, Trust.OWNER)
    submit_by_trust(ground, 5, Trust.WORKSPACE)
    assert len(pending(ground.state)) == 4
    assert "4 in all" in str(raised(QuotaExceeded, submit_by_trust, ground, 6, Trust.OWNER))


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_review_bytes_are_limited_and_none_is_dropped(ground, monkeypatch):
    monkeypatch.setattr(review, "MAX_BYTES_OF_AGENTS", 1_000)
    monkeypatch.setattr(review, "MAX_WAITING_BYTES", 2_000)
    ids = [submit_by_trust(ground, 1, Trust.AGENT, 300)]
    assert "of agents with 600 bytes" in str(
        raised(QuotaExceeded, submit_by_trust, ground, 2, Trust.AGENT, 300)
    )
    ids.append(submit_by_trust(ground, 3, Trust.AGENT, 100))
    ids.append(submit_by_trust(ground, 4, Trust.OWNER, 500))
    raised(QuotaExceeded, submit_by_trust, ground, 5, Trust.OWNER, 500)
    assert [each.id for each in pending(ground.state)] == ids
    reject_review(ground, ids[0])
    ids.append(submit_by_trust(ground, 6, Trust.AGENT, 200))
    assert [each.id for each in pending(ground.state)] == ids[1:]


@pytest.mark.threat("T-LOG-03", control="shapes_of_paths")
def test_record_has_digests_but_no_content_or_pending_name(ground):
    submit_review(
        ground, new("user/canary/7f3a.md", b"the content itself\n"), ground.edit("user/a.md", b"other\n")
    )
    (record,) = records(ground.state)
    pending_path, existing_path = record.body["paths"]
    assert (existing_path, pending_path[:-16]) == ("user/a.md", "user/<6>/<4>.md #")
    assert [word for word in ("content itself", "canary") if word in str(record)] == []


# The preview for the owner.


def make_pending(*changes, removals=(), claims=()):
    whole = change_set(changes, claims, removals)
    whole = trusted(whole, dict.fromkeys((path.text for path in whole.paths), Trust.AGENT))
    return Pending("rabc123", by("task-1"), WHY, whole, {}, POLICY)


def render_preview(each, **now):
    return preview(each, {f"user/{name}.md": data for name, data in now.items()}.get, POLICY)


def test_preview_shows_text_difference_and_dependencies():
    each = make_pending(new("user/n.md", b"one\ntwo\n"))
    text = render_preview(each)
    assert "user/n.md (new, trust agent)\n@ line 1\n+ one\n+ two\n" in text
    assert "waits because it comes from outside" in text
    assert text.splitlines()[-1] == f"digest {each.digest(POLICY)}"
    before = b"one\ntwo\nthree\n"
    each = make_pending(Proposed("user/a.md", digest(before), b"one\n2\nthree\n"))
    assert "@ line 2\n- two\n+ 2\ncomplete text:\n| one\n| 2\n| three\n" in render_preview(each, a=before)
    for now, approved in (({"a": before}, True), ({"a": b"other\n"}, False), ({}, False)):
        assert ("cannot be approved" in render_preview(each, **now)) != approved
    text = render_preview(make_pending(removals=(claim("user/a.md", b"one\n"),)), a=b"one\n")
    assert "user/a.md (removed)\n@ line 1\n- one\n" in text
    assert "+ " not in text
    each = make_pending(new("user/n.md"), claims=(claim("user/a.md", b"x"), claim("user/b.md", None)))
    rests = f"depends on user/a.md: unchanged, {digest(b'x')[:16]}\ndepends on user/b.md: missing before\n"
    assert rests in render_preview(each, a=b"x")
    assert render_preview(each, a=b"y", b=b"z").count("(changed since)") == 2
    before, after = b"a\n" * 5000, b"b\n" * 5000  # The comparison is limited in cost.
    text = render_preview(make_pending(Proposed("user/a.md", digest(before), after)), a=before)
    assert text.count("\n- a") == text.count("\n+ b") == 5000


@given(st.text(max_size=200), st.text(max_size=200))
@pytest.mark.threat("T-HUM-01", control="marked_lines")
def test_no_text_forges_a_line_of_the_preview(before, after):
    marks = "@ line", "- ", "+ ", "| "
    own_prefixes = (*marks, "review ", "requested ", "waits ", "user/a.md (", "complete text:", "digest ")
    each = make_pending(Proposed("user/a.md", digest(before.encode()), after.encode()))
    for line in render_preview(each, a=before.encode()).split("\n"):
        assert line == "" or line.startswith(own_prefixes)
    forged = render_preview(make_pending(new("user/n.md", b"x\ndigest " + b"0" * 64 + b"\nreview rzzzzzz\n")))
    assert sum(line.startswith("digest ") for line in forged.splitlines()) == 1


def test_digest_covers_the_decided_content_and_the_policy():
    claims, removals = (Claim("user/a.md", "1" * 64),), (Claim("user/r.md", "2" * 64),)
    base = make_pending(new("user/n.md"), claims=claims, removals=removals)
    changes = new("user/n.md", b"other\n"), new("user/m.md"), Proposed("user/n.md", "1" * 64, b"new\n")
    sets = [*({"changes": change_set([each], (), removals).changes} for each in changes)]
    sets += [{"claims": change_set((), [Claim("user/a.md", None)]).claims}]
    sets += [{"changes": ()}, {"claims": ()}, {"changes": base.change_set.changes[:1]}]
    others = [{"change_set": replace(base.change_set, **each)} for each in sets]
    others += [{"change_set": trusted(base.change_set, {"user/n.md": Trust.OWNER})}]
    others += [{"roots": {"user": "another"}}]
    for other in others:
        assert replace(base, **other).digest(POLICY) != base.digest(POLICY), other
    assert base.digest(OTHER) != base.digest(POLICY)
    same = replace(base, id="r000000", reasons=(), run=by("task-2", at="later"), policy=OTHER)
    assert same.digest(POLICY) == base.digest(POLICY)
