"""Facts that are about the same and both hold: each stays, is linked and is shown as similar."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from kit.operations import places
from kit.operations.places import committed, done, dreaming, made, put, remembering, roomy, user
from kit.operations.places import memory as files_of
from kit.where import FACTS
from muniment.content.entry import parse
from muniment.kernel.names import Trust
from muniment.testing.minds import ScriptedModel, call, calls, say

place = places.place
FIRST, SECOND = "The replica is on port 5433", "The replica is on port 5434"


def bodies(place):
    return {parse(data).body.strip() for data in files_of(place).values()}


def siblings():
    found = {}
    for lang, _, *facts in json.loads((FACTS / "siblings.json").read_text(encoding="utf-8"))["pairs"]:
        found.setdefault(lang, []).append(facts)
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("lang", sorted(siblings()))
def test_siblings_of_a_language_are_all_stored(place, lang):
    pairs = siblings()[lang]
    results = {fact: remembering(place, fact) for column in zip(*pairs, strict=True) for fact in column}
    refused = {fact for fact, result in results.items() if result.error is not None}
    assert {str(results[fact].error.code) for fact in refused} <= {
        "remember_refused"
    }  # It looks like a code.
    assert len(refused) <= 2
    assert bodies(place) == results.keys() - refused
    assert not [result for result in results.values() if result.superseded or result.unchanged]


def test_remember_sibling_links_it_and_tells_the_older(place):
    (older,) = done(remembering(place, FIRST)).files_touched
    result = done(remembering(place, SECOND, task_id="remember-second"))
    ident = parse(files_of(place)[older]).muniment["id"]
    assert result.as_json()["similar"] == [{"path": older, "id": ident}]
    assert parse(files_of(place)[result.files_touched[0]]).muniment["see"] == ident
    again = remembering(place, SECOND, task_id="remember-second")
    assert (again.repeated, again.similar) == (True, result.similar)
    third = done(remembering(place, "The replica is on port 5435"))
    assert {each.path for each in third.similar} == {older, *result.files_touched}
    assert bodies(place) == {FIRST, SECOND, "The replica is on port 5435"}


def test_remember_option_of_other_case_is_another_fact(place):
    facts = {"Run curl with -d in the tests", "Run curl with -D in the tests"}
    for fact in sorted(facts):
        assert not done(remembering(place, fact)).unchanged
        assert done(remembering(place, f"{fact}.")).unchanged
    assert done(dreaming(place)).counts.merged == 0
    assert bodies(place) == facts


def test_remember_dry_run_tells_the_similar_entry(place):
    (older,) = done(remembering(place, FIRST)).files_touched
    result = remembering(place, SECOND, dry_run=True)
    assert ([each.path for each in result.similar], bodies(place)) == ([older], {FIRST})


def test_remember_longer_wording_is_linked_and_keeps_its_words(place):
    for short, long in (
        ("Use pnpm", "Always use pnpm in this repository, please"),
        ("Verwende Ruff", "Verwende in diesem Projekt bitte immer Ruff"),
    ):
        paths = done(remembering(place, short)).files_touched
        result = done(remembering(place, long))
        assert tuple(each.path for each in result.similar) == paths
        assert {short, long} <= bodies(place)


def test_remember_change_still_replaces_and_tells_none_similar(place):
    done(remembering(place, FIRST))
    result = done(remembering(place, "The replica is now on port 5434"))
    assert (len(result.superseded), result.similar) == (1, ())
    assert bodies(place) == {"The replica is now on port 5434"}


def overwriting(path, text):
    return ScriptedModel(
        [
            calls(call("read_file", path=path)),
            calls(call("write_file", path=path, content=text)),
            say(f"Saved {path}"),
        ]
    )


def assert_written_over_loses_nothing(place, text, trust):
    following = replace(place, on_model_failure="rules")
    (path,) = done(remembering(place, FIRST, trust=trust)).files_touched
    result = done(remembering(following, SECOND, overwriting(path, text), trust=trust))
    assert (result.decided_by, bodies(place)) == ("rules", {FIRST, SECOND})


@pytest.mark.threat("T-MEM-07", control="change_is_said")
@pytest.mark.parametrize("trust", [Trust.OWNER, Trust.AGENT])
def test_model_that_writes_over_a_sibling_loses_nothing(place, trust):
    assert_written_over_loses_nothing(place, f"{SECOND}\n", trust)


def wordings(name):
    return json.loads((FACTS / "wordings.json").read_text(encoding="utf-8"))[name]


@pytest.mark.threat("T-MEM-07", control="change_is_said")
@pytest.mark.sweep(10)
@pytest.mark.parametrize(("old", "new"), [*wordings("other"), *wordings("several")])
def test_model_that_writes_a_change_of_another_keeps_it(place, old, new):
    put(user(place), "old.md", f"{old}\n")
    remembering(place, new, overwriting("user/old.md", f"{new}\n"))
    assert old in bodies(place)


@pytest.mark.threat("T-MEM-07", control="kept_statements")
@pytest.mark.parametrize("more", ["\nIt was tested.\n", "- The replica is on another port\n"])
def test_model_that_drops_a_statement_loses_nothing(place, more):
    assert_written_over_loses_nothing(place, f"- {SECOND}\n{more}", Trust.AGENT)


def test_model_that_appends_to_a_sibling_is_followed(place):
    (path,) = done(remembering(place, FIRST, trust=Trust.AGENT)).files_touched
    both = f"{FIRST}\n{SECOND}\n"
    result = done(remembering(place, SECOND, overwriting(path, both), trust=Trust.AGENT))
    assert (result.files_touched, bodies(place)) == ((path,), {both.strip()})


def merging(text=""):
    merge = {"ids": ["c1", "c2"], "keep": "c1", "text": text}
    return ScriptedModel([say(json.dumps({"merges": [merge]}))])


YOGA = "Yoga for the team of the office in Graz is in the large hall at noon on"


@pytest.mark.threat("T-MEM-08", control="words_of_the_entries")
@pytest.mark.parametrize("trust", [Trust.OWNER, Trust.AGENT])
def test_dream_model_that_merges_siblings_changes_nothing(tmp_path, trust):
    said = {f"user/{day}.md": f"{YOGA} {day}\n" for day in ("mondays", "wednesdays")}
    for number, text in enumerate(("", f"{YOGA} mondays", YOGA)):
        with made(tmp_path / str(number), roomy()) as place:
            committed(place, said, trust=trust)
            before = files_of(place)
            result = done(dreaming(place, merging(text)))
            assert (result.counts.merged, files_of(place)) == (0, before)
            assert any("rejected a text" in note for note in result.notes)


def test_dream_by_rules_keeps_siblings(place):
    for first, second in siblings()["en"][:10]:
        done(remembering(place, first))
        done(remembering(place, second))
    before = files_of(place)
    assert done(dreaming(place)).counts.merged == 0
    assert files_of(place) == before


def test_recall_shows_the_newer_of_linked_entries_first(memory):
    opened = memory()
    ports = [f"The replica is on port {number}" for number in (5433, 5434, 5435)]
    for fact in ports:
        opened.remember(fact)
    found = [each.text for each in opened.recall("which port is the replica on?").entries]
    places = [next(at for at, text in enumerate(found) if fact in text) for fact in ports]
    assert all(later < earlier for earlier, later in pairwise(places)), found
