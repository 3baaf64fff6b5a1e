"""`history`, `why`, `show_review`, `undo`, `review`, `audit`, `erase`: exit codes, messages, one JSON
document.
"""

import json
import re
from contextlib import nullcontext

import pytest

from kit.cli.commands import Record
from kit.memories import make_roots, take_snapshot, write_file
from kit.store.bench import ProposedFile, assign_trust, make_change_set, make_run
from muniment import api
from muniment.errors import MunimentError
from muniment.kernel.binding import bind_all
from muniment.kernel.change import digest
from muniment.kernel.names import Trust
from muniment.operations.job_context import JobContext
from muniment.operations.review import show_review
from muniment.policy.load import load_policy
from muniment.server.lane import Lane
from muniment.server.lane_tasks import NewTask
from muniment.store import ledger
from muniment.store.handles import build_task_handle
from muniment.store.review import queue_for_review
from muniment.store.state import State
from muniment.store.tasks import Originator
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

FACT = "The user prefers dark mode in every editor there is"


@pytest.fixture
def saved_fact(cli):
    """Remember a fact and return (task id, path)."""
    document = cli.run_for_document("remember", FACT)
    return document["task_id"], document["files_touched"][0]


def make_pending_review(roots, home, text="waits\n"):
    """Create a pending review and return its id and its digest."""
    with State(home / "state") as state:
        place = JobContext(load_policy("strict"), bind_all(roots), state)
        pending_changes = assign_trust(
            make_change_set([ProposedFile("user/n.md", None, text.encode())]), {"user/n.md": Trust.EXTERNAL}
        )
        bindings = {"policy": place.policy.digest, "roots": place.roots}
        review = queue_for_review(state, make_run(), pending_changes, ("it comes from outside",), **bindings)
        return review, show_review(review, place).digest


# -- history, why, show, undo --------------------------------------------------------------------------


@pytest.mark.usefixtures("work_directory")
def test_read_commands_create_nothing_before_first_commit(cli, home):
    for bound in (True, False):
        assert cli.run_for_lines("history", bound=bound) == ["note: no changes were committed yet"]
        assert cli.run_for_lines("audit", "verify")[0].startswith("0 records")
        assert cli.run_for_lines("review", "list", bound=bound) == ["note: nothing waits for you"]
    (note,) = cli.run_for_lines("ls", bound=False)
    assert note.startswith("note: nothing is saved here yet; to save a fact: muniment remember ")
    assert cli.run_for_lines("index", "verify", bound=False) == ["the indexes are correct"]
    assert cli.run_for_lines("index", "rebuild", bound=False) == ["the indexes are rebuilt"]
    nothing = "not shown: nothing is remembered in user yet [not_found]"
    assert cli.run_for_lines("show", "user/a.md", bound=False, code=1) == [nothing]
    assert not home.exists()


def test_why_prints_origin_and_manual_edit(cli, saved_fact, roots):
    task, path = saved_fact
    record, *lines = cli.run_for_lines("why", path, "--verbose")
    record = Record(*record.split("\t"))
    assert (record.text, record.place) == ("Prefers dark mode in every editor there is", "user/editor")
    assert cli.run_for_document("show", record.handle)["path"] == path
    time = r"\d{1,2} [A-Z][a-z]{2} 20\d\d, \d\d:\d\d"
    author = rf"  written by you \(trust owner\) on {time}, with remember \({build_task_handle(task)}\)"
    assert re.fullmatch(author, lines[0])
    assert lines[1] == "  it is unchanged since this task"
    assert lines[2].startswith(f"  path {path}, task {task}, 20")
    assert lines[3].startswith("  decided by rules, trust owner, policy strict@")
    assert lines[4].endswith(" (a keyed digest)")
    assert cli.run_for_lines("why", path)[1:] == lines[:2]
    file = roots["user"] / path.removeprefix("user/")
    file.write_bytes(b"by hand\n")
    output = cli("why", path).stdout
    assert "it was edited by hand since this task" in output
    assert "(trust owner)" in output
    before = take_snapshot(*roots.values())
    message = (
        f"these files changed again later: {path}; undo the later changes first, "
        "or restore the files [undo_overlap]"
    )
    assert cli.run_for_lines("undo", task, code=1) == [f"not undone: {message}"]
    assert take_snapshot(*roots.values()) == before
    file.unlink()
    assert cli.run_for_document("why", path)["state"] == "missing"
    write_file(roots["project"], "hand.md")
    assert cli.run_for_lines("why", "project/hand.md")[1:] == [
        "  written by a person of this workspace (trust workspace)",
        "  it was not written by Muniment; it has the trust of its scope",
    ]
    del roots["project"]
    for line in ("undo task-9", "why user/never.md", "why project/x.md", "show project/x.md@task-1"):
        assert cli.run_for_error_code(*line.split()) == "not_found"


