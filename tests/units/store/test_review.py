"""How a pending change-set is kept and shown: whole, canonical, once."""

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
    """What the ledger is kept in."""
    return request.param


def held(ground, *changes, policy=POLICY, trusts=AGENTS, task="task-1", claims=(), **more):
    whole = trusted(change_set(changes or (new("user/n.md"),), claims), trusts)
    return hold(ground.state, by(task, **more), whole, WHY, policy=policy, roots=ground.roots)


def closed(ground, review):
    turn_down(ground.state, review, ground.roots, patience(), AT)


def test_the_same_proposal_that_waits_already_keeps_its_id_until_it_is_decided_and_another_does_not(ground):
    first = held(ground)
    assert held(ground) == first
    others = [
        held(ground, policy=OTHER, task="task-2"),
        held(ground, trusts={"user/n.md": Trust.EXTERNAL}, task="task-3"),
        held(ground, new("user/n.md", b"other\n"), task="task-4"),
        held(ground, claims=(Claim("user/a.md", None),), task="task-5"),
    ]
    assert len({first, *others}) == len(pending(ground.state)) == 5
    assert [each.kind for each in records(ground.state)] == ["review"] * 5
    closed(ground, first)
    second = held(ground)
    assert second not in {first, *others}
    raised(ReviewClosed, load, ground.state, first)
    assert load(ground.state, second).id == second


def test_a_new_id_is_none_that_another_has(ground, monkeypatch):
    drawn = iter("a" * review.ID_CHARS * 2 + "b" * review.ID_CHARS)
    monkeypatch.setattr(review.secrets, "choice", lambda _: next(drawn))
    first = held(ground)
    assert held(ground, task="task-2", policy=OTHER) == "r" + "b" * review.ID_CHARS != first


@pytest.mark.threat("T-HUM-03", control="one_review_a_task")
def test_a_task_that_is_carried_out_again_waits_once_whatever_it_proposes_then(ground):
    def asked(text, path="user/n.md", fact="f" * 64, **more):
        return held(ground, new(path, text), trusts={path: Trust.AGENT}, fact=fact, **more)

    first = asked(b"one")
    assert asked(b"two") == asked(b"three") == first
    assert [each.id for each in pending(ground.state)] == [first]
    assert load(ground.state, first).change_set.changes[0].after == b"one"
    others = {asked(b"4", fact="e" * 64), asked(b"5", "project/n.md"), asked(b"6", kind="forget")}
    assert len(others | {first}) == 4


def test_what_is_read_is_whole_though_another_process_decides_about_it_meanwhile(ground, monkeypatch):
    first, real = held(ground, claims=(Claim("user/a.md", None),)), review.commits

    def decided_meanwhile(*args):
        meanwhile(
            ground.state,
            "UPDATE review SET state = 'rejected'",
            "DELETE FROM claim",
            "DELETE FROM change_set",
        )
        return real(*args)

    monkeypatch.setattr(review, "commits", decided_meanwhile)
    for read in (partial(load, review_id=first), partial(waiting_of, task="task-1"), lambda s: pending(s)[0]):
        found = read(ground.state).change_set
        assert [each.path.text for each in (*found.changes, *found.claims)] == ["user/n.md", "user/a.md"]


