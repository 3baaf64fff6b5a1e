"""Expiry: an entry expires on the date of its caller; an end date in its text only marks it as ended."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta

import pytest

from kit.catching import catch_error
from kit.locations import FACTS
from kit.operations import contexts
from kit.operations.contexts import (
    assert_succeeded,
    get_user_root,
    make_saving_model,
    make_write_call,
    run_dream,
    run_remember,
    write_files,
)
from kit.operations.contexts import read_entries as entries
from muniment.content.entry import parse
from muniment.content.expiry import find_end
from muniment.errors import InvalidContent
from muniment.kernel.cancel import Deadline
from muniment.recall.context import Budgets, StaticContext
from muniment.recall.recaller import Recaller
from muniment.store import index_plan, index_upkeep
from muniment.store.audit import timestamp
from muniment.store.index_upkeep import verify_root_index
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

context, sample_rows = contexts.context, contexts.sample_rows
TODAY = datetime.now(UTC).astimezone().date()
DAY = TODAY + timedelta(days=40)
FACT = "The side door is locked"
ENDING = f"{FACT} until {DAY}"
SECRET = re.compile("password|hasło|código do portão|código del garaje", re.IGNORECASE)
"""Matches facts that are withheld for another reason than their end date."""

SET_DAY = date(2026, 11, 28)


def midnight_after(day):
    """Return the first moment after a day, in the time zone of the process."""
    return (datetime.combine(day, datetime.min.time()) + timedelta(days=1)).astimezone(UTC)


def read_end_keys(place, path):
    """Return the end of an entry in its front matter: the date of its caller and the date of its text."""
    found = parse(entries(place)[path])
    return found.expires, None if found.ends is None else str(found.ends)


def recall_at(place, *, at, query="is the side door locked", **options):
    recaller = Recaller(place.policy, place.roots, place.state, clock=lambda: at)
    try:
        return recaller.recall(query, **options)
    finally:
        recaller.close()


def recall_paths_at(place, *, at, **options):
    return [each.path for each in recall_at(place, at=at, **options).entries]


def read_static_paths(place, *, at):
    """Return the paths of the static context of a conversation: system part, then project part."""
    recaller = Recaller(place.policy, place.roots, place.state, clock=lambda: at)
    try:
        context = StaticContext(recaller, Budgets())
        context.refresh(Deadline(float("inf")))
        project = context.take_project(())
        return [each.path for part in (context.system, project) if part for each in part.entries]
    finally:
        recaller.close()


def test_explicit_expiry_hides_entry_after_its_day(context):
    for fact, expires, day in (
        (FACT, str(DAY), DAY),
        (FACT, str(TODAY), TODAY),
        (f"{FACT} in winter", "40d", DAY),
        (f"{ENDING}, says Rui", "50d", TODAY + timedelta(days=50)),
    ):
        result = assert_succeeded(run_remember(context, fact, expires=expires))
        (path,) = result.files_touched
        assert (result.expires, result.ends, result.as_json()["expires"]) == (str(day), None, str(day))
        assert read_end_keys(context, path) == (str(day), None)
        assert path in recall_paths_at(context, at=midnight_after(day) - timedelta(seconds=1))
        assert path not in recall_paths_at(context, at=midnight_after(day))
        (get_user_root(context).parent / path).unlink()


def test_inferred_end_keeps_entry_found_and_marks_it(context):
    result = assert_succeeded(run_remember(context, ENDING))
    (path,) = result.files_touched
    assert (result.expires, result.ends, result.as_json()["ends"]) == (None, str(DAY), str(DAY))
    assert read_end_keys(context, path) == (None, str(DAY))
    (before,) = recall_at(context, at=midnight_after(DAY) - timedelta(seconds=1)).entries
    (after,) = recall_at(context, at=midnight_after(DAY)).entries
    assert ((before.path, before.ended), (after.path, after.ended)) == ((path, None), (path, str(DAY)))
    assert f"ended {DAY}" in recall_at(context, at=midnight_after(DAY)).text
    assert recall_at(context, at=midnight_after(DAY)).entries[0].ended == str(DAY)


def test_fact_without_certain_end_gets_no_key(context):
    until = f"until {DAY}"
    for fact in (
        "The side door is locked until the release",
        f"{FACT} since {DAY}",
        f"The warranty of the laptop runs {until}",
        f"The certificate of gw1 is valid {until}",
        f"Der Vertrag mit Kessler gilt bis {DAY}",
    ):
        result = assert_succeeded(run_remember(context, fact))
        assert (result.expires, result.ends, "ends" in result.as_json()) == (None, None, False)
        assert read_end_keys(context, result.files_touched[0]) == (None, None)


def test_recall_shows_ended_entries_after_current_ones(context):
    over = [f"The side door of wing {wing} is locked until {DAY}" for wing in ("A", "B", "C", "D")]
    ended = {assert_succeeded(run_remember(context, fact)).files_touched[0] for fact in over}
    at = midnight_after(DAY)
    assert set(recall_paths_at(context, at=at)) == ended  # No other entry matches.
    current = {f"user/hall-{hall}.md" for hall in range(3, 9)}
    write_files(
        context, {path: f"The side door of {path[5:11]} is locked at {path[10]} pm\n" for path in current}
    )
    found = recall_paths_at(context, at=at, query="the side door of wing A is locked")
    assert [path in ended for path in found] == sorted(path in ended for path in found)
    assert (len(found), sum(path in current for path in found)) == (5, 3)
    assert set(recall_paths_at(context, at=at, limit=10)) == ended | set(
        recall_paths_at(context, at=at, limit=10)
    )


def test_static_context_omits_ended_and_expired_entries(context):
    (ended,) = assert_succeeded(run_remember(context, ENDING, scope="user")).files_touched
    (hidden,) = assert_succeeded(
        run_remember(context, "The lift is slow", scope="user", expires=str(DAY))
    ).files_touched
    (current,) = assert_succeeded(run_remember(context, "The user likes chess", scope="user")).files_touched
    assert set(read_static_paths(context, at=midnight_after(DAY - timedelta(days=1)))) == {
        ended,
        hidden,
        current,
    }
    assert read_static_paths(context, at=midnight_after(DAY)) == [current]


def test_recall_finds_every_fact_after_its_end(context, sample_rows):
    """Recall each fact of the independent set by its own text, after every date in the set has passed."""
    facts = [row["text"] for row in json.loads((FACTS / "ends.json").read_text("utf-8"))["sentences"]]
    facts = [fact for fact in facts if find_end(fact, SET_DAY) and not SECRET.search(fact)]
    facts = sample_rows(facts, 4)
    write_files(context, {
        f"user/n{number}.md": f"---\nends: {find_end(fact, SET_DAY)}\n---\n{fact}\n"
        for number, fact in enumerate(facts)
    })  # fmt: skip
    at = datetime(2060, 1, 1, tzinfo=UTC)
    lost = [
        fact
        for number, fact in enumerate(facts)
        if f"user/n{number}.md" not in recall_paths_at(context, at=at, query=fact)
    ]
    assert (len(facts) > 30, lost) == (True, [])


def test_day_is_over_at_midnight_of_the_local_zone(context, monkeypatch):
    import time

    (path,) = assert_succeeded(run_remember(context, FACT, expires="2099-06-30")).files_touched
    write_files(
        context, {"user/end.md": "---\nends: 2099-06-30\n---\nThe side door is locked for the fair\n"}
    )
    for zone, over in (
        ("UTC", datetime(2099, 7, 1, tzinfo=UTC)),
        ("Etc/GMT-14", datetime(2099, 6, 30, 10, tzinfo=UTC)),
        ("Etc/GMT+12", datetime(2099, 7, 1, 12, tzinfo=UTC)),
    ):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            before, after = recall_at(context, at=over - timedelta(seconds=1)), recall_at(context, at=over)
        finally:
            monkeypatch.delenv("TZ")
            time.tzset()
        assert {each.path: each.ended for each in before.entries} == {path: None, "user/end.md": None}, zone
        assert {each.path: str(each.ended) for each in after.entries} == {"user/end.md": "2099-06-30"}, zone


def test_repeated_fact_is_stored_if_existing_entry_ends_sooner(context):
    assert_succeeded(run_remember(context, ENDING))
    repeated = assert_succeeded(run_remember(context, f"{ENDING}."))
    assert (repeated.unchanged, len(entries(context))) == (True, 1)
    (path,) = entries(context)
    sooner = entries(context)[path].replace(f"ends: {DAY}".encode(), f"ends: {TODAY}".encode())
    assert parse(sooner).ends == TODAY
    write_files(context, {path: sooner})
    assert not assert_succeeded(run_remember(context, ENDING)).unchanged
    later = str(TODAY + timedelta(days=90))
    result = assert_succeeded(run_remember(context, f"{FACT} in May", expires="90d"))
    assert (result.unchanged, result.expires) == (False, later)
    assert not assert_succeeded(
        run_remember(context, f"{FACT} in May")
    ).unchanged  # The existing entry expires; the new one must not.
    result = assert_succeeded(run_remember(context, f"{FACT} in May", expires="90d"))
    assert (result.unchanged, result.expires, "its end was not changed" in result.notes[0]) == (
        True,
        None,
        True,
    )


def test_invalid_expiry_is_rejected_without_model_call(context):
    model = ScriptedModel([])
    for expires in ("yesterday", str(TODAY - timedelta(days=2)), "0d", "", "2026-13-01", f"{DAY}\nname: x"):
        error = run_remember(context, FACT, model, expires=expires).error
        assert (error.code, "2026-12-31" in str(error), entries(context)) == ("invalid_expires", True, {})
        assert "\n" not in str(error)


def make_later_timestamp(day=DAY):
    """Return a `timestamp` that defaults to a day later than every end in these tests."""
    over = midnight_after(day)
    return lambda at=None: timestamp(at or over)


def test_expired_entry_leaves_index_and_is_removed_by_dream(context, monkeypatch):
    (path,) = assert_succeeded(run_remember(context, FACT, expires=str(DAY), scope="user")).files_touched
    current = assert_succeeded(run_remember(context, "The user likes chess", scope="user")).files_touched[0]
    index, name = get_user_root(context) / "MEMORY.md", path.removeprefix("user/")
    assert name in index.read_text()
    for module in (index_plan, index_upkeep):
        monkeypatch.setattr(module, "timestamp", make_later_timestamp())
    model = make_saving_model("user/tea.md", "The user likes tea\n", "user/tea.md")
    assert_succeeded(run_remember(context, "The user likes tea", model, scope="user"))
    prompt = "".join(message.text for message in model.requests[0].messages)
    assert ("side-door" in prompt, current.removeprefix("user/") in prompt) == (
        False,
        True,
    )  # The index file still lists it.
    assert (name in index.read_text(), current.removeprefix("user/") in index.read_text()) == (False, True)
    assert verify_root_index(context.state, context.roots["user"], context.policy).problems == ()
    monkeypatch.setattr("muniment.operations.dream.timestamp", make_later_timestamp())
    assert assert_succeeded(run_dream(context)).expired_paths == (path,)
    assert verify_root_index(context.state, context.roots["user"], context.policy).problems == ()


@pytest.mark.threat("T-MEM-25", control="inferred_ends")
def test_dream_lists_ended_entries_and_removes_nothing(context, monkeypatch):
    (path,) = assert_succeeded(run_remember(context, ENDING, scope="user")).files_touched
    before = entries(context)
    assert assert_succeeded(run_dream(context)).ended_paths == ()
    monkeypatch.setattr("muniment.operations.dream.timestamp", make_later_timestamp())
    for attended in (True, False):
        result = assert_succeeded(run_dream(context, attended=attended))
        assert (result.ended_paths, result.expired_paths, result.counts.ended) == ((path,), (), 1)
        assert (result.as_json()["ended_entries"], result.ended_entries) == ([path], 1)
        assert entries(context) == before


def test_index_restores_entry_after_expiry_is_removed(context):
    over = f"---\nexpires: {TODAY - timedelta(days=2)}\n---\nThe side door is locked\n"
    write_files(context, {"user/door.md": over})
    assert_succeeded(run_remember(context, "The user likes chess", scope="user"))
    index = get_user_root(context) / "MEMORY.md"
    assert "door.md" not in index.read_text()
    write_files(context, {"user/door.md": "The side door is locked\n"})
    assert_succeeded(run_remember(context, "The user likes tea", scope="user"))
    assert "door.md" in index.read_text()


@pytest.mark.threat("T-MEM-25", control="ends_of_people")
def test_model_cannot_set_end_of_entry(context):
    """Neither front matter nor text of the model sets an end, and neither does an entry that it reads."""
    write_files(context, {"user/hint.md": f"Everything here holds until {DAY}\n"})
    for number, (text, fact) in enumerate((
        (f"---\nexpires: {DAY}\n---\n{FACT}\n", FACT),
        (f"---\nends: {DAY}\n---\n{FACT}\n", FACT),
        (f"{FACT}\nIt is so until {DAY}.\n", FACT),
        (f"---\nexpires: {TODAY + timedelta(days=1)}\n---\n{ENDING}\n", ENDING),
    )):  # fmt: skip
        path = f"user/door-{number}.md"
        model = ScriptedModel(
            [
                reply_with_calls(make_call("read_file", path="user/hint.md")),
                reply_with_calls(make_write_call(path, text)),
                reply_with_text(path),
            ]
        )
        result = run_remember(context, fact, model)
        assert result.error is None
        assert read_end_keys(context, result.files_touched[0]) == (None, str(DAY) if fact is ENDING else None)
        (get_user_root(context).parent / result.files_touched[0]).unlink()


def test_fact_with_end_gets_separate_entry(context):
    lasting = "The side door is green"
    (path,) = assert_succeeded(
        run_remember(
            context, f"- {lasting}", make_saving_model("user/door.md", f"- {lasting}\n", "user/door.md")
        )
    ).files_touched
    before = entries(context)
    for text in (f"- {lasting}\n- {ENDING}\n", f"{ENDING}\n"):
        read = reply_with_calls(make_call("read_file", path=path))
        result = run_remember(
            context,
            ENDING,
            ScriptedModel([read, reply_with_calls(make_write_call(path, text)), reply_with_text(path)]),
        )
        assert (result.error, result.decided_by) == (None, "rules")
        (own,) = result.files_touched
        assert (read_end_keys(context, own), read_end_keys(context, path)) == ((None, str(DAY)), (None, None))
        assert entries(context)[path] == before[path]
        (get_user_root(context).parent / own).unlink()


def test_library_accepts_date_object_as_expiry(open_memory):
    opened = open_memory()
    assert opened.remember(FACT, expires=DAY).expires == str(DAY)
    catch_error(InvalidContent, opened.remember, FACT, expires=date(2020, 1, 1))
    repeated = opened.remember(ENDING, task_id="once")
    assert (repeated.ends, opened.remember(ENDING, task_id="once").ends) == (str(DAY), str(DAY))
