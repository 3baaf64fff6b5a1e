"""When a fact ends: its caller says so, and it is hidden; or its words do, and it stays to be found."""

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
"""Of facts that are withheld for another reason than their end."""

SET_DAY = date(2026, 11, 28)


def midnight_after(day):
    """The first moment at which a day is over, in the time zone of the process."""
    return (datetime.combine(day, datetime.min.time()) + timedelta(days=1)).astimezone(UTC)


def keys_of(place, path):
    """The end of an entry, as its front matter has it: by its caller, and by its words."""
    found = parse(entries(place)[path])
    return found.expires, None if found.ends is None else str(found.ends)


def recalled(place, *, at, query="is the side door locked", **terms):
    recaller = Recaller(place.policy, place.roots, place.state, clock=lambda: at)
    try:
        return recaller.recall(query, **terms)
    finally:
        recaller.close()


def paths_recalled(place, *, at, **terms):
    return [each.path for each in recalled(place, at=at, **terms).entries]


def static_context(place, *, at):
    """The paths of the standing context of a conversation: its system part, and its project part."""
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
        assert keys_of(place, path) == (str(day), None)
        assert path in paths_recalled(place, at=midnight_after(day) - timedelta(seconds=1))
        assert path not in paths_recalled(place, at=midnight_after(day))
        (user(place).parent / path).unlink()


def test_inferred_end_keeps_entry_found_and_marks_it(place):
    result = done(remembering(place, ENDING))
    (path,) = result.files_touched
    assert (result.expires, result.ends, result.as_json()["ends"]) == (None, str(DAY), str(DAY))
    assert keys_of(place, path) == (None, str(DAY))
    (before,) = recalled(place, at=midnight_after(DAY) - timedelta(seconds=1)).entries
    (after,) = recalled(place, at=midnight_after(DAY)).entries
    assert ((before.path, before.ended), (after.path, after.ended)) == ((path, None), (path, str(DAY)))
    assert f"ended on {DAY}" in recalled(place, at=midnight_after(DAY)).text
    assert recalled(place, at=midnight_after(DAY)).entries[0].ended == str(DAY)


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
        assert keys_of(place, result.files_touched[0]) == (None, None)


def test_recall_shows_ended_entries_after_current_ones(place):
    over = [f"The side door of wing {wing} is locked until {DAY}" for wing in ("A", "B", "C", "D")]
    ended = {done(remembering(place, fact)).files_touched[0] for fact in over}
    at = midnight_after(DAY)
    assert set(paths_recalled(place, at=at)) == ended  # Nothing else is about it.
    current = {f"user/hall-{hall}.md" for hall in range(3, 9)}
    lay(place, {path: f"The side door of {path[5:11]} is locked at {path[10]} pm\n" for path in current})
    found = paths_recalled(place, at=at, query="the side door of wing A is locked")
    assert [path in ended for path in found] == sorted(path in ended for path in found)
    assert (len(found), sum(path in current for path in found)) == (5, 3)
    assert set(paths_recalled(place, at=at, limit=10)) == ended | set(paths_recalled(place, at=at, limit=10))


def test_ended_entry_leaves_standing_context_and_expired_too(place):
    (ended,) = done(remembering(place, ENDING, scope="user")).files_touched
    (hidden,) = done(remembering(place, "The lift is slow", scope="user", expires=str(DAY))).files_touched
    (kept,) = done(remembering(place, "The user likes chess", scope="user")).files_touched
    assert set(static_context(place, at=midnight_after(DAY - timedelta(days=1)))) == {ended, hidden, kept}
    assert static_context(place, at=midnight_after(DAY)) == [kept]


def test_no_fact_of_the_set_is_lost_after_its_end(place, some):
    """All facts of the independent set, asked by their own words, when every day in them has passed."""
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
        if f"user/n{number}.md" not in paths_recalled(place, at=at, query=fact)
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
            before, after = recalled(place, at=over - timedelta(seconds=1)), recalled(place, at=over)
        finally:
            monkeypatch.delenv("TZ")
            time.tzset()
        assert {each.path: each.ended for each in before.entries} == {path: None, "user/end.md": None}, zone
        assert {each.path: str(each.ended) for each in after.entries} == {"user/end.md": "2099-06-30"}, zone


def test_repeated_fact_is_known_if_it_ends_no_sooner(place):
    done(remembering(place, ENDING))
    again = done(remembering(place, f"{ENDING}."))
    assert (again.unchanged, len(entries(place))) == (True, 1)
    (path,) = entries(place)
    sooner = entries(place)[path].replace(f"ends: {DAY}".encode(), f"ends: {TODAY}".encode())
    assert parse(sooner).ends == TODAY
    lay(place, {path: sooner})
    assert not done(remembering(place, ENDING)).unchanged
    later = str(TODAY + timedelta(days=90))
    told = done(remembering(place, f"{FACT} in May", expires="90d"))
    assert (told.unchanged, told.expires) == (False, later)
    assert not done(
        remembering(place, f"{FACT} in May")
    ).unchanged  # The one that stands there is hidden one day.
    told = done(remembering(place, f"{FACT} in May", expires="90d"))
    assert (told.unchanged, told.expires, "its end was not changed" in told.notes[0]) == (True, None, True)