def test_what_waits_is_no_history_no_known_bytes_and_nothing_that_a_recovery_takes_back(ground):
    """Else what nobody approved could come back as what stood there once."""
    state, key = ground.state, ledger.root_key(ground.state, ground.roots["user"])
    waits, edited = new("user/n.md", b"waits\n"), ground.edit("user/a.md", b"waits too\n")
    found, contents = held(ground, waits, edited, task="task-1"), ground.contents()
    for rel, text in (("n.md", b"waits\n"), ("a.md", b"waits too\n")):
        assert ledger.source_of(state, key, rel, digest(text)) is None
        assert not ledger.is_known(state, key, rel, digest(text))
    assert ledger.unfinished(state, [key]) == ledger.history(state, {key: "user"}) == ()
    assert recover_all(state, ground.roots, STRICT, patience()) == ()
    assert ([each.id for each in pending(state)], ground.contents()) == ([found], contents)
    ground.commit(new("user/other.md"), run=by("task-1"))  # Where it need not wait any more.
    assert [each.id for each in pending(state)] == [found]
    closed(ground, found)
    assert state.ledger.rows("SELECT task FROM change_set") == [("task-1",)]
    assert state.ledger.rows("SELECT 1 FROM change WHERE rel <> 'other.md'") == []
    assert state.ledger.rows("SELECT 1 FROM claim") == []


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_no_client_fills_what_waits_and_all_together_only_so_far(ground, monkeypatch):
    row = "INSERT INTO task (id, workspace, kind, status, token, trust, shown, created, updated) "
    values = "VALUES (?, 'w', 'remember', 'running', ?, 'agent', '{}', '', '')"

    def write(statement, values=()):
        with ground.state.ledger.transaction() as connection:
            connection.execute(statement, values)

    def wait(number, token=None):
        task = f"{token}-{number}"
        if token is not None:
            write(row + values, (task, token))
        return held(ground, new("user/n.md", task.encode()), trusts={}, task=task)

    monkeypatch.setattr(review, "MAX_OF_TOKEN", 3)
    monkeypatch.setattr(review, "MAX_WAITING", 6)
    mine = [wait(number, "editor") for number in range(3)]
    raised(QuotaExceeded, wait, 3, "editor", match="wait for review")
    write("DELETE FROM task")  # A lane forgets what is over; its reviews stay the token's.
    raised(QuotaExceeded, wait, 4, "editor")
    for asking in ((0, "phone"), (1, "phone"), (0,)):
        wait(*asking)
    raised(QuotaExceeded, wait, 1)
    closed(ground, mine[0])
    assert wait(1) not in mine


def waits_of(ground, number, trust, size=1):
    return held(ground, new("user/n.md", b"%d " % number * size), trusts={}, task=f"t-{number}", trust=trust)


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_reviews_of_agents_leave_room_for_the_owner(ground, monkeypatch):
    monkeypatch.setattr(review, "MAX_OF_AGENTS", 2)
    monkeypatch.setattr(review, "MAX_WAITING", 4)
    first = waits_of(ground, 1, Trust.AGENT)
    waits_of(ground, 2, Trust.EXTERNAL)
    for trust in (Trust.AGENT, Trust.EXTERNAL):
        error = raised(QuotaExceeded, waits_of, ground, 3, trust)
        assert "2 of agents" in str(error)
        assert "muniment review list" in str(error)
    assert waits_of(ground, 1, Trust.AGENT) == first
    waits_of(ground, 4, Trust.OWNER)
    waits_of(ground, 5, Trust.WORKSPACE)
    assert len(pending(ground.state)) == 4
    assert "4 in all" in str(raised(QuotaExceeded, waits_of, ground, 6, Trust.OWNER))


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_bytes_of_reviews_are_limited_and_none_is_dropped(ground, monkeypatch):
    monkeypatch.setattr(review, "MAX_BYTES_OF_AGENTS", 1_000)
    monkeypatch.setattr(review, "MAX_WAITING_BYTES", 2_000)
    kept = [waits_of(ground, 1, Trust.AGENT, 300)]
    assert "of agents with 600 bytes" in str(raised(QuotaExceeded, waits_of, ground, 2, Trust.AGENT, 300))
    kept.append(waits_of(ground, 3, Trust.AGENT, 100))
    kept.append(waits_of(ground, 4, Trust.OWNER, 500))
    raised(QuotaExceeded, waits_of, ground, 5, Trust.OWNER, 500)
    assert [each.id for each in pending(ground.state)] == kept
    closed(ground, kept[0])
    kept.append(waits_of(ground, 6, Trust.AGENT, 200))
    assert [each.id for each in pending(ground.state)] == kept[1:]