def test_show_and_why_print_versions_and_removals(cli, saved_fact, roots, monkeypatch):
    task, path = saved_fact
    before = (roots["user"] / path.removeprefix("user/")).read_text()
    light = FACT.replace("dark", "light")
    edit = make_call("edit", path=path, old_string=f"---\n{FACT}", new_string=f"---\n{light}")
    steps = (
        reply_with_calls(make_call("read_file", path=path)),
        reply_with_calls(edit),
        reply_with_text("done"),
    )
    monkeypatch.setattr(api, "open_model", lambda *_: nullcontext(ScriptedModel(steps)))
    second_task = cli.run_for_document("remember", light)["task_id"]
    assert cli("show", f"{path}@{task}").stdout == before
    assert "light mode" in cli("show", path.replace("dark", "light")).stdout
    output = {"path": path, "content": before, "task": task}
    assert cli.run_for_document("show", f"{path}@{task}") == output
    for shown, code in ((f"{path}@other", "not_found"), (f"team/x.md@{task}", "refused")):
        assert cli.run_for_error_code("show", shown) == code
    cli("undo", second_task)
    undone = cli.run_for_document("undo", task)["task_id"]
    record, last, removed = cli.run_for_lines("why", path)
    assert (record.partition("\t")[0], removed) == (path, "  it was removed by this task")
    assert last.endswith(f", with undo ({build_task_handle(undone)})")
    assert cli.run_for_lines("show", f"{path}@{undone}") == [f"{undone} removed {path}"]
    assert cli.run_for_document("show", f"{path}@{undone}")["content"] is None
    assert "note: only the newest 1 are listed" in cli("history", "--limit=1").stderr
    monkeypatch.setattr(ledger, "MAX_STEPS", 1)
    assert cli.run_for_document("history")["complete"] is False


# -- review --------------------------------------------------------------------------------------------


def test_review_is_listed_shown_and_approved_by_digest(cli, roots, home):
    review, review_digest = make_pending_review(roots, home)
    (record,) = cli.run_for_records("review", "list")
    assert (record.text, record.place) == ("+ n (it comes from outside)", "user")
    assert (record.handle, record.time[:2]) == (review, "20")
    (listed,) = cli.run_for_document("review", "list")["reviews"]
    assert (listed["review_id"], listed["paths"]) == (review, ["user/n.md"])
    assert cli("review", "show", review).stdout.endswith(f"digest {review_digest}\n")
    assert cli.run_for_document("review", "show", review)["digest"] == review_digest
    assert cli.run_for_error_code("review", "approve", review, "--digest", "0" * 64) == "review_changed"
    (line,) = cli.run_for_lines("review", "approve", review, "--digest", review_digest)
    assert re.fullmatch(r'approved \(new\): "n" \(user, \w{5}\)', line)
    assert (roots["user"] / "n.md").read_text() == "waits\n"
    assert cli.run_for_error_code("review", "approve", review, "--yes") == "review_closed"
    assert cli("undo", f"approve:{review}").exit_code == 0
    assert not (roots["user"] / "n.md").exists()


