"""`muniment history`: limits, times, scopes, renames, erased texts, and its other names."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from muniment.store.audit import timestamp
from muniment.store.handles import build_task_handle
from muniment.store.state import State

WINTER, SUMMER = "CET-1CEST,M3.5.0,M10.5.0/3", "EST5EDT,M3.2.0,M11.1.0"


@pytest.fixture
def save_at(memory, home):
    """Return a function that saves a fact and sets the time of its change; it returns the task id."""

    def save_at(fact, at, **more):
        task = memory.remember(fact, **more).task_id
        with State(home / "state") as state, state.ledger.transaction() as connection:
            connection.execute("UPDATE change_set SET done = ? WHERE task = ?", (timestamp(at), task))
        return task

    return save_at


@pytest.fixture
def set_time_zone(monkeypatch):
    """Return a function that sets the time zone of this process during the test."""

    def set_time_zone(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_time_zone
    monkeypatch.undo()
    time.tzset()


def read_texts(cli, *arguments):
    return [each.text for each in cli.run_for_records("history", *arguments)]


# -- limit ---------------------------------------------------------------------------------------------


def test_history_lists_20_changes_and_all_in_json(cli, memory):
    facts = [
        f"Fact number {number} is about the topic {'abcdefghijklmnopqrstuvwxyz'[number]}"
        for number in range(23)
    ]
    for fact in facts:
        memory.remember(fact, scope="project")
    newest = [f"+ {fact}" for fact in reversed(facts)]
    done = cli("history")
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == newest[:20]
    assert done.stderr == "note: only the newest 20 are listed; for more, use --limit\n"
    assert read_texts(cli, "--limit=23") == read_texts(cli, "--limit=1000") == newest
    assert read_texts(cli, "--limit=1") == newest[:1]
    assert cli("history", "--limit=23").stderr == ""
    document = cli.run_for_document("history")
    assert (len(document["steps"]), document["complete"]) == (23, True)
    limited = cli.run_for_document("history", "--limit=2")
    assert (limited["steps"], limited["complete"]) == (document["steps"][:2], False)
    for limit in ("0", "-1", "1001", "x"):
        assert cli("history", f"--limit={limit}").exit_code == 2
    assert len(cli.show("history", columns=100).lines) == 21


# -- since ---------------------------------------------------------------------------------------------


def test_history_since_accepts_days_and_ages(cli, save_at):
    now = datetime.now(UTC)
    for text, age in (
        *(("The mill is new", timedelta(minutes=1)), ("The barn is old", timedelta(hours=13))),
        *(("The dock is long", timedelta(days=2, hours=1)), ("The quay is wide", timedelta(days=20))),
    ):
        save_at(text, now - age)
    for since, count in (("12h", 1), ("14h", 2), ("2d", 2), ("3d", 3), ("2w", 3), ("3w", 4), ("0h", 0)):
        assert len(read_texts(cli, f"--since={since}")) == count, since
        assert len(cli.run_for_document("history", f"--since={since}")["steps"]) == count
    for at, count in (
        *(
            (f"{now - timedelta(days=3):%Y-%m-%d}", 3),
            (f"{now - timedelta(hours=5):%Y-%m-%dT%H:%M:%S+00:00}", 1),
        ),
        *(("0001-01-02", 4), ("0999-12-31", 4), ("9999-12-30", 0), ("1970-01-01", 4)),
    ):
        assert len(read_texts(cli, f"--since={at}")) == count, at
    nothing = cli("history", "--since=0h")
    assert (nothing.stdout, nothing.stderr) == ("", "note: no changes since 0h\n")
    assert cli("history", "user/other.md").stderr == "note: no changes of user/other.md were committed yet\n"


@pytest.mark.parametrize(
    "since",
    ["", "soon", "2026-13-01", "d", "-1d", "1.5h", "1m", "٣d", "9" * 5000 + "d", "2026-11", "\x1b[2Jd"],
)
def test_history_since_rejects_other_texts(cli, since):
    done = cli("history", "--since", since)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("no history: invalid --since")
    assert done.stderr.endswith(
        "use a day (2026-11-01), today, yesterday, or an age (12h, 2d, 3w) [config_invalid]\n"
    )
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("zone", ["UTC0", WINTER, SUMMER, "PDT+11", "IST-5:30"])
def test_history_since_counts_days_of_the_time_zone(cli, save_at, set_time_zone, zone):
    set_time_zone(zone)
    midnight = datetime.now(UTC).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday = midnight - timedelta(days=1)
    for begin, names in ((midnight, ("today",)), (yesterday, ("yesterday",))):
        for text, moment in (
            ("before", begin - timedelta(minutes=1)),
            ("after", begin + timedelta(minutes=1)),
        ):
            if moment < datetime.now(UTC):
                save_at(f"The {names[0]} was {text} noon", moment.astimezone(UTC), scope="user")
    listed = read_texts(cli, "--since=yesterday")
    assert not [each for each in listed if "yesterday was before" in each]
    assert [each for each in listed if "yesterday was after" in each]
    assert read_texts(cli, f"--since={yesterday:%Y-%m-%d}") == listed
    assert not [each for each in read_texts(cli, "--since=today") if "before" in each or "yesterday" in each]


def test_history_since_uses_the_summer_time_of_the_day(cli, save_at, set_time_zone):
    set_time_zone(WINTER)
    for day, offset in (("2025-07-01", 2), ("2025-01-15", 1)):
        midnight = datetime.fromisoformat(f"{day}T00:00:00+00:00") - timedelta(hours=offset)
        save_at(f"The lamp of {day} is early", midnight - timedelta(minutes=30))
        save_at(f"The door of {day} is late", midnight + timedelta(minutes=30))
        listed = [each for each in read_texts(cli, f"--since={day}") if day in each]
        assert ["late" in each for each in listed] == [True]


# -- what is listed ------------------------------------------------------------------------------------


def test_history_scope_lists_only_changes_of_the_scope(cli, memory):
    memory.remember("The user likes tea", scope="user")
    memory.remember("The project uses Go", scope="project")
    for arguments in (["--scope=project"], ["project"]):
        assert [each.place.split("/")[0] for each in cli.run_for_records("history", *arguments)] == [
            "project"
        ]
    assert cli("history", "user", "--scope=user").exit_code == 2
    assert cli.run_for_error_code("history", "--scope=team") == "not_found"


def test_history_lists_a_rename_once(cli, memory):
    first = memory.remember("We deploy on Thursdays", scope="project")
    changed = memory.edit(first.files_touched[0], "The release goes out on Fridays\n")
    step, added = cli.run_for_records("history")
    assert step.text == "~ We deploy on Thursdays → The release goes out on Fridays (edit)"
    assert (step.handle, added.handle) == tuple(map(build_task_handle, (changed.task_id, first.task_id)))
    assert len(cli.run_for_document("history")["steps"]) == 3
    assert [each.text for each in cli.run_for_records("history", "--limit=1")] == [step.text]
    assert cli("history", "--limit=2").stderr == ""
    memory.forget(changed.path)
    assert read_texts(cli)[0].startswith("- The release goes out")


def test_history_of_erased_text_does_not_show_it(cli, memory):
    memory.remember("The safe is green", scope="user")
    (path,) = memory.remember("The gate is blue", scope="user").files_touched
    cli.run_for_document("erase", path, "--yes")
    for output in (cli("history").output, cli("history", "--verbose").output, cli.show("history").text):
        assert "gate" not in output
        assert "blue" not in output
        assert "(erased)" in output
    erased = [each for each in cli.run_for_document("history")["steps"] if each["is_erased"]]
    assert {(each["title"], each["previous_title"], each["handle"]) for each in erased} == {("", "", "")}


def test_history_verbose_shows_task_policy_and_path(cli, memory):
    done = memory.remember("The user likes tea", scope="user")
    memory.undo(done.task_id)
    undone, saved = cli.run_for_records("history", "--verbose")
    assert (saved.path, undone.path) == (done.files_touched[0],) * 2
    assert "(remember, by rules, policy " in saved.text
    assert f", task {done.task_id})" in saved.text
    assert f"(undo of {done.task_id}, by code, " in undone.text
    assert cli.run_for_records("history")[0].text.endswith(" (undo)")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_history_on_terminal_shows_one_line_a_change(cli, memory, columns):
    done = memory.remember("The user likes tea", scope="user")
    (line,) = cli.show("history", "--color=never", columns=columns).lines
    assert line.startswith("+ Likes tea" if "Likes" in line else "+ The user likes tea")
    assert line.endswith(build_task_handle(done.task_id))
    assert ("just now" in line) == (columns > 40)


# -- names ---------------------------------------------------------------------------------------------


def test_log_and_list_are_other_names(cli, memory):
    memory.remember("The user likes tea", scope="user")
    assert cli("log").stdout == cli("history").stdout != ""
    assert cli("list").stdout == cli("ls").stdout != ""
    assert cli.run_for_document("log", "--limit=1")["complete"] is False
    assert cli("log", "--nothing").exit_code == 2
    assert "history" in cli("log", "--help", bound=False).output
    helped = cli("--help", bound=False).output
    assert not [line for line in helped.splitlines() if line.strip().startswith(("log ", "list "))]


def test_history_of_a_task_lists_its_changes(cli, memory):
    memory.remember("The user likes tea", scope="user")
    done = memory.remember("The project uses Go", scope="project")
    handle = build_task_handle(done.task_id)
    for text in (handle, handle[:4], handle.upper(), done.task_id):
        (record,) = cli.run_for_records("history", text)
        assert (record.text, record.handle) == ("+ The project uses Go", handle)
    assert cli("history", handle, "--since=9999-12-30").stdout == ""
    for unknown in ("task-9", "t00000", "nothing"):
        assert cli.run_for_error_code("history", unknown) == "not_found"