@pytest.mark.threat("T-LOG-03", control="shapes_of_paths")
def test_the_record_names_what_is_there_and_digests_and_no_content_and_no_name_that_only_waits(ground):
    held(ground, new("user/canary/7f3a.md", b"the content itself\n"), ground.edit("user/a.md", b"other\n"))
    (record,) = records(ground.state)
    waits, stands = record.body["paths"]
    assert (stands, waits[:-16]) == ("user/a.md", "user/<6>/<4>.md #")
    assert [word for word in ("content itself", "canary") if word in str(record)] == []


# What the owner sees.


def waiting(*changes, removals=(), claims=()):
    whole = change_set(changes, claims, removals)
    whole = trusted(whole, dict.fromkeys((path.text for path in whole.paths), Trust.AGENT))
    return Pending("rabc123", by("task-1"), WHY, whole, {}, POLICY)


def shown(each, **now):
    return preview(each, {f"user/{name}.md": data for name, data in now.items()}.get, POLICY)


def test_what_is_new_changed_or_removed_is_shown_whole_and_as_a_difference_with_what_it_rests_on():
    each = waiting(new("user/n.md", b"one\ntwo\n"))
    text = shown(each)
    assert "user/n.md (new, trust agent)\n@ line 1\n+ one\n+ two\n" in text
    assert "waits because it comes from outside" in text
    assert text.splitlines()[-1] == f"digest {each.digest(POLICY)}"
    before = b"one\ntwo\nthree\n"
    each = waiting(Proposed("user/a.md", digest(before), b"one\n2\nthree\n"))
    assert "@ line 2\n- two\n+ 2\ncomplete text:\n| one\n| 2\n| three\n" in shown(each, a=before)
    for now, approved in (({"a": before}, True), ({"a": b"other\n"}, False), ({}, False)):
        assert ("cannot be approved" in shown(each, **now)) != approved
    text = shown(waiting(removals=(claim("user/a.md", b"one\n"),)), a=b"one\n")
    assert "user/a.md (removed)\n@ line 1\n- one\n" in text
    assert "+ " not in text
    each = waiting(new("user/n.md"), claims=(claim("user/a.md", b"x"), claim("user/b.md", None)))
    rests = f"depends on user/a.md: unchanged, {digest(b'x')[:16]}\ndepends on user/b.md: missing before\n"
    assert rests in shown(each, a=b"x")
    assert shown(each, a=b"y", b=b"z").count("(changed since)") == 2
    before, after = b"a\n" * 5000, b"b\n" * 5000  # Compared by no more than it costs.
    text = shown(waiting(Proposed("user/a.md", digest(before), after)), a=before)
    assert text.count("\n- a") == text.count("\n+ b") == 5000


@given(st.text(max_size=200), st.text(max_size=200))
@pytest.mark.threat("T-HUM-01", control="marked_lines")
def test_no_text_forges_a_line_of_ours(before, after):
    marks = "@ line", "- ", "+ ", "| "
    ours = (*marks, "review ", "requested ", "waits ", "user/a.md (", "complete text:", "digest ")
    each = waiting(Proposed("user/a.md", digest(before.encode()), after.encode()))
    for line in shown(each, a=before.encode()).split("\n"):
        assert line == "" or line.startswith(ours)
    forged = shown(waiting(new("user/n.md", b"x\ndigest " + b"0" * 64 + b"\nreview rzzzzzz\n")))
    assert sum(line.startswith("digest ") for line in forged.splitlines()) == 1


def test_the_digest_is_of_all_that_is_decided_about_and_of_the_policy_in_force_and_nothing_else():
    claims, removals = (Claim("user/a.md", "1" * 64),), (Claim("user/r.md", "2" * 64),)
    base = waiting(new("user/n.md"), claims=claims, removals=removals)
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