@pytest.mark.usefixtures("fake_terminal")
def test_review_approval_on_terminal_uses_shown_version(cli, roots, home, monkeypatch):
    review, _ = make_pending_review(roots, home)
    shown_reviews = []
    monkeypatch.setattr(
        "muniment.operations.review.show_review",
        lambda *arguments: shown_reviews.append(show_review(*arguments)) or shown_reviews[-1],
    )
    for number, stdin in enumerate((None, "\n", "N\n", "y\n"), 1):
        code = 0 if stdin == "y\n" else 130
        assert cli("review", "approve", review, stdin=stdin).exit_code == code
        assert ((roots["user"] / "n.md").exists(), len(shown_reviews)) == (code == 0, number)


def test_review_approval_without_terminal_requires_yes(cli, roots, home, tmp_path):
    make_pending_review(make_roots(tmp_path / "other"), home)
    assert cli.run_for_lines("review", "list") == [
        "note: nothing waits for you",
        "note: 1 more pending reviews in other workspaces",
    ]
    assert cli.run_for_document("review", "list") == {"reviews": [], "elsewhere": 1}
    review, _ = make_pending_review(roots, home)
    unconfirmed = cli("review", "approve", review, stdin="y\n")
    assert (unconfirmed.exit_code, "--digest" in unconfirmed.stderr, "--yes" in unconfirmed.stderr) == (
        2,
        True,
        True,
    )
    assert not (roots["user"] / "n.md").exists()
    done = cli.run_for_document("review", "approve", review, "--yes")
    assert (done["status"], done["changes"]) == ("approved", [{"path": "user/n.md", "kind": "create"}])
    review, _ = make_pending_review(roots, home, "other\n")
    assert cli.run_for_lines("review", "reject", review) == [f"rejected: {review}; nothing was written"]
    assert cli.run_for_error_code("review", "reject", review) == "review_closed"
    assert cli.run_for_error_code("review", "show", "rzzzzzz") == "not_found"


# -- audit ---------------------------------------------------------------------------------------------


def test_audit_verifies_chain_and_stored_head(cli, saved_fact, home, tmp_path):
    task, path = saved_fact
    lines = cli.run_for_lines("audit", "verify")
    assert lines[0] == "1 records; none was edited, removed or added without the key"
    assert "--head-file" in " ".join(lines)
    head_file = write_file(tmp_path, "head", cli("audit", "head").stdout)
    document = cli.run_for_document("audit", "verify", "--head-file", head_file)
    assert (document["whole"], document["head"]) == (True, head_file.read_text().strip())
    assert cli("audit", "verify", "--head-file", "-", stdin=head_file.read_text()).exit_code == 0
    assert cli.run_for_document("audit", "head") == {"head": document["head"], "records": 1}
    output = cli("audit", "show").stdout
    assert (output.startswith("1 20"), f" commit {task} " in output, path in output) == (True, True, True)
    assert cli("audit", "show", "--task", "task-9").stdout.startswith("no records of this task")
    for name in (task, build_task_handle(task)):
        (record,) = cli.run_for_document("audit", "show", "--task", name)["records"]
    assert (record["kind"], record["task"]) == ("commit", task)
    for content in (b"", b"no head\n", b"\xff\n", b"x" * 2000):
        bad = write_file(tmp_path, "bad", content)
        assert cli.run_for_error_code("audit", "verify", "--head-file", bad) == "config_invalid"
    assert cli.run_for_error_code("audit", "verify", "--head-file", tmp_path / "none") == "config_invalid"
    with State(home / "state") as state, state.ledger.transaction() as connection:
        connection.execute("UPDATE record SET body = '{}'")
    problem = "record 1: its body was changed"
    assert cli.run_for_lines("audit", "verify", code=1) == [problem]
    assert cli.run_for_document("audit", "verify", code=1)["problems"] == [problem]
    with State(home / "state") as state, state.ledger.transaction() as connection:
        for table in ("record", "head", "change_set"):
            connection.execute(f"DELETE FROM {table}")
    # A complete old ledger is detected only with the stored head.
    assert cli("audit", "verify").exit_code == 0
    message = "the expected head (1) is not in this ledger: records were removed or replaced"
    assert cli.run_for_lines("audit", "verify", "--head-file", head_file, code=1) == [message]


