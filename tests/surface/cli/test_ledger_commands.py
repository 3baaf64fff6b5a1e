"""history, why, undo, review, audit, erase: exit codes, messages to act on, one document for machines."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kit.memories import make_roots, photograph, put
from kit.store.ground import origin
from muniment import api
from muniment.agent import filing
from muniment.cli import ledger as review_command
from muniment.cli.app import app
from muniment.confine.binding import bind_all
from muniment.errors import MunimentError
from muniment.jobs.place import Place
from muniment.jobs.review import show
from muniment.lane import Lane, NewTask, Originator
from muniment.names import Trust
from muniment.policy.load import load_policy
from muniment.store.review import hold
from muniment.store.state import State
from muniment.testing.minds import ScriptedModel, call, calls, say
from muniment.tools.overlay import ChangeSet, Proposed, digest

FACT = "The user prefers dark mode in every editor there is"


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def muniment(tmp_path, roots, home):
    """Runs a command over the roots."""

    def run(*arguments, stdin=None):
        (tmp_path / "workspace").mkdir(exist_ok=True)
        places = [f"--root={scope}={path}" for scope, path in roots.items()]
        places.append(f"--workspace={tmp_path / 'workspace'}")
        given = [*arguments, *([] if arguments[0] == "audit" else places)]
        return CliRunner().invoke(app, given, input=stdin, env={"MUNIMENT_HOME": str(home)})

    return run


@pytest.fixture
def saved(muniment):
    """A fact that was remembered: (task id, path)."""
    document = json.loads(muniment("remember", FACT, "--json").stdout)
    return document["task_id"], document["files_touched"][0]


def held(roots, home, text="waits\n"):
    """Something that waits for the owner; its review and the place."""
    state = State(home / "state")
    place = Place(load_policy("strict"), bind_all(roots), state)
    with state:
        parts = [ChangeSet((Proposed("user/n.md", None, text.encode()),))]
        reasons = ("it comes from outside",)
        terms = {"policy": place.policy.digest, "roots": place.roots, "author": "model"}
        review = hold(state, origin(), parts, {"user/n.md": Trust.EXTERNAL}, reasons, **terms)
        return review, show(review, place).digest


def document(done, code=0):
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def failure(done):
    return document(done, 1)["error"]["code"]


# history, why, show, undo


@pytest.mark.usefixtures("saved")
def test_a_history_that_is_longer_than_is_shown_says_so(muniment, monkeypatch):
    from muniment.cli import ledger as command
    from muniment.store import ledger as store

    monkeypatch.setattr(store, "MAX_STEPS", 1)
    monkeypatch.setattr(command, "MAX_STEPS", 1)
    assert "these are the newest 1" in muniment("history").stdout
    assert document(muniment("history", "--json"))["complete"] is False


def test_before_anything_was_committed_nothing_is_made_by_looking(muniment, home):
    assert muniment("history").stdout == "nothing was committed here yet\n"
    assert muniment("audit", "verify").stdout.startswith("0 records")
    assert muniment("review", "list").stdout == "nothing waits\n"
    assert not home.exists()


def test_why_says_where_an_entry_comes_from_and_whether_it_was_edited(muniment, saved, roots):
    task, path = saved
    lines = muniment("why", path).stdout.splitlines()
    assert lines[0] == f"{path} is as this task left it; trust owner"
    assert lines[1].startswith(f"  task {task} (remember), 20")
    assert lines[2].startswith("  decided by rules, trust owner, policy strict@")
    assert lines[3].endswith(" (a keyed digest)")
    file = roots["user"] / path.removeprefix("user/")
    file.write_bytes(b"by hand\n")
    assert "was edited by hand since this task; trust owner" in muniment("why", path).stdout
    file.unlink()
    assert document(muniment("why", path, "--json"))["state"] == "missing"
    put(roots["project"], "hand.md")
    told = muniment("why", "project/hand.md").stdout
    assert told == (
        "project/hand.md was not written by Muniment; it has the trust of its scope; trust workspace\n"
    )
    muniment("undo", task)
    assert failure(muniment("why", "user/never.md", "--json")) == "not_found"


def test_why_of_what_was_removed_names_the_task(muniment, saved):
    task, path = saved
    undone = document(muniment("undo", task, "--json"))["task_id"]
    told = muniment("why", path).stdout
    assert told.startswith(f"{path} was removed by this task\n  task {undone} (undo)")


def test_show_prints_what_a_task_left(muniment, saved, roots, monkeypatch):
    task, path = saved
    before = (roots["user"] / path.removeprefix("user/")).read_text()
    light = FACT.replace("dark", "light")
    edit = call("edit", path=path, old_string=f"---\n{FACT}", new_string=f"---\n{light}")
    steps = calls(call("read_file", path=path)), calls(edit), say("done")
    monkeypatch.setattr(filing, "RuleWriter", lambda: ScriptedModel(steps))
    again = muniment("remember", light)
    assert again.exit_code == 0, again.output
    assert muniment("show", f"{path}@{task}").stdout == before
    assert "light mode" in muniment("show", path).stdout
    assert document(muniment("show", f"{path}@{task}", "--json")) == {
        "path": path,
        "content": before,
        "task": task,
    }
    assert failure(muniment("show", f"{path}@other", "--json")) == "not_found"
    assert failure(muniment("show", f"team/x.md@{task}", "--json")) == "refused"


def test_show_says_that_a_task_removed_the_file(muniment, saved):
    task, path = saved
    undone = document(muniment("undo", task, "--json"))["task_id"]
    shown = muniment("show", f"{path}@{undone}")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", f"{undone} removed {path}\n")
    assert document(muniment("show", f"{path}@{undone}", "--json"))["content"] is None


def test_an_undo_that_would_lose_something_names_it(muniment, saved, roots):
    task, path = saved
    (roots["user"] / path.removeprefix("user/")).write_bytes(b"by hand\n")
    before = photograph(*roots.values())
    refused = muniment("undo", task)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        f"not undone: changed again since: {path}; "
        "undo the later changes, or put the files back [undo_overlap]\n"
    )
    assert photograph(*roots.values()) == before
    assert failure(muniment("undo", "task-9", "--json")) == "not_found"


# review


def test_a_review_is_listed_shown_and_approved_by_its_digest(muniment, roots, home):
    review, bound_to = held(roots, home)
    one, two = muniment("review", "list").stdout.splitlines()
    assert (one.startswith(f"{review}: edit of user/n.md, "), two) == (
        True,
        "  because it comes from outside",
    )
    (listed,) = document(muniment("review", "list", "--json"))["reviews"]
    assert (listed["review_id"], listed["paths"]) == (review, ["user/n.md"])
    shown = muniment("review", "show", review).stdout
    assert shown.endswith(f"digest {bound_to}\n")
    assert document(muniment("review", "show", review, "--json"))["digest"] == bound_to
    wrong = muniment("review", "approve", review, "--digest", "0" * 64)
    assert (wrong.exit_code, "[review_changed]" in wrong.stderr) == (1, True)
    saved, back = muniment("review", "approve", review, "--digest", bound_to).stdout.splitlines()
    assert (saved, back) == (
        "approved (new): user/n.md",
        f"  to take it back: muniment undo approve:{review}",
    )
    assert (roots["user"] / "n.md").read_text() == "waits\n"
    assert failure(muniment("review", "approve", review, "--yes", "--json")) == "review_closed"
    assert muniment("undo", f"approve:{review}").exit_code == 0
    assert not (roots["user"] / "n.md").exists()


def test_a_review_is_approved_unseen_only_with_yes(muniment, roots, home):
    review, _ = held(roots, home)
    asked = muniment("review", "approve", review, stdin="y\n")
    assert (asked.exit_code, "--digest" in asked.stderr, "--yes" in asked.stderr) == (2, True, True)
    assert not (roots["user"] / "n.md").exists()
    done = document(muniment("review", "approve", review, "--yes", "--json"))
    assert (done["status"], done["changes"]) == ("approved", [{"path": "user/n.md", "kind": "create"}])


def test_a_review_is_rejected(muniment, roots, home):
    review, _ = held(roots, home)
    assert muniment("review", "reject", review).stdout == f"rejected: {review}; nothing was written\n"
    assert muniment("review", "list").stdout == "nothing waits\n"
    assert failure(muniment("review", "reject", review, "--json")) == "review_closed"
    assert failure(muniment("review", "show", "rzzzzzz", "--json")) == "not_found"


def test_what_waits_for_other_directories_is_counted(muniment, home, tmp_path):
    held(make_roots(tmp_path / "other"), home)
    assert muniment("review", "list").stdout == "nothing waits\n1 more wait in other workspaces\n"
    assert document(muniment("review", "list", "--json")) == {"reviews": [], "elsewhere": 1}


@pytest.mark.parametrize("answer", ["y", "N", None])
def test_the_answer_decides(muniment, roots, home, monkeypatch, answer):
    review, _ = held(roots, home)
    monkeypatch.setattr(review_command, "is_asked_on_terminal", lambda: True)
    done = muniment("review", "approve", review, stdin=None if answer is None else f"{answer}\n")
    assert done.exit_code == (0 if answer == "y" else 130)
    assert (roots["user"] / "n.md").exists() == (answer == "y")


def test_a_scope_without_a_directory_has_nothing_to_tell_of(muniment, roots):
    del roots["project"]
    for command in (("why", "project/x.md"), ("show", "project/x.md@task-1")):
        assert failure(muniment(*command, "--json")) == "not_found"


# audit


@pytest.mark.usefixtures("saved")
def test_the_chain_is_verified_and_its_head_kept(muniment, home, tmp_path):
    whole = muniment("audit", "verify")
    assert (whole.exit_code, whole.stdout.splitlines()[0]) == (
        0,
        "1 records, none edited, removed or added by anybody without the key",
    )
    assert "--head-file" in whole.stdout
    kept = tmp_path / "head"
    kept.write_text(muniment("audit", "head").stdout)
    told = document(muniment("audit", "verify", "--head-file", str(kept), "--json"))
    assert (told["whole"], told["head"]) == (True, kept.read_text().strip())
    assert document(muniment("audit", "head", "--json")) == {"head": told["head"], "records": 1}
    with State(home / "state") as state, state.ledger.transaction() as connection:
        for table in ("record", "head", "change_set"):
            connection.execute(f"DELETE FROM {table}")
    assert muniment("audit", "verify").exit_code == 0  # A whole ledger put back shows only with the head.
    broken = muniment("audit", "verify", "--head-file", str(kept))
    assert broken.exit_code == 1
    assert broken.stderr == "the head kept elsewhere (1) is not in this ledger: it was cut or replaced\n"


@pytest.mark.usefixtures("saved")
def test_every_problem_is_a_line(muniment, home):
    with State(home / "state") as state, state.ledger.transaction() as connection:
        connection.execute("UPDATE record SET body = '{}'")
    broken = muniment("audit", "verify")
    assert (broken.exit_code, broken.stdout, broken.stderr) == (1, "", "record 1: its body was changed\n")
    assert document(muniment("audit", "verify", "--json"), 1)["problems"] == [
        "record 1: its body was changed"
    ]


@pytest.mark.parametrize("content", [b"", b"no head\n", b"\xff\n", b"x" * 2000, None])
@pytest.mark.usefixtures("saved")
def test_a_file_that_holds_no_head_is_told(muniment, tmp_path, content):
    kept = tmp_path / "head"
    if content is not None:
        kept.write_bytes(content)
    assert failure(muniment("audit", "verify", "--head-file", str(kept), "--json")) == "config_invalid"


def test_records_are_shown_and_a_head_is_read_from_standard_input(muniment, saved):
    task, path = saved
    shown = muniment("audit", "show").stdout
    assert shown.startswith("1 20")
    assert f" commit {task} " in shown
    assert path in shown
    assert muniment("audit", "show", "--task", "task-9").stdout.startswith("no records of this task")
    (record,) = document(muniment("audit", "show", "--task", task, "--json"))["records"]
    assert (record["kind"], record["task"]) == ("commit", task)
    head = muniment("audit", "head").stdout
    assert muniment("audit", "verify", "--head-file", "-", stdin=head).exit_code == 0


# erase


def test_erase_shows_its_plan_and_applies_it_only_with_yes(muniment, saved, roots):
    task, path = saved
    before = photograph(*roots.values())
    told = muniment("erase", path).stdout.splitlines()
    assert told[:3] == [
        f"would be erased, for good: {path}",
        f"  the file {path}",
        "  1 versions in the history; undo and show will say that they were erased",
    ]
    assert told[-1] == f"nothing was erased yet; to do it: muniment erase {path} --yes"
    assert "not covered: " in told[-2]
    assert photograph(*roots.values()) == before
    assert document(muniment("erase", path, "--json"))["files"] == [path]
    done = muniment("erase", path, "--yes")
    assert done.stdout.startswith(f"erased: {path} (1 files, 2 versions, 0 reviews, what 2 records said)\n")
    assert "not covered: " in done.stdout
    assert not (roots["user"] / path.removeprefix("user/")).exists()
    assert failure(muniment("show", f"{path}@{task}", "--json")) == "erased"
    assert failure(muniment("undo", task, "--json")) == "erased"
    assert muniment("audit", "verify").exit_code == 0
    assert "(erased)" in muniment("audit", "show").stdout


def test_erase_names_everything_that_goes_with_it(muniment, saved, roots, home):
    task, path = saved
    (home / "state" / "ledger.db.version-1").write_bytes(b"")
    held(roots, home, FACT + "\n")
    again = json.loads(muniment("remember", FACT + ", and in terminals", "--json").stdout)
    (other,) = again["files_touched"]
    muniment("undo", again["task_id"])
    told = muniment("erase", task).stdout
    assert "  review r" in told
    assert "  the copy ledger.db.version-1, " in told
    if other != path:
        assert f"  among them older versions of {other}, which hold a piece of the text" in told
    receipt = document(muniment("erase", task, "--yes", "--json"))
    assert (receipt["status"], receipt["reviews"]) == ("erased", 1)
    assert path not in json.dumps(receipt)


def test_erase_counts_the_tasks_of_the_daemon(muniment, saved, home):
    with State(home / "state") as state:
        Lane(state, "w").submit(NewTask("remember", {"content": FACT}, Originator("owner"), {}))
    told = muniment("erase", saved[1]).stdout
    assert "  what 1 tasks of the daemon were asked and say; those that wait will fail\n" in told
    assert document(muniment("erase", saved[1], "--yes", "--json"))["lane_tasks"] == 1


def test_what_is_left_of_a_text_is_named_and_then_it_is_gone(muniment, saved, roots, tmp_path):
    _, path = saved
    text = tmp_path / "text"
    text.write_text(FACT)
    (roots["user"] / path.removeprefix("user/")).unlink()
    found = muniment("erase", "--verify", str(text))
    assert found.exit_code == 1
    assert "ledger.db" in found.stderr
    assert "delete copies of your own" in found.stderr
    assert document(muniment("erase", "--verify", str(text), "--json"), 1)["left"]
    assert muniment("erase", path, "--yes").exit_code == 0
    gone = muniment("erase", "--verify", "-", stdin=FACT)
    assert (gone.exit_code, gone.stdout.splitlines()[0]) == (
        0,
        "nothing of it is left there but what entries still say",
    )
    assert document(muniment("erase", "--verify", str(text), "--json"))["left"] == {}


def test_erase_takes_a_target_or_a_text_to_look_for(muniment, tmp_path):
    for arguments in ((), ("user/a.md", "--verify", "-"), ("--verify", "-", "--yes")):
        assert muniment("erase", *arguments).exit_code == 2
    assert failure(muniment("erase", "--verify", str(tmp_path / "none"), "--json")) == "config_invalid"
    assert failure(muniment("erase", "user/none.md", "--json")) == "not_found"
    assert failure(muniment("erase", "user/none.md", "--yes", "--json")) == "not_found"


def test_the_library_offers_the_same(tmp_path, roots, home, saved):
    task, path = saved
    with api.open(tmp_path, roots=roots, home=home) as memory:
        assert [step.task for step in memory.history(path)] == [task]
        assert memory.why(path).state == "committed"
        undone = memory.undo(task)
        with pytest.raises(MunimentError, match="was undone by"):
            memory.undo(task)
        assert undone.changes[0].sha256_before is not None
    review, bound_to = held(roots, home)
    other, _ = held(roots, home, "other\n")
    with api.open(tmp_path, roots=roots, home=home) as memory:
        assert memory.review(review).digest == bound_to
        assert memory.approve(review, bound_to).changes[0].sha256_after == digest(b"waits\n")
        assert memory.reject(other).task_id is None
