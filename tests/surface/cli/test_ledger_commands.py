"""`history`, `why`, `show`, `undo`, `review`, `audit`, `erase`: exit codes, messages, one JSON document."""

import json
from contextlib import nullcontext

import pytest

from kit.memories import make_roots, photograph, put
from kit.store.ground import Proposed, by, change_set, trusted
from muniment import api
from muniment.errors import MunimentError
from muniment.kernel.binding import bind_all
from muniment.kernel.change import digest
from muniment.kernel.names import Trust
from muniment.operations.place import Place
from muniment.operations.review import show
from muniment.policy.load import load_policy
from muniment.server.lane import Lane
from muniment.server.lane_tasks import NewTask
from muniment.store import ledger
from muniment.store.review import hold
from muniment.store.state import State
from muniment.store.tasks import Originator
from muniment.testing.minds import ScriptedModel, call, calls, say

FACT = "The user prefers dark mode in every editor there is"


@pytest.fixture
def saved_fact(muniment):
    """Remember a fact and return (task id, path)."""
    document = muniment.document("remember", FACT)
    return document["task_id"], document["files_touched"][0]


def make_pending_review(roots, home, text="waits\n"):
    """Create a pending review and return its id and its digest."""
    with State(home / "state") as state:
        place = Place(load_policy("strict"), bind_all(roots), state)
        pending_changes = trusted(
            change_set([Proposed("user/n.md", None, text.encode())]), {"user/n.md": Trust.EXTERNAL}
        )
        bindings = {"policy": place.policy.digest, "roots": place.roots}
        review = hold(state, by(), pending_changes, ("it comes from outside",), **bindings)
        return review, show(review, place).digest


# -- history, why, show, undo --------------------------------------------------------------------------


@pytest.mark.usefixtures("at_work")
def test_read_commands_create_nothing_before_first_commit(muniment, home):
    for bound in (True, False):
        assert muniment.lines("history", bound=bound) == ["no changes were committed yet"]
        assert muniment.lines("audit", "verify")[0].startswith("0 records")
        assert muniment.lines("review", "list", bound=bound) == ["no pending reviews"]
    assert muniment.lines("ls", bound=False) == ["user: no entries yet", "project: no entries yet"]
    assert muniment.lines("index", "verify", bound=False) == ["the indexes are correct"]
    assert muniment.lines("index", "rebuild", bound=False) == ["the indexes are rebuilt"]
    nothing = "not shown: nothing is remembered in user yet [not_found]"
    assert muniment.lines("show", "user/a.md", bound=False, code=1) == [nothing]
    assert not home.exists()


def test_why_prints_origin_and_manual_edit(muniment, saved_fact, roots):
    task, path = saved_fact
    lines = muniment.lines("why", path)
    assert lines[0] == f"{path} is unchanged since this task; trust owner"
    assert lines[1].startswith(f"  task {task} (remember), 20")
    assert lines[2].startswith("  decided by rules, trust owner, policy strict@")
    assert lines[3].endswith(" (a keyed digest)")
    file = roots["user"] / path.removeprefix("user/")
    file.write_bytes(b"by hand\n")
    assert "was edited by hand since this task; trust owner" in muniment("why", path).stdout
    before = photograph(*roots.values())
    message = (
        f"changed again since: {path}; undo the later changes first, or restore the files [undo_overlap]"
    )
    assert muniment.lines("undo", task, code=1) == [f"not undone: {message}"]
    assert photograph(*roots.values()) == before
    file.unlink()
    assert muniment.document("why", path)["state"] == "missing"
    put(roots["project"], "hand.md")
    by_hand = "project/hand.md was not written by Muniment; it has the trust of its scope; trust workspace"
    assert muniment.lines("why", "project/hand.md") == [by_hand]
    del roots["project"]
    for line in ("undo task-9", "why user/never.md", "why project/x.md", "show project/x.md@task-1"):
        assert muniment.failure(*line.split()) == "not_found"


def test_show_and_why_print_versions_and_removals(muniment, saved_fact, roots, monkeypatch):
    task, path = saved_fact
    before = (roots["user"] / path.removeprefix("user/")).read_text()
    light = FACT.replace("dark", "light")
    edit = call("edit", path=path, old_string=f"---\n{FACT}", new_string=f"---\n{light}")
    steps = calls(call("read_file", path=path)), calls(edit), say("done")
    monkeypatch.setattr(api, "open_model", lambda *_: nullcontext(ScriptedModel(steps)))
    second_task = muniment.document("remember", light)["task_id"]
    assert muniment("show", f"{path}@{task}").stdout == before
    assert "light mode" in muniment("show", path.replace("dark", "light")).stdout
    output = {"path": path, "content": before, "task": task}
    assert muniment.document("show", f"{path}@{task}") == output
    for shown, code in ((f"{path}@other", "not_found"), (f"team/x.md@{task}", "refused")):
        assert muniment.failure("show", shown) == code
    muniment("undo", second_task)
    undone = muniment.document("undo", task)["task_id"]
    output = muniment("why", path).stdout
    assert output.startswith(f"{path} was removed by this task\n  task {undone} (undo)")
    assert muniment.lines("show", f"{path}@{undone}") == [f"{undone} removed {path}"]
    assert muniment.document("show", f"{path}@{undone}")["content"] is None
    monkeypatch.setattr(ledger, "MAX_STEPS", 1)
    assert "only the newest 1" in muniment("history").stdout
    assert muniment.document("history")["complete"] is False


