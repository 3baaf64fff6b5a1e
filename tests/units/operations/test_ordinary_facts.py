"""The ordinary job: facts of all languages and preferences in the imperative, remembered as the asker's."""

from __future__ import annotations

import json
from itertools import chain

import pytest

from kit.memories import SCOPES, strict
from kit.operations.places import made, opened, put, remembering
from kit.where import FACTS
from muniment.kernel.names import Scope, Trust
from muniment.store.upkeep import view_of

NAMES = ("ordinary", "matters", "benign")
ORDINARY, MATTERS, BENIGN = (json.loads((FACTS / f"{name}.json").read_text("utf-8")) for name in NAMES)
PREFERENCES = [each["text"] for each in BENIGN]
BY_RULES = [fact for number, fact in enumerate(ORDINARY) if number % 5 in {0, 1}]


def attempt(place, fact, model=None):
    result = remembering(place, fact["text"], model)
    assert (result.error, result.status) == (None, "completed"), fact["text"]
    # No word of it is anybody else's: nothing to be told, and trusted like who asked.
    assert (result.notes, result.trust) == ((), None if result.unchanged else Trust.OWNER), fact["text"]
    return result


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_rules_remember_every_fact_in_a_worker_and_know_them_afterwards(tmp_path):
    assert len(BY_RULES) >= 200
    with made(tmp_path, strict(), in_process=False) as place:
        results = [(fact, attempt(place, fact)) for fact in BY_RULES]
        written = [(fact, result) for fact, result in results if not result.unchanged]
        assert len(written) >= 0.95 * len(BY_RULES)
        assert {(len(each.files_touched), len(each.touched_scopes)) for _, each in written} == {(1, 1)}
        right = sum(result.touched_scopes == (fact["scope"],) for fact, result in written)
        assert right >= 0.95 * len(written)
        assert [fact for fact in BY_RULES[::8] if not attempt(place, fact).unchanged] == []


def test_the_folder_of_a_fact_depends_on_no_order_of_saving(tmp_path):
    facts, folders = [*ORDINARY[::90], *MATTERS[::15]], []
    for number, order in enumerate((facts, facts[::-1])):
        with made(tmp_path / str(number)) as place:
            saved = {fact["text"]: attempt(place, fact).files_touched for fact in order}
        folders.append({text: path.rpartition("/")[0] for text, (path,) in saved.items()})
    assert len(folders[0]) >= 10
    assert folders[0] == folders[1]


# -- preferences -----------------------------------------------------------------------------------------


def held_in(place, scope):
    """How many entries there are, and which a gate holds back, after a look at every file."""
    place.state.renew_catalog()
    entries = view_of(place.state, place.roots[Scope(scope)], place.policy, sweep=True).entries()
    return len(entries), [(entry.rel, entry.held) for entry in entries if entry.held is not None]


@pytest.mark.slow
def test_all_preferences_of_the_owner_are_filed_and_none_is_held_back(tmp_path):
    with made(tmp_path) as place:
        results = [attempt(place, {"text": text}) for text in PREFERENCES]
        written = {*chain.from_iterable(result.files_touched for result in results)}
        assert len(written) + sum(result.unchanged for result in results) == len(PREFERENCES) >= 200
        found = [held_in(place, scope) for scope in SCOPES]
        assert (sum(count for count, _ in found), [held for _, held in found]) == (len(written), [[], []])
    roots = {scope: tmp_path / scope for scope in SCOPES}
    with opened(roots) as stranger:  # Whose state knows nothing of it.
        assert [held_in(stranger, scope)[1] for scope in SCOPES] == [[], []]


def test_as_files_of_a_project_no_preference_is_held_back(tmp_path, request):
    texts = PREFERENCES if request.config.getoption("--slow") else PREFERENCES[::5]
    with made(tmp_path) as place:
        for number, text in enumerate(texts):
            put(tmp_path / "project", f"notes/{number}.md", f"{text}\n")
            name = json.dumps(text, ensure_ascii=False)
            put(tmp_path / "project", f"named/{number}.md", f"---\nname: {name}\n---\nAs it is called.\n")
        assert held_in(place, "project") == (2 * len(texts), [])