def test_invalid_expiry_is_rejected_and_asks_no_model(place):
    model = ScriptedModel([])
    for said in ("yesterday", str(TODAY - timedelta(days=2)), "0d", "", "2026-13-01", f"{DAY}\nname: x"):
        error = remembering(place, FACT, model, expires=said).error
        assert (error.code, "2026-12-31" in str(error), entries(place)) == ("invalid_expires", True, {})
        assert "\n" not in str(error)


def later(day=DAY):
    """Return a `timestamp` of a day later than all ends of these tests, unless a time is given."""
    over = midnight_after(day)
    return lambda at=None: timestamp(at or over)


def test_expired_entry_leaves_index_and_is_removed_by_dream(place, monkeypatch):
    (path,) = done(remembering(place, FACT, expires=str(DAY), scope="user")).files_touched
    kept = done(remembering(place, "The user likes chess", scope="user")).files_touched[0]
    index, name = user(place) / "MEMORY.md", path.removeprefix("user/")
    assert name in index.read_text()
    for module in (index_plan, upkeep):
        monkeypatch.setattr(module, "timestamp", later())
    model = saving("user/tea.md", "The user likes tea\n", "user/tea.md")
    done(remembering(place, "The user likes tea", model, scope="user"))
    shown = "".join(message.text for message in model.requests[0].messages)
    assert ("side-door" in shown, kept.removeprefix("user/") in shown) == (
        False,
        True,
    )  # Though the file had it.
    assert (name in index.read_text(), kept.removeprefix("user/") in index.read_text()) == (False, True)
    assert verify(place.state, place.roots["user"], place.policy).problems == ()
    monkeypatch.setattr("muniment.operations.dream.timestamp", later())
    assert done(dreaming(place)).expired_paths == (path,)
    assert verify(place.state, place.roots["user"], place.policy).problems == ()


@pytest.mark.threat("T-MEM-25", control="inferred_ends")
def test_dream_offers_ended_entry_and_removes_nothing(place, monkeypatch):
    (path,) = done(remembering(place, ENDING, scope="user")).files_touched
    before = entries(place)
    assert done(dreaming(place)).ended_paths == ()
    monkeypatch.setattr("muniment.operations.dream.timestamp", later())
    for attended in (True, False):
        result = done(dreaming(place, attended=attended))
        assert (result.ended_paths, result.expired_paths, result.counts.ended) == ((path,), (), 1)
        assert (result.as_json()["ended_entries"], result.ended_entries) == ([path], 1)
        assert entries(place) == before


def test_entry_without_expiry_comes_back_into_index(place):
    over = f"---\nexpires: {TODAY - timedelta(days=2)}\n---\nThe side door is locked\n"
    lay(place, {"user/door.md": over})
    done(remembering(place, "The user likes chess", scope="user"))
    index = user(place) / "MEMORY.md"
    assert "door.md" not in index.read_text()
    lay(place, {"user/door.md": "The side door is locked\n"})
    done(remembering(place, "The user likes tea", scope="user"))
    assert "door.md" in index.read_text()


@pytest.mark.threat("T-MEM-25", control="ends_of_people")
def test_no_model_says_when_an_entry_ends(place):
    """Neither by front matter nor by the words that it writes, and no more by what it reads."""
    lay(place, {"user/hint.md": f"Everything here holds until {DAY}\n"})
    for number, (text, words) in enumerate((
        (f"---\nexpires: {DAY}\n---\n{FACT}\n", FACT),
        (f"---\nends: {DAY}\n---\n{FACT}\n", FACT),
        (f"{FACT}\nIt is so until {DAY}.\n", FACT),
        (f"---\nexpires: {TODAY + timedelta(days=1)}\n---\n{ENDING}\n", ENDING),
    )):  # fmt: skip
        path = f"user/door-{number}.md"
        model = ScriptedModel(
            [calls(call("read_file", path="user/hint.md")), calls(write(path, text)), say(path)]
        )
        result = remembering(place, words, model)
        assert result.error is None
        assert keys_of(place, result.files_touched[0]) == (None, str(DAY) if words is ENDING else None)
        (user(place).parent / result.files_touched[0]).unlink()


def test_fact_that_ends_is_an_entry_of_its_own(place):
    lasting = "The side door is green"
    (path,) = done(
        remembering(place, f"- {lasting}", saving("user/door.md", f"- {lasting}\n", "user/door.md"))
    ).files_touched
    before = entries(place)
    for text in (f"- {lasting}\n- {ENDING}\n", f"{ENDING}\n"):
        look = calls(call("read_file", path=path))
        result = remembering(place, ENDING, ScriptedModel([look, calls(write(path, text)), say(path)]))
        assert (result.error, result.decided_by) == (None, "rules")
        (own,) = result.files_touched
        assert (keys_of(place, own), keys_of(place, path)) == ((None, str(DAY)), (None, None))
        assert entries(place)[path] == before[path]
        (user(place).parent / own).unlink()


def test_library_takes_a_date_as_expiry(memory):
    opened = memory()
    assert opened.remember(FACT, expires=DAY).expires == str(DAY)
    raised(InvalidContent, opened.remember, FACT, expires=date(2020, 1, 1))
    again = opened.remember(ENDING, task_id="once")
    assert (again.ends, opened.remember(ENDING, task_id="once").ends) == (str(DAY), str(DAY))