# -- review --------------------------------------------------------------------------------------------


def test_review_is_listed_shown_and_approved_by_digest(muniment, roots, home):
    review, review_digest = make_pending_review(roots, home)
    one, two = muniment.lines("review", "list")
    assert one.startswith(f"{review}: edit of user/n.md, ")
    assert two == "  reason: it comes from outside"
    (listed,) = muniment.document("review", "list")["reviews"]
    assert (listed["review_id"], listed["paths"]) == (review, ["user/n.md"])
    assert muniment("review", "show", review).stdout.endswith(f"digest {review_digest}\n")
    assert muniment.document("review", "show", review)["digest"] == review_digest
    assert muniment.failure("review", "approve", review, "--digest", "0" * 64) == "review_changed"
    undo_line = f"  to undo it: muniment undo approve:{review}"
    lines = muniment.lines("review", "approve", review, "--digest", review_digest)
    assert lines == ["approved (new): user/n.md", undo_line]
    assert (roots["user"] / "n.md").read_text() == "waits\n"
    assert muniment.failure("review", "approve", review, "--yes") == "review_closed"
    assert muniment("undo", f"approve:{review}").exit_code == 0
    assert not (roots["user"] / "n.md").exists()


@pytest.mark.usefixtures("terminal")
def test_review_approval_on_terminal_uses_shown_version(muniment, roots, home, monkeypatch):
    review, _ = make_pending_review(roots, home)
    shown_reviews = []
    monkeypatch.setattr(
        "muniment.operations.review.show",
        lambda *arguments: shown_reviews.append(show(*arguments)) or shown_reviews[-1],
    )
    for number, stdin in enumerate((None, "\n", "N\n", "y\n"), 1):
        code = 0 if stdin == "y\n" else 130
        assert muniment("review", "approve", review, stdin=stdin).exit_code == code
        assert ((roots["user"] / "n.md").exists(), len(shown_reviews)) == (code == 0, number)


def test_review_approval_without_terminal_requires_yes(muniment, roots, home, tmp_path):
    make_pending_review(make_roots(tmp_path / "other"), home)
    assert muniment.lines("review", "list") == ["no pending reviews", "1 more in other workspaces"]
    assert muniment.document("review", "list") == {"reviews": [], "elsewhere": 1}
    review, _ = make_pending_review(roots, home)
    unconfirmed = muniment("review", "approve", review, stdin="y\n")
    assert (unconfirmed.exit_code, "--digest" in unconfirmed.stderr, "--yes" in unconfirmed.stderr) == (
        2,
        True,
        True,
    )
    assert not (roots["user"] / "n.md").exists()
    done = muniment.document("review", "approve", review, "--yes")
    assert (done["status"], done["changes"]) == ("approved", [{"path": "user/n.md", "kind": "create"}])
    review, _ = make_pending_review(roots, home, "other\n")
    assert muniment.lines("review", "reject", review) == [f"rejected: {review}; nothing was written"]
    assert muniment.failure("review", "reject", review) == "review_closed"
    assert muniment.failure("review", "show", "rzzzzzz") == "not_found"


# -- audit ---------------------------------------------------------------------------------------------


def test_audit_verifies_chain_and_stored_head(muniment, saved_fact, home, tmp_path):
    task, path = saved_fact
    lines = muniment.lines("audit", "verify")
    assert lines[0] == "1 records; none was edited, removed or added without the key"
    assert "--head-file" in " ".join(lines)
    head_file = put(tmp_path, "head", muniment("audit", "head").stdout)
    document = muniment.document("audit", "verify", "--head-file", head_file)
    assert (document["whole"], document["head"]) == (True, head_file.read_text().strip())
    assert muniment("audit", "verify", "--head-file", "-", stdin=head_file.read_text()).exit_code == 0
    assert muniment.document("audit", "head") == {"head": document["head"], "records": 1}
    output = muniment("audit", "show").stdout
    assert (output.startswith("1 20"), f" commit {task} " in output, path in output) == (True, True, True)
    assert muniment("audit", "show", "--task", "task-9").stdout.startswith("no records of this task")
    (record,) = muniment.document("audit", "show", "--task", task)["records"]
    assert (record["kind"], record["task"]) == ("commit", task)
    for content in (b"", b"no head\n", b"\xff\n", b"x" * 2000):
        bad = put(tmp_path, "bad", content)
        assert muniment.failure("audit", "verify", "--head-file", bad) == "config_invalid"
    assert muniment.failure("audit", "verify", "--head-file", tmp_path / "none") == "config_invalid"
    with State(home / "state") as state, state.ledger.transaction() as connection:
        connection.execute("UPDATE record SET body = '{}'")
    problem = "record 1: its body was changed"
    assert muniment.lines("audit", "verify", code=1) == [problem]
    assert muniment.document("audit", "verify", code=1)["problems"] == [problem]
    with State(home / "state") as state, state.ledger.transaction() as connection:
        for table in ("record", "head", "change_set"):
            connection.execute(f"DELETE FROM {table}")
    # A complete old ledger is detected only with the stored head.
    assert muniment("audit", "verify").exit_code == 0
    message = "the head stored elsewhere (1) is not in this ledger: it was cut or replaced"
    assert muniment.lines("audit", "verify", "--head-file", head_file, code=1) == [message]


