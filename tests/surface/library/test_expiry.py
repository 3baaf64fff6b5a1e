"""When a fact ends: its caller says so, or its words do; then it is told no more, and a dream removes it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from kit.jobs import places
from kit.jobs.places import done, dreaming, lay, remembering, saving, user, write
from kit.jobs.places import memory as entries
from kit.raising import raised
from muniment.content.entry import parse
from muniment.errors import InvalidContent
from muniment.recall.recaller import Recaller
from muniment.store import upkeep
from muniment.store.audit import timestamp
from muniment.store.upkeep import verify
from muniment.testing.minds import ScriptedModel, call, calls, say

place = places.place
TODAY = datetime.now(UTC).date()
DAY = TODAY + timedelta(days=40)
FACT = "The side door is locked"
ENDING = f"{FACT} until {DAY}"


class Later(datetime):
    """The day on which the entry ends."""

    @classmethod
    def now(cls, tz=None):
        return datetime.combine(DAY, datetime.min.time(), tz) + timedelta(minutes=1)


def expiry(place, path):
    found = parse(entries(place)[path]).expires
    return None if found is None else found.date()


def recalled(place, *, at):
    recaller = Recaller(place.policy, place.roots, place.state, clock=lambda: at)
    try:
        return [each.path for each in recaller.recall("is the side door locked").entries]
    finally:
        recaller.close()


def test_what_a_caller_or_the_words_say_is_written_told_and_no_longer_recalled_from_that_day_on(place):
    for fact, expires, day in (
        (FACT, str(DAY), DAY),
        (f"{FACT} in winter", "40d", DAY),
        (ENDING, None, DAY),
        (f"{ENDING}, says Rui", "50d", TODAY + timedelta(days=50)),
    ):
        result = done(remembering(place, fact, expires=expires))
        (path,) = result.files_touched
        assert (result.expires, result.as_json()["expires"], expiry(place, path)) == (str(day), str(day), day)
        midnight = datetime.combine(day, datetime.min.time(), UTC)
        assert path in recalled(place, at=midnight - timedelta(seconds=1))
        assert path not in recalled(place, at=midnight)
        (user(place).parent / path).unlink()
    for fact in ("The side door is locked until the release", f"{FACT} since {DAY}"):
        result = done(remembering(place, fact))
        assert (result.expires, "expires" in result.as_json()) == (None, False)
        assert expiry(place, result.files_touched[0]) is None


def test_what_is_said_again_is_known_as_long_as_it_ends_no_sooner(place):
    done(remembering(place, ENDING))
    again = done(remembering(place, f"{ENDING}."))
    assert (again.unchanged, len(entries(place))) == (True, 1)
    (path,) = entries(place)
    two_days = str(TODAY + timedelta(days=2))
    sooner = entries(place)[path].replace(f"expires: {DAY}".encode(), f"expires: {two_days}".encode())
    assert parse(sooner).expires.date() < DAY
    lay(place, {path: sooner})
    assert not done(remembering(place, ENDING)).unchanged
    later = str(TODAY + timedelta(days=90))
    told = done(remembering(place, ENDING, expires="90d"))
    assert (told.unchanged, told.expires) == (False, later)
    done(remembering(place, FACT))
    told = done(remembering(place, FACT, expires="90d"))
    assert (told.unchanged, told.expires, "was given no end" in told.notes[0]) == (True, None, True)


def test_a_day_that_is_none_to_come_is_refused_and_asks_no_model(place):
    model = ScriptedModel([])
    for said in ("yesterday", str(TODAY - timedelta(days=2)), "0d", "", "2026-13-01", f"{DAY}\nname: x"):
        error = remembering(place, FACT, model, expires=said).error
        assert (error.code, "2026-12-31" in str(error), entries(place)) == ("invalid_expires", True, {})


def test_on_that_day_the_index_has_it_no_more_a_model_is_not_shown_its_line_and_a_dream_removes_it(
    place, monkeypatch
):
    (path,) = done(remembering(place, FACT, expires=str(DAY), scope="user")).files_touched
    kept = done(remembering(place, "The user likes chess", scope="user")).files_touched[0]
    index, name = user(place) / "MEMORY.md", path.removeprefix("user/")
    assert name in index.read_text()
    monkeypatch.setattr(upkeep, "timestamp", lambda: timestamp(Later.now(UTC)))
    model = saving("user/tea.md", "The user likes tea\n", "user/tea.md")
    done(remembering(place, "The user likes tea", model, scope="user"))
    shown = "".join(message.text for message in model.requests[0].messages)
    assert ("side-door" in shown, kept.removeprefix("user/") in shown) == (
        False,
        True,
    )  # Though the file had it.
    assert (name in index.read_text(), kept.removeprefix("user/") in index.read_text()) == (False, True)
    assert verify(place.state, place.roots["user"], place.policy).problems == ()
    monkeypatch.setattr("muniment.jobs.dream.timestamp", lambda: timestamp(Later.now(UTC)))
    assert done(dreaming(place)).expired_entries == (path,)
    assert verify(place.state, place.roots["user"], place.policy).problems == ()


def test_an_entry_that_a_person_lets_last_again_comes_back_into_the_index(place):
    over = f"---\nexpires: {TODAY - timedelta(days=1)}\n---\nThe side door is locked\n"
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
        (f"{FACT}\nIt is so until {DAY}.\n", FACT),
        (f"---\nexpires: {TODAY + timedelta(days=1)}\n---\n{ENDING}\n", ENDING),
    )):  # fmt: skip
        path = f"user/door-{number}.md"
        model = ScriptedModel(
            [calls(call("read_file", path="user/hint.md")), calls(write(path, text)), say(path)]
        )
        result = remembering(place, words, model)
        assert result.error is None
        assert expiry(place, result.files_touched[0]) == (DAY if words is ENDING else None)


def test_what_ends_is_put_into_no_entry_that_lasts_and_takes_the_place_of_none(place):
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
        assert (expiry(place, own), expiry(place, path)) == (DAY, None)
        assert entries(place)[path] == before[path]
        (user(place).parent / own).unlink()


def test_the_library_takes_a_date(memory):
    opened = memory()
    assert opened.remember(FACT, expires=DAY).expires == str(DAY)
    raised(InvalidContent, opened.remember, FACT, expires=date(2020, 1, 1))
    again = opened.remember(ENDING, task_id="once")
    assert (again.expires, opened.remember(ENDING, task_id="once").expires) == (str(DAY), str(DAY))