# -- erase ---------------------------------------------------------------------------------------------


def test_erase_shows_plan_and_applies_it_only_with_yes(cli, saved_fact, roots, home):
    task, path = saved_fact
    with State(home / "state") as state:
        Lane(state, "w").submit(NewTask("remember", {"content": FACT}, Originator("owner"), {}))
    before = take_snapshot(*roots.values())
    first, second, third, *_, open_, last = lines = cli.run_for_lines("erase", path)
    assert [first, second] == [f"would be erased permanently: {path}", f"  the file {path}"]
    assert third == "  1 versions in the history; undo and show will report them as erased"
    assert "  requests and results of 1 daemon tasks; waiting tasks will fail" in lines
    assert last == f"nothing was erased; to erase it: muniment erase {path} --yes"
    assert "not covered: " in open_
    assert take_snapshot(*roots.values()) == before
    plan = cli.run_for_document("erase", path)
    assert (plan["files"], plan["lane_tasks"]) == ([path], 1)
    done = cli("erase", path, "--yes").stdout
    assert done.startswith(
        f"erased: {path} (1 files, 2 versions, 0 reviews, the content of 2 audit records)\n"
    )
    assert "not covered: " in done
    assert not (roots["user"] / path.removeprefix("user/")).exists()
    assert (
        cli.run_for_error_code("show", f"{path}@{task}") == cli.run_for_error_code("undo", task) == "erased"
    )
    assert cli("audit", "verify").exit_code == 0
    assert "(erased)" in cli("audit", "show").stdout
    for more in ((), ("--yes",)):
        assert cli.run_for_error_code("erase", "user/none.md", *more) == "not_found"


def test_erase_lists_reviews_copies_and_older_versions(cli, saved_fact, roots, home):
    task, path = saved_fact
    (home / "state" / "ledger.db.version-1").write_bytes(b"")
    make_pending_review(roots, home, FACT + "\n")
    second = cli.run_for_document("remember", FACT + ", and in terminals")
    (other,) = second["files_touched"]
    cli("undo", second["task_id"])
    output = cli("erase", task).stdout
    assert "  review r" in output
    assert "  the copy ledger.db.version-1, " in output
    assert other == path or f"  including older versions of {other} that contain part of the text" in output
    receipt = cli.run_for_document("erase", task, "--yes")
    assert (receipt["status"], receipt["reviews"]) == ("erased", 1)
    assert path not in json.dumps(receipt)


def test_erase_verify_lists_remains_until_none_are_left(cli, saved_fact, roots, tmp_path):
    _, path = saved_fact
    text = write_file(tmp_path, "text", FACT)
    (roots["user"] / path.removeprefix("user/")).unlink()
    output = " ".join(cli.run_for_lines("erase", "--verify", text, code=1))
    assert ("ledger.db" in output, "delete your copies" in output) == (True, True)
    assert cli.run_for_document("erase", "--verify", text, code=1)["left"]
    assert cli("erase", path, "--yes").exit_code == 0
    lines = cli.run_for_lines("erase", "--verify", "-", stdin=FACT)
    assert lines[0] == "no remains found, except in existing entries"
    assert cli.run_for_document("erase", "--verify", text)["left"] == {}
    assert cli.run_for_error_code("erase", "--verify", tmp_path / "none") == "config_invalid"


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