# -- erase ---------------------------------------------------------------------------------------------


def test_erase_shows_plan_and_applies_it_only_with_yes(muniment, saved_fact, roots, home):
    task, path = saved_fact
    with State(home / "state") as state:
        Lane(state, "w").submit(NewTask("remember", {"content": FACT}, Originator("owner"), {}))
    before = photograph(*roots.values())
    first, second, third, *_, open_, last = lines = muniment.lines("erase", path)
    assert [first, second] == [f"would be erased permanently: {path}", f"  the file {path}"]
    assert third == "  1 versions in the history; undo and show will report them as erased"
    assert "  requests and results of 1 daemon tasks; waiting tasks will fail" in lines
    assert last == f"nothing was erased; to erase it: muniment erase {path} --yes"
    assert "not covered: " in open_
    assert photograph(*roots.values()) == before
    plan = muniment.document("erase", path)
    assert (plan["files"], plan["lane_tasks"]) == ([path], 1)
    done = muniment("erase", path, "--yes").stdout
    assert done.startswith(
        f"erased: {path} (1 files, 2 versions, 0 reviews, the content of 2 audit records)\n"
    )
    assert "not covered: " in done
    assert not (roots["user"] / path.removeprefix("user/")).exists()
    assert muniment.failure("show", f"{path}@{task}") == muniment.failure("undo", task) == "erased"
    assert muniment("audit", "verify").exit_code == 0
    assert "(erased)" in muniment("audit", "show").stdout
    for more in ((), ("--yes",)):
        assert muniment.failure("erase", "user/none.md", *more) == "not_found"


def test_erase_lists_reviews_copies_and_older_versions(muniment, saved_fact, roots, home):
    task, path = saved_fact
    (home / "state" / "ledger.db.version-1").write_bytes(b"")
    make_pending_review(roots, home, FACT + "\n")
    second = muniment.document("remember", FACT + ", and in terminals")
    (other,) = second["files_touched"]
    muniment("undo", second["task_id"])
    output = muniment("erase", task).stdout
    assert "  review r" in output
    assert "  the copy ledger.db.version-1, " in output
    assert other == path or f"  including older versions of {other} that contain part of the text" in output
    receipt = muniment.document("erase", task, "--yes")
    assert (receipt["status"], receipt["reviews"]) == ("erased", 1)
    assert path not in json.dumps(receipt)


def test_erase_verify_lists_remains_until_none_are_left(muniment, saved_fact, roots, tmp_path):
    _, path = saved_fact
    text = put(tmp_path, "text", FACT)
    (roots["user"] / path.removeprefix("user/")).unlink()
    output = " ".join(muniment.lines("erase", "--verify", text, code=1))
    assert ("ledger.db" in output, "delete your copies" in output) == (True, True)
    assert muniment.document("erase", "--verify", text, code=1)["left"]
    assert muniment("erase", path, "--yes").exit_code == 0
    lines = muniment.lines("erase", "--verify", "-", stdin=FACT)
    assert lines[0] == "no remains found, except in existing entries"
    assert muniment.document("erase", "--verify", text)["left"] == {}
    assert muniment.failure("erase", "--verify", tmp_path / "none") == "config_invalid"


def test_library_offers_ledger_operations(tmp_path, roots, home, saved_fact):
    task, path = saved_fact
    review, review_digest = make_pending_review(roots, home)
    other, _ = make_pending_review(roots, home, "other\n")
    with api.open(tmp_path, roots=roots, home=home) as memory:
        assert [step.task for step in memory.history(path)] == [task]
        assert memory.why(path).state == "committed"
        undone = memory.undo(task)
        with pytest.raises(MunimentError, match="was undone by"):
            memory.undo(task)
        assert undone.changes[0].sha256_before is not None
        assert memory.review(review).digest == review_digest
        assert memory.approve(review, review_digest).changes[0].sha256_after == digest(b"waits\n")
        assert memory.reject(other).task_id is None
