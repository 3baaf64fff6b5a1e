"""Similar facts that are both valid: each is stored, linked and reported as similar."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from kit.operations import places
from kit.operations.places import committed, done, dreaming, made, put, remembering, roomy, user
from kit.operations.places import memory as read_files
from kit.where import FACTS
from muniment.content.entry import parse
from muniment.kernel.names import Trust
from muniment.testing.minds import ScriptedModel, call, calls, say

context = places.place
FIRST, SECOND = "The replica is on port 5433", "The replica is on port 5434"


def list_bodies(context):
    return {parse(data).body.strip() for data in read_files(context).values()}


def load_siblings():
    found = {}
    for lang, _, *facts in json.loads((FACTS / "siblings.json").read_text(encoding="utf-8"))["pairs"]:
        found.setdefault(lang, []).append(facts)
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("lang", sorted(load_siblings()))
def test_siblings_of_a_language_are_all_stored(context, lang):
    pairs = load_siblings()[lang]
    results = {fact: remembering(context, fact) for column in zip(*pairs, strict=True) for fact in column}
    rejected = {fact for fact, result in results.items() if result.error is not None}
    assert {str(results[fact].error.code) for fact in rejected} <= {
        "remember_refused"
    }  # The fact looks like a code.
    assert len(rejected) <= 2
    assert list_bodies(context) == results.keys() - rejected
    assert not [result for result in results.values() if result.superseded or result.unchanged]


def test_remember_sibling_links_and_reports_older_entry(context):
    (older,) = done(remembering(context, FIRST)).files_touched
    result = done(remembering(context, SECOND, task_id="remember-second"))
    ident = parse(read_files(context)[older]).muniment["id"]
    assert result.as_json()["similar"] == [{"path": older, "id": ident}]
    assert parse(read_files(context)[result.files_touched[0]]).muniment["see"] == ident
    repeated = remembering(context, SECOND, task_id="remember-second")
    assert (repeated.repeated, repeated.similar) == (True, result.similar)
    third = done(remembering(context, "The replica is on port 5435"))
    assert {each.path for each in third.similar} == {older, *result.files_touched}
    assert list_bodies(context) == {FIRST, SECOND, "The replica is on port 5435"}


def test_remember_option_of_other_case_is_another_fact(context):
    facts = {"Run curl with -d in the tests", "Run curl with -D in the tests"}
    for fact in sorted(facts):
        assert not done(remembering(context, fact)).unchanged
        assert done(remembering(context, f"{fact}.")).unchanged
    assert done(dreaming(context)).counts.merged == 0
    assert list_bodies(context) == facts


def test_remember_dry_run_reports_similar_entry(context):
    (older,) = done(remembering(context, FIRST)).files_touched
    result = remembering(context, SECOND, dry_run=True)
    assert ([each.path for each in result.similar], list_bodies(context)) == ([older], {FIRST})


def test_remember_longer_wording_is_linked_and_keeps_its_words(context):
    for short, long in (
        ("Use pnpm", "Always use pnpm in this repository, please"),
        ("Verwende Ruff", "Verwende in diesem Projekt bitte immer Ruff"),
    ):
        paths = done(remembering(context, short)).files_touched
        result = done(remembering(context, long))
        assert tuple(each.path for each in result.similar) == paths
        assert {short, long} <= list_bodies(context)


def test_remember_change_replaces_and_reports_none_similar(context):
    done(remembering(context, FIRST))
    result = done(remembering(context, "The replica is now on port 5434"))
    assert (len(result.superseded), result.similar) == (1, ())
    assert list_bodies(context) == {"The replica is now on port 5434"}


def make_overwriting_model(path, text):
    return ScriptedModel(
        [
            calls(call("read_file", path=path)),
            calls(call("write_file", path=path, content=text)),
            say(f"Saved {path}"),
        ]
    )


def assert_overwrite_loses_nothing(context, text, trust):
    fallback_context = replace(context, on_model_failure="rules")
    (path,) = done(remembering(context, FIRST, trust=trust)).files_touched
    result = done(remembering(fallback_context, SECOND, make_overwriting_model(path, text), trust=trust))
    assert (result.decided_by, list_bodies(context)) == ("rules", {FIRST, SECOND})


@pytest.mark.threat("T-MEM-07", control="stated_changes")
@pytest.mark.parametrize("trust", [Trust.OWNER, Trust.AGENT])
def test_model_overwriting_sibling_loses_nothing(context, trust):
    assert_overwrite_loses_nothing(context, f"{SECOND}\n", trust)


def load_wordings(name):
    return json.loads((FACTS / "wordings.json").read_text(encoding="utf-8"))[name]


@pytest.mark.threat("T-MEM-07", control="stated_changes")
@pytest.mark.sweep(10)
@pytest.mark.parametrize(("old", "new"), [*load_wordings("other"), *load_wordings("several")])
def test_model_changing_unrelated_entry_keeps_it(context, old, new):
    put(user(context), "old.md", f"{old}\n")
    remembering(context, new, make_overwriting_model("user/old.md", f"{new}\n"))
    assert old in list_bodies(context)


@pytest.mark.threat("T-MEM-07", control="kept_statements")
@pytest.mark.parametrize("more", ["\nIt was tested.\n", "- The replica is on another port\n"])
def test_model_that_drops_a_statement_loses_nothing(context, more):
    assert_overwrite_loses_nothing(context, f"- {SECOND}\n{more}", Trust.AGENT)


def test_model_appending_to_sibling_is_accepted(context):
    (path,) = done(remembering(context, FIRST, trust=Trust.AGENT)).files_touched
    both = f"{FIRST}\n{SECOND}\n"
    result = done(remembering(context, SECOND, make_overwriting_model(path, both), trust=Trust.AGENT))
    assert (result.files_touched, list_bodies(context)) == ((path,), {both.strip()})


def make_merge_model(text=""):
    merge = {"ids": ["c1", "c2"], "keep": "c1", "text": text}
    return ScriptedModel([say(json.dumps({"merges": [merge]}))])


YOGA = "Yoga for the team of the office in Graz is in the large hall at noon on"


@pytest.mark.threat("T-MEM-08", control="words_of_the_entries")
@pytest.mark.parametrize("trust", [Trust.OWNER, Trust.AGENT])
def test_dream_model_that_merges_siblings_changes_nothing(tmp_path, trust):
    files = {f"user/{day}.md": f"{YOGA} {day}\n" for day in ("mondays", "wednesdays")}
    for number, text in enumerate(("", f"{YOGA} mondays", YOGA)):
        with made(tmp_path / str(number), roomy()) as context:
            committed(context, files, trust=trust)
            before = read_files(context)
            result = done(dreaming(context, make_merge_model(text)))
            assert (result.counts.merged, read_files(context)) == (0, before)
            assert any("rejected a text" in note for note in result.notes)


def test_dream_by_rules_keeps_siblings(context):
    for first, second in load_siblings()["en"][:10]:
        done(remembering(context, first))
        done(remembering(context, second))
    before = read_files(context)
    assert done(dreaming(context)).counts.merged == 0
    assert read_files(context) == before


def test_recall_returns_newer_linked_entry_first(memory):
    library = memory()
    ports = [f"The replica is on port {number}" for number in (5433, 5434, 5435)]
    for fact in ports:
        library.remember(fact)
    found = [each.text for each in library.recall("which port is the replica on?").entries]
    positions = [next(at for at, text in enumerate(found) if fact in text) for fact in ports]
    assert all(later < earlier for earlier, later in pairwise(positions)), found
