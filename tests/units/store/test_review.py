"""How a pending change set is stored and shown: complete, canonical, once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.catching import catch_error
from kit.fleet.engines import ENGINES, write_concurrently
from kit.store.bench import (
    STRICT,
    Claim,
    ProposedFile,
    assign_trust,
    make_change_set,
    make_claim,
    make_deadline,
    make_run,
    propose_new,
)
from muniment.errors import QuotaExceeded, ReviewClosed
from muniment.kernel.change import digest
from muniment.kernel.names import Trust
from muniment.store import ledger, review
from muniment.store.audit import read_records
from muniment.store.recovery import recover_roots
from muniment.store.review import (
    PendingChange,
    find_pending,
    format_preview,
    load_pending,
    queue_for_review,
    read_pending,
    reject_pending,
)

POLICY, OTHER = "a" * 64, "b" * 64
AT = "2026-11-22T10:00:00.000Z"
WHY = ("it comes from outside",)
AGENTS = {"user/n.md": Trust.AGENT}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """The engine of the ledger."""
    return request.param


def submit_review(ground, *changes, policy=POLICY, trusts=AGENTS, task="task-1", claims=(), **more):
    whole = assign_trust(make_change_set(changes or (propose_new("user/n.md"),), claims), trusts)
    return queue_for_review(
        ground.state, make_run(task, **more), whole, WHY, policy=policy, roots=ground.roots
    )


def reject_review(ground, review):
    reject_pending(ground.state, review, ground.roots, make_deadline(), AT)


def test_equal_pending_proposal_keeps_its_id_until_decided(store_bench):
    first = submit_review(store_bench)
    assert submit_review(store_bench) == first
    others = [
        submit_review(store_bench, policy=OTHER, task="task-2"),
        submit_review(store_bench, trusts={"user/n.md": Trust.EXTERNAL}, task="task-3"),
        submit_review(store_bench, propose_new("user/n.md", b"other\n"), task="task-4"),
        submit_review(store_bench, claims=(Claim("user/a.md", None),), task="task-5"),
    ]
    assert len({first, *others}) == len(read_pending(store_bench.state)) == 5
    assert [each.kind for each in read_records(store_bench.state)] == ["review"] * 5
    reject_review(store_bench, first)
    second = submit_review(store_bench)
    assert second not in {first, *others}
    catch_error(ReviewClosed, load_pending, store_bench.state, first)
    assert load_pending(store_bench.state, second).id == second


def test_new_id_is_unique(store_bench, monkeypatch):
    drawn = iter("a" * review.ID_CHARS * 2 + "b" * review.ID_CHARS)
    monkeypatch.setattr(review.secrets, "choice", lambda _: next(drawn))
    first = submit_review(store_bench)
    assert submit_review(store_bench, task="task-2", policy=OTHER) == "r" + "b" * review.ID_CHARS != first


@pytest.mark.threat("T-HUM-03", control="one_review_a_task")
def test_repeated_task_has_one_review_for_any_proposal(store_bench):
    def submit(text, path="user/n.md", fact="f" * 64, **more):
        return submit_review(
            store_bench, propose_new(path, text), trusts={path: Trust.AGENT}, fact=fact, **more
        )

    first = submit(b"one")
    assert submit(b"two") == submit(b"three") == first
    assert [each.id for each in read_pending(store_bench.state)] == [first]
    assert load_pending(store_bench.state, first).change_set.changes[0].after == b"one"
    others = {submit(b"4", fact="e" * 64), submit(b"5", "project/n.md"), submit(b"6", kind="forget")}
    assert len(others | {first}) == 4


def test_review_is_read_completely_during_a_concurrent_decision(store_bench, monkeypatch):
    first, real = submit_review(store_bench, claims=(Claim("user/a.md", None),)), review.read_commits

    def decide_meanwhile(*args):
        write_concurrently(
            store_bench.state,
            "UPDATE review SET state = 'rejected'",
            "DELETE FROM claim",
            "DELETE FROM change_set",
        )
        return real(*args)

    monkeypatch.setattr(review, "read_commits", decide_meanwhile)
    for read in (
        partial(load_pending, review_id=first),
        partial(find_pending, task="task-1"),
        lambda s: read_pending(s)[0],
    ):
        found = read(store_bench.state).change_set
        assert [each.path.text for each in (*found.changes, *found.claims)] == ["user/n.md", "user/a.md"]


def test_pending_review_is_not_part_of_history_or_recovery(store_bench):
    """Otherwise unapproved text could return as the previous state of a file."""
    state, key = store_bench.state, ledger.get_root_key(store_bench.state, store_bench.roots["user"])
    pending_change, edited = (
        propose_new("user/n.md", b"waits\n"),
        store_bench.propose_edit("user/a.md", b"waits too\n"),
    )
    found, contents = (
        submit_review(store_bench, pending_change, edited, task="task-1"),
        store_bench.read_contents(),
    )
    for rel, text in (("n.md", b"waits\n"), ("a.md", b"waits too\n")):
        assert ledger.find_source(state, key, rel, digest(text)) is None
        assert not ledger.is_known(state, key, rel, digest(text))
    assert ledger.list_unfinished(state, [key]) == ledger.read_history(state, {key: "user"}) == ()
    assert recover_roots(state, store_bench.roots, STRICT, make_deadline()) == ()
    assert ([each.id for each in read_pending(state)], store_bench.read_contents()) == ([found], contents)
    store_bench.commit(propose_new("user/other.md"), run=make_run("task-1"))  # It needs no review here.
    assert [each.id for each in read_pending(state)] == [found]
    reject_review(store_bench, found)
    assert state.ledger.rows("SELECT task FROM change_set") == [("task-1",)]
    assert state.ledger.rows("SELECT 1 FROM change WHERE rel <> 'other.md'") == []
    assert state.ledger.rows("SELECT 1 FROM claim") == []


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_pending_reviews_are_limited_per_token_and_in_total(store_bench, monkeypatch):
    row = "INSERT INTO task (id, workspace, kind, status, token, trust, shown, created, updated) "
    values = "VALUES (?, 'w', 'remember', 'running', ?, 'agent', '{}', '', '')"

    def execute(statement, values=()):
        with store_bench.state.ledger.transaction() as connection:
            connection.execute(statement, values)

    def submit_one(number, token=None):
        task = f"{token}-{number}"
        if token is not None:
            execute(row + values, (task, token))
        return submit_review(store_bench, propose_new("user/n.md", task.encode()), trusts={}, task=task)

    monkeypatch.setattr(review, "MAX_OF_TOKEN", 3)
    monkeypatch.setattr(review, "MAX_WAITING", 6)
    first = [submit_one(number, "editor") for number in range(3)]
    catch_error(QuotaExceeded, submit_one, 3, "editor", match="wait for review")
    execute("DELETE FROM task")  # A lane deletes finished tasks; its reviews still count for the token.
    catch_error(QuotaExceeded, submit_one, 4, "editor")
    for arguments in ((0, "phone"), (1, "phone"), (0,)):
        submit_one(*arguments)
    catch_error(QuotaExceeded, submit_one, 1)
    reject_review(store_bench, first[0])
    assert submit_one(1) not in first


def submit_by_trust(ground, number, trust, size=1):
    return submit_review(
        ground, propose_new("user/n.md", b"%d " % number * size), trusts={}, task=f"t-{number}", trust=trust
    )


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_reviews_of_agents_leave_room_for_the_owner(store_bench, monkeypatch):
    monkeypatch.setattr(review, "MAX_OF_AGENTS", 2)
    monkeypatch.setattr(review, "MAX_WAITING", 4)
    first = submit_by_trust(store_bench, 1, Trust.AGENT)
    submit_by_trust(store_bench, 2, Trust.EXTERNAL)
    for trust in (Trust.AGENT, Trust.EXTERNAL):
        error = catch_error(QuotaExceeded, submit_by_trust, store_bench, 3, trust)
        assert "2 of agents" in str(error)
        assert "muniment review list" in str(error)
    assert submit_by_trust(store_bench, 1, Trust.AGENT) == first
    submit_by_trust(store_bench, 4, Trust.OWNER)
    submit_by_trust(store_bench, 5, Trust.WORKSPACE)
    assert len(read_pending(store_bench.state)) == 4
    assert "4 in all" in str(catch_error(QuotaExceeded, submit_by_trust, store_bench, 6, Trust.OWNER))


@pytest.mark.threat("T-HUM-03", control="capped_reviews")
def test_review_bytes_are_limited_and_none_is_dropped(store_bench, monkeypatch):
    monkeypatch.setattr(review, "MAX_BYTES_OF_AGENTS", 1_000)
    monkeypatch.setattr(review, "MAX_WAITING_BYTES", 2_000)
    ids = [submit_by_trust(store_bench, 1, Trust.AGENT, 300)]
    assert "of agents with 600 bytes" in str(
        catch_error(QuotaExceeded, submit_by_trust, store_bench, 2, Trust.AGENT, 300)
    )
    ids.append(submit_by_trust(store_bench, 3, Trust.AGENT, 100))
    ids.append(submit_by_trust(store_bench, 4, Trust.OWNER, 500))
    catch_error(QuotaExceeded, submit_by_trust, store_bench, 5, Trust.OWNER, 500)
    assert [each.id for each in read_pending(store_bench.state)] == ids
    reject_review(store_bench, ids[0])
    ids.append(submit_by_trust(store_bench, 6, Trust.AGENT, 200))
    assert [each.id for each in read_pending(store_bench.state)] == ids[1:]


@pytest.mark.threat("T-LOG-03", control="shapes_of_paths")
def test_record_has_digests_but_no_content_or_pending_name(store_bench):
    submit_review(
        store_bench,
        propose_new("user/canary/7f3a.md", b"the content itself\n"),
        store_bench.propose_edit("user/a.md", b"other\n"),
    )
    (record,) = read_records(store_bench.state)
    pending_path, existing_path = record.body["paths"]
    assert (existing_path, pending_path[:-16]) == ("user/a.md", "user/<6>/<4>.md #")
    assert [word for word in ("content itself", "canary") if word in str(record)] == []


# The preview for the owner.


def make_pending(*changes, removals=(), claims=()):
    whole = make_change_set(changes, claims, removals)
    whole = assign_trust(whole, dict.fromkeys((path.text for path in whole.paths), Trust.AGENT))
    return PendingChange("rabc123", make_run("task-1"), WHY, whole, {}, POLICY)


def render_preview(each, **now):
    return format_preview(each, {f"user/{name}.md": data for name, data in now.items()}.get, POLICY)


def test_preview_shows_text_difference_and_dependencies():
    each = make_pending(propose_new("user/n.md", b"one\ntwo\n"))
    text = render_preview(each)
    assert "user/n.md (new, trust agent)\n@ line 1\n+ one\n+ two\n" in text
    assert "waits because it comes from outside" in text
    assert text.splitlines()[-1] == f"digest {each.compute_digest(POLICY)}"
    before = b"one\ntwo\nthree\n"
    each = make_pending(ProposedFile("user/a.md", digest(before), b"one\n2\nthree\n"))
    assert "@ line 2\n- two\n+ 2\ncomplete text:\n| one\n| 2\n| three\n" in render_preview(each, a=before)
    for now, approved in (({"a": before}, True), ({"a": b"other\n"}, False), ({}, False)):
        assert ("cannot be approved" in render_preview(each, **now)) != approved
    text = render_preview(make_pending(removals=(make_claim("user/a.md", b"one\n"),)), a=b"one\n")
    assert "user/a.md (removed)\n@ line 1\n- one\n" in text
    assert "+ " not in text
    each = make_pending(
        propose_new("user/n.md"), claims=(make_claim("user/a.md", b"x"), make_claim("user/b.md", None))
    )
    rests = f"depends on user/a.md: digest {digest(b'x')[:16]}\ndepends on user/b.md: no such file\n"
    assert rests in render_preview(each, a=b"x")
    assert render_preview(each, a=b"y", b=b"z").count("(changed since)") == 2
    before, after = b"a\n" * 5000, b"b\n" * 5000  # The comparison is limited in cost.
    text = render_preview(make_pending(ProposedFile("user/a.md", digest(before), after)), a=before)
    assert text.count("\n- a") == text.count("\n+ b") == 5000


@given(st.text(max_size=200), st.text(max_size=200))
@pytest.mark.threat("T-HUM-01", control="marked_lines")
def test_no_text_forges_a_line_of_the_preview(before, after):
    marks = "@ line", "- ", "+ ", "| "
    own_prefixes = (*marks, "review ", "requested ", "waits ", "user/a.md (", "complete text:", "digest ")
    each = make_pending(ProposedFile("user/a.md", digest(before.encode()), after.encode()))
    for line in render_preview(each, a=before.encode()).split("\n"):
        assert line == "" or line.startswith(own_prefixes)
    forged = render_preview(
        make_pending(propose_new("user/n.md", b"x\ndigest " + b"0" * 64 + b"\nreview rzzzzzz\n"))
    )
    assert sum(line.startswith("digest ") for line in forged.splitlines()) == 1


def test_digest_covers_the_decided_content_and_the_policy():
    claims, removals = (Claim("user/a.md", "1" * 64),), (Claim("user/r.md", "2" * 64),)
    base = make_pending(propose_new("user/n.md"), claims=claims, removals=removals)
    changes = (
        propose_new("user/n.md", b"other\n"),
        propose_new("user/m.md"),
        ProposedFile("user/n.md", "1" * 64, b"new\n"),
    )
    sets = [*({"changes": make_change_set([each], (), removals).changes} for each in changes)]
    sets += [{"claims": make_change_set((), [Claim("user/a.md", None)]).claims}]
    sets += [{"changes": ()}, {"claims": ()}, {"changes": base.change_set.changes[:1]}]
    others = [{"change_set": replace(base.change_set, **each)} for each in sets]
    others += [{"change_set": assign_trust(base.change_set, {"user/n.md": Trust.OWNER})}]
    others += [{"roots": {"user": "another"}}]
    for other in others:
        assert replace(base, **other).compute_digest(POLICY) != base.compute_digest(POLICY), other
    assert base.compute_digest(OTHER) != base.compute_digest(POLICY)
    same = replace(base, id="r000000", reasons=(), run=make_run("task-2", at="later"), policy=OTHER)
    assert same.compute_digest(POLICY) == base.compute_digest(POLICY)
