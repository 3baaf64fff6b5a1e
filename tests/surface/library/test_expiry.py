"""Expiry: an entry expires on the date of its caller; an end date in its text only marks it as ended."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta

import pytest

from kit.operations import places
from kit.operations.places import done, dreaming, lay, remembering, saving, user, write
from kit.operations.places import memory as entries
from kit.raising import raised
from kit.where import FACTS
from muniment.content.entry import parse
from muniment.content.expiry import find_end
from muniment.errors import InvalidContent
from muniment.kernel.cancel import Patience
from muniment.recall.context import Budgets, StaticContext
from muniment.recall.recaller import Recaller
from muniment.store import index_plan, upkeep
from muniment.store.audit import timestamp
from muniment.store.upkeep import verify
from muniment.testing.minds import ScriptedModel, call, calls, say

place, some = places.place, places.some
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
        context.refresh(Patience(float("inf")))
        project = context.take_project(())
        return [each.path for part in (context.system, project) if part for each in part.entries]
    finally:
        recaller.close()


def test_explicit_expiry_hides_entry_after_its_day(place):
    for fact, expires, day in (
        (FACT, str(DAY), DAY),
        (FACT, str(TODAY), TODAY),
        (f"{FACT} in winter", "40d", DAY),
        (f"{ENDING}, says Rui", "50d", TODAY + timedelta(days=50)),
    ):
        result = done(remembering(place, fact, expires=expires))
        (path,) = result.files_touched
        assert (result.expires, result.ends, result.as_json()["expires"]) == (str(day), None, str(day))
        assert read_end_keys(place, path) == (str(day), None)
        assert path in recall_paths_at(place, at=midnight_after(day) - timedelta(seconds=1))
        assert path not in recall_paths_at(place, at=midnight_after(day))
        (user(place).parent / path).unlink()


def test_inferred_end_keeps_entry_found_and_marks_it(place):
    result = done(remembering(place, ENDING))
    (path,) = result.files_touched
    assert (result.expires, result.ends, result.as_json()["ends"]) == (None, str(DAY), str(DAY))
    assert read_end_keys(place, path) == (None, str(DAY))
    (before,) = recall_at(place, at=midnight_after(DAY) - timedelta(seconds=1)).entries
    (after,) = recall_at(place, at=midnight_after(DAY)).entries
    assert ((before.path, before.ended), (after.path, after.ended)) == ((path, None), (path, str(DAY)))
    assert f"ended on {DAY}" in recall_at(place, at=midnight_after(DAY)).text
    assert recall_at(place, at=midnight_after(DAY)).entries[0].ended == str(DAY)


def test_fact_without_certain_end_gets_no_key(place):
    until = f"until {DAY}"
    for fact in (
        "The side door is locked until the release",
        f"{FACT} since {DAY}",
        f"The warranty of the laptop runs {until}",
        f"The certificate of gw1 is valid {until}",
        f"Der Vertrag mit Kessler gilt bis {DAY}",
    ):
        result = done(remembering(place, fact))
        assert (result.expires, result.ends, "ends" in result.as_json()) == (None, None, False)
        assert read_end_keys(place, result.files_touched[0]) == (None, None)


def test_recall_shows_ended_entries_after_current_ones(place):
    over = [f"The side door of wing {wing} is locked until {DAY}" for wing in ("A", "B", "C", "D")]
    ended = {done(remembering(place, fact)).files_touched[0] for fact in over}
    at = midnight_after(DAY)
    assert set(recall_paths_at(place, at=at)) == ended  # No other entry matches.
    current = {f"user/hall-{hall}.md" for hall in range(3, 9)}
    lay(place, {path: f"The side door of {path[5:11]} is locked at {path[10]} pm\n" for path in current})
    found = recall_paths_at(place, at=at, query="the side door of wing A is locked")
    assert [path in ended for path in found] == sorted(path in ended for path in found)
    assert (len(found), sum(path in current for path in found)) == (5, 3)
    assert set(recall_paths_at(place, at=at, limit=10)) == ended | set(
        recall_paths_at(place, at=at, limit=10)
    )


def test_static_context_omits_ended_and_expired_entries(place):
    (ended,) = done(remembering(place, ENDING, scope="user")).files_touched
    (hidden,) = done(remembering(place, "The lift is slow", scope="user", expires=str(DAY))).files_touched
    (current,) = done(remembering(place, "The user likes chess", scope="user")).files_touched
    assert set(read_static_paths(place, at=midnight_after(DAY - timedelta(days=1)))) == {
        ended,
        hidden,
        current,
    }
    assert read_static_paths(place, at=midnight_after(DAY)) == [current]


def test_recall_finds_every_fact_after_its_end(place, some):
    """Recall each fact of the independent set by its own text, after every date in the set has passed."""
    facts = [row["text"] for row in json.loads((FACTS / "ends.json").read_text("utf-8"))["sentences"]]
    facts = [fact for fact in facts if find_end(fact, SET_DAY) and not SECRET.search(fact)]
    facts = some(facts, 4)
    lay(place, {
        f"user/n{number}.md": f"---\nends: {find_end(fact, SET_DAY)}\n---\n{fact}\n"
        for number, fact in enumerate(facts)
    })  # fmt: skip
    at = datetime(2060, 1, 1, tzinfo=UTC)
    lost = [
        fact
        for number, fact in enumerate(facts)
        if f"user/n{number}.md" not in recall_paths_at(place, at=at, query=fact)
    ]
    assert (len(facts) > 30, lost) == (True, [])


def test_day_is_over_at_midnight_of_the_local_zone(place, monkeypatch):
    import time

    (path,) = done(remembering(place, FACT, expires="2099-06-30")).files_touched
    lay(place, {"user/end.md": "---\nends: 2099-06-30\n---\nThe side door is locked for the fair\n"})
    for zone, over in (
        ("UTC", datetime(2099, 7, 1, tzinfo=UTC)),
        ("Etc/GMT-14", datetime(2099, 6, 30, 10, tzinfo=UTC)),
        ("Etc/GMT+12", datetime(2099, 7, 1, 12, tzinfo=UTC)),
    ):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            before, after = recall_at(place, at=over - timedelta(seconds=1)), recall_at(place, at=over)
        finally:
            monkeypatch.delenv("TZ")
            time.tzset()
        assert {each.path: each.ended for each in before.entries} == {path: None, "user/end.md": None}, zone
        assert {each.path: str(each.ended) for each in after.entries} == {"user/end.md": "2099-06-30"}, zone


def test_repeated_fact_is_stored_if_existing_entry_ends_sooner(place):
    done(remembering(place, ENDING))
    repeated = done(remembering(place, f"{ENDING}."))
    assert (repeated.unchanged, len(entries(place))) == (True, 1)
    (path,) = entries(place)
    sooner = entries(place)[path].replace(f"ends: {DAY}".encode(), f"ends: {TODAY}".encode())
    assert parse(sooner).ends == TODAY
    lay(place, {path: sooner})
    assert not done(remembering(place, ENDING)).unchanged
    later = str(TODAY + timedelta(days=90))
    result = done(remembering(place, f"{FACT} in May", expires="90d"))
    assert (result.unchanged, result.expires) == (False, later)
    assert not done(
        remembering(place, f"{FACT} in May")
    ).unchanged  # The existing entry expires; the new one must not.
    result = done(remembering(place, f"{FACT} in May", expires="90d"))
    assert (result.unchanged, result.expires, "its end was not changed" in result.notes[0]) == (
        True,
        None,
        True,
    )


def test_invalid_expiry_is_rejected_without_model_call(place):
    model = ScriptedModel([])
    for expires in ("yesterday", str(TODAY - timedelta(days=2)), "0d", "", "2026-13-01", f"{DAY}\nname: x"):
        error = remembering(place, FACT, model, expires=expires).error
        assert (error.code, "2026-12-31" in str(error), entries(place)) == ("invalid_expires", True, {})
        assert "\n" not in str(error)


def make_later_timestamp(day=DAY):
    """Return a `timestamp` that defaults to a day later than every end in these tests."""
    over = midnight_after(day)
    return lambda at=None: timestamp(at or over)


def test_expired_entry_leaves_index_and_is_removed_by_dream(place, monkeypatch):
    (path,) = done(remembering(place, FACT, expires=str(DAY), scope="user")).files_touched
    current = done(remembering(place, "The user likes chess", scope="user")).files_touched[0]
    index, name = user(place) / "MEMORY.md", path.removeprefix("user/")
    assert name in index.read_text()
    for module in (index_plan, upkeep):
        monkeypatch.setattr(module, "timestamp", make_later_timestamp())
    model = saving("user/tea.md", "The user likes tea\n", "user/tea.md")
    done(remembering(place, "The user likes tea", model, scope="user"))
    prompt = "".join(message.text for message in model.requests[0].messages)
    assert ("side-door" in prompt, current.removeprefix("user/") in prompt) == (
        False,
        True,
    )  # The index file still lists it.
    assert (name in index.read_text(), current.removeprefix("user/") in index.read_text()) == (False, True)
    assert verify(place.state, place.roots["user"], place.policy).problems == ()
    monkeypatch.setattr("muniment.operations.dream.timestamp", make_later_timestamp())
    assert done(dreaming(place)).expired_paths == (path,)
    assert verify(place.state, place.roots["user"], place.policy).problems == ()


@pytest.mark.threat("T-MEM-25", control="inferred_ends")
def test_dream_lists_ended_entries_and_removes_nothing(place, monkeypatch):
    (path,) = done(remembering(place, ENDING, scope="user")).files_touched
    before = entries(place)
    assert done(dreaming(place)).ended_paths == ()
    monkeypatch.setattr("muniment.operations.dream.timestamp", make_later_timestamp())
    for attended in (True, False):
        result = done(dreaming(place, attended=attended))
        assert (result.ended_paths, result.expired_paths, result.counts.ended) == ((path,), (), 1)
        assert (result.as_json()["ended_entries"], result.ended_entries) == ([path], 1)
        assert entries(place) == before


def test_index_restores_entry_after_expiry_is_removed(place):
    over = f"---\nexpires: {TODAY - timedelta(days=2)}\n---\nThe side door is locked\n"
    lay(place, {"user/door.md": over})
    done(remembering(place, "The user likes chess", scope="user"))
    index = user(place) / "MEMORY.md"
    assert "door.md" not in index.read_text()
    lay(place, {"user/door.md": "The side door is locked\n"})
    done(remembering(place, "The user likes tea", scope="user"))
    assert "door.md" in index.read_text()


@pytest.mark.threat("T-MEM-25", control="ends_of_people")
def test_model_cannot_set_end_of_entry(place):
    """Neither front matter nor text of the model sets an end, and neither does an entry that it reads."""
    lay(place, {"user/hint.md": f"Everything here holds until {DAY}\n"})
    for number, (text, fact) in enumerate((
        (f"---\nexpires: {DAY}\n---\n{FACT}\n", FACT),
        (f"---\nends: {DAY}\n---\n{FACT}\n", FACT),
        (f"{FACT}\nIt is so until {DAY}.\n", FACT),
        (f"---\nexpires: {TODAY + timedelta(days=1)}\n---\n{ENDING}\n", ENDING),
    )):  # fmt: skip
        path = f"user/door-{number}.md"
        model = ScriptedModel(
            [calls(call("read_file", path="user/hint.md")), calls(write(path, text)), say(path)]
        )
        result = remembering(place, fact, model)
        assert result.error is None
        assert read_end_keys(place, result.files_touched[0]) == (None, str(DAY) if fact is ENDING else None)
        (user(place).parent / result.files_touched[0]).unlink()


def test_fact_with_end_gets_separate_entry(place):
    lasting = "The side door is green"
    (path,) = done(
        remembering(place, f"- {lasting}", saving("user/door.md", f"- {lasting}\n", "user/door.md"))
    ).files_touched
    before = entries(place)
    for text in (f"- {lasting}\n- {ENDING}\n", f"{ENDING}\n"):
        read = calls(call("read_file", path=path))
        result = remembering(place, ENDING, ScriptedModel([read, calls(write(path, text)), say(path)]))
        assert (result.error, result.decided_by) == (None, "rules")
        (own,) = result.files_touched
        assert (read_end_keys(place, own), read_end_keys(place, path)) == ((None, str(DAY)), (None, None))
        assert entries(place)[path] == before[path]
        (user(place).parent / own).unlink()


def test_library_accepts_date_object_as_expiry(memory):
    opened = memory()
    assert opened.remember(FACT, expires=DAY).expires == str(DAY)
    raised(InvalidContent, opened.remember, FACT, expires=date(2020, 1, 1))
    repeated = opened.remember(ENDING, task_id="once")
    assert (repeated.ends, opened.remember(ENDING, task_id="once").ends) == (str(DAY), str(DAY))
