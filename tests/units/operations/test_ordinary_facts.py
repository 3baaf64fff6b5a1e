"""Ordinary facts in all languages and preferences, remembered with the trust of the owner."""

from __future__ import annotations

import json
from itertools import chain

import pytest

from kit.locations import FACTS
from kit.memories import SCOPES, make_strict_policy
from kit.operations.contexts import create_context, open_context, run_remember, write_file
from muniment.kernel.names import Scope, Trust
from muniment.store.upkeep import open_view

NAMES = ("ordinary", "matters", "benign")
ORDINARY, MATTERS, BENIGN = (json.loads((FACTS / f"{name}.json").read_text("utf-8")) for name in NAMES)
PREFERENCES = [each["text"] for each in BENIGN]
BY_RULES = [fact for number, fact in enumerate(ORDINARY) if number % 5 in {0, 1}]


def remember_successfully(context, fact, model=None):
    result = run_remember(context, fact["text"], model)
    assert (result.error, result.status) == (None, "completed"), fact["text"]
    # All words come from the requester: no notes, and the trust of the requester.
    assert (result.notes, result.trust) == ((), None if result.unchanged else Trust.OWNER), fact["text"]
    return result


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_rules_remember_every_fact_in_worker_and_know_it(tmp_path):
    assert len(BY_RULES) >= 200
    with create_context(tmp_path, make_strict_policy(), in_process=False) as context:
        results = [(fact, remember_successfully(context, fact)) for fact in BY_RULES]
        written = [(fact, result) for fact, result in results if not result.unchanged]
        assert len(written) >= 0.95 * len(BY_RULES)
        assert {(len(each.files_touched), len(each.touched_scopes)) for _, each in written} == {(1, 1)}
        right = sum(result.touched_scopes == (fact["scope"],) for fact, result in written)
        assert right >= 0.95 * len(written)
        assert [fact for fact in BY_RULES[::8] if not remember_successfully(context, fact).unchanged] == []


def test_folder_of_fact_does_not_depend_on_order(tmp_path):
    facts, folders = [*ORDINARY[::90], *MATTERS[::15]], []
    for number, order in enumerate((facts, facts[::-1])):
        with create_context(tmp_path / str(number)) as context:
            saved = {fact["text"]: remember_successfully(context, fact).files_touched for fact in order}
        folders.append({text: path.rpartition("/")[0] for text, (path,) in saved.items()})
    assert len(folders[0]) >= 10
    assert folders[0] == folders[1]


# -- preferences -----------------------------------------------------------------------------------------


def find_withheld(context, scope):
    """Return the number of entries and the withheld ones, after a check of every file."""
    context.state.recreate_catalog()
    entries = open_view(context.state, context.roots[Scope(scope)], context.policy, sweep=True).entries()
    return len(entries), [(entry.rel, entry.held) for entry in entries if entry.held is not None]


@pytest.mark.slow
def test_owner_preferences_are_all_filed_and_not_withheld(tmp_path):
    with create_context(tmp_path) as context:
        results = [remember_successfully(context, {"text": text}) for text in PREFERENCES]
        written = {*chain.from_iterable(result.files_touched for result in results)}
        assert len(written) + sum(result.unchanged for result in results) == len(PREFERENCES) >= 200
        found = [find_withheld(context, scope) for scope in SCOPES]
        assert (sum(count for count, _ in found), [withheld for _, withheld in found]) == (
            len(written),
            [[], []],
        )
    roots = {scope: tmp_path / scope for scope in SCOPES}
    with open_context(roots) as unrelated:  # A state that does not know these files.
        assert [find_withheld(unrelated, scope)[1] for scope in SCOPES] == [[], []]


def test_preferences_in_project_files_are_not_withheld(tmp_path, request):
    texts = PREFERENCES if request.config.getoption("--slow") else PREFERENCES[::5]
    with create_context(tmp_path) as context:
        for number, text in enumerate(texts):
            write_file(tmp_path / "project", f"notes/{number}.md", f"{text}\n")
            name = json.dumps(text, ensure_ascii=False)
            write_file(
                tmp_path / "project", f"named/{number}.md", f"---\nname: {name}\n---\nAs it is called.\n"
            )
        assert find_withheld(context, "project") == (2 * len(texts), [])
