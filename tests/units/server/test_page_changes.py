"""Lists of changes on the page: the facts that they show, and the changes that can be undone."""

from __future__ import annotations

import pytest

from muniment.operations.fact_changes import FactChange, merge_changes, merge_steps
from muniment.server.page.changes import (
    MAX_SHOWN_CHANGES,
    describe_facts,
    describe_undo,
    list_task_items,
)
from muniment.types import Change, CommittedStep


def step(task, path, kind="new", title="", **more):
    """Return a step of a task."""
    more = {"asked": "remember", "is_erased": False, "handle": path, "title": title or path} | more
    return CommittedStep(
        at="2026-11-29T12:00:00.000Z",
        task=task,
        path=path,
        kind=kind,
        decided_by="rules",
        policy="p",
        task_handle=f"t{task}",
        **more,
    )


def show(steps, withheld=(), limit=0):
    return [*list_task_items(steps, lambda path: path in withheld, (), limit)]


def list_states(steps):
    return [
        (each.step.task, "undone" if each.is_undone else "undo" if each.can_undo else "")
        for each in show(steps)
    ]


# -- facts -------------------------------------------------------------------------------------------------


def test_rename_is_one_change_of_one_fact():
    steps = (
        step("1", "user/old.md", "removed", "Thursdays", handle="h4ndl"),
        step("1", "user/new.md", "new", "Wednesdays", handle="h4ndl"),
    )
    expected = FactChange("changed", "user/new.md", "Thursdays", "Wednesdays", "h4ndl", "user/old.md")
    for order in steps, steps[::-1]:
        assert [*merge_steps(order)] == [expected]
    changes = (
        Change("user/new.md", "create", None, "d", None, "user/old.md", "Wednesdays", "h4ndl"),
        Change("user/old.md", "delete", "d", None, None, None, "Thursdays", "h4ndl"),
    )
    for order in changes, changes[::-1]:
        assert [*merge_changes(order)] == [expected]


def test_rename_without_new_title_is_a_move():
    steps = (
        step("1", "user/a.md", "removed", "Tea", handle="h4ndl"),
        step("1", "user/pinned/a.md", "new", "Tea", handle="h4ndl"),
    )
    assert [each.kind for each in merge_steps(steps)] == ["moved"]


def test_steps_of_unknown_text_are_never_merged():
    steps = (step("1", "user/a.md", "removed", handle=""), step("1", "user/b.md", "new", handle=""))
    assert [each.kind for each in merge_steps(steps)] == ["removed", "new"]


def test_copies_with_one_handle_are_never_merged():
    steps = (
        step("1", "user/a.md", "removed", handle="h4ndl"),
        step("1", "user/b.md", "removed", handle="h4ndl"),
        step("1", "user/c.md", "new", handle="h4ndl"),
    )
    assert [each.kind for each in merge_steps(steps)] == ["removed", "removed", "new"]


def test_changed_fact_has_old_and_new_title():
    (changed,) = merge_steps([step("1", "user/a.md", "changed", "New", previous_title="Old")])
    assert (changed.kind, changed.old, changed.new, changed.title) == ("changed", "Old", "New", "New")
    (removed,) = merge_steps([step("1", "user/a.md", "removed", "Old")])
    assert (removed.old, removed.new, removed.title) == ("Old", "", "Old")


def test_withheld_entry_shows_path_instead_of_titles():
    steps = [
        step("2", "user/a.md", "changed", "Run curl", previous_title="Ignore all"),
        step("1", "user/b.md", title="Tea"),
    ]
    first, second = show(steps, withheld={"user/a.md"})
    assert first.changes == (FactChange("changed", "user/a.md", "user/a.md", "user/a.md", "user/a.md"),)
    assert second.title == "Tea"


def test_item_of_many_changes_is_cut():
    steps = [step("1", f"user/{number}.md") for number in range(MAX_SHOWN_CHANGES + 1)]
    (item,) = show(steps)
    assert (len(item.changes), item.is_cut) == (MAX_SHOWN_CHANGES, True)
    (item,) = show(steps[:-1])
    assert (len(item.changes), item.is_cut) == (MAX_SHOWN_CHANGES, False)
    cut = show([step("2", "user/a.md"), step("1", "user/b.md")], limit=2)
    assert [each.is_cut for each in cut] == [False, True]


# -- undo --------------------------------------------------------------------------------------------------


def test_newest_change_of_each_entry_can_be_undone():
    steps = [
        step("4", "user/b.md", "changed"),
        step("3", "user/a.md", "changed"),
        step("2", "user/b.md"),
        step("1", "user/a.md"),
        step("0", "user/c.md"),
    ]
    assert list_states(steps) == [("4", "undo"), ("3", "undo"), ("2", ""), ("1", ""), ("0", "undo")]


def test_undone_change_makes_earlier_one_undoable():
    undo = step("3", "user/a.md", "changed", undoes="2", asked="undo")
    steps = [undo, step("2", "user/a.md", "changed"), step("1", "user/a.md")]
    assert list_states(steps) == [("3", "undo"), ("2", "undone"), ("1", "undo")]


def test_redone_change_blocks_earlier_one():
    steps = [
        step("4", "user/a.md", "changed", undoes="3", asked="undo"),
        step("3", "user/a.md", "changed", undoes="2", asked="undo"),
        step("2", "user/a.md", "changed"),
        step("1", "user/a.md"),
    ]
    assert list_states(steps) == [("4", "undo"), ("3", "undone"), ("2", "undo"), ("1", "")]


def test_task_with_erased_or_touched_entry_cannot_be_undone():
    steps = [
        step("3", "user/a.md", is_erased=True),
        step("2", "user/b.md", "changed"),
        step("1", "user/b.md"),
        step("1", "user/c.md"),
    ]
    assert list_states(steps) == [("3", ""), ("2", "undo"), ("1", "")]


# -- notices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([FactChange("new", "user/a.md", "", "Tea")], 'Undone: restored "Tea". To reverse this, use Redo.'),
        (
            [FactChange("removed", "user/a.md", "Tea", "")],
            'Undone: removed "Tea". To reverse this, use Redo.',
        ),
        (
            [FactChange("changed", "user/a.md", "Tea", "Jam")],
            'Undone: "Tea" → "Jam". To reverse this, use Redo.',
        ),
        ([FactChange("changed", "user/a.md", "Tea", "Tea")], 'Undone: "Tea". To reverse this, use Redo.'),
        (
            [FactChange("new", "user/a.md", "", "Tea")] * 3,
            'Undone: restored "Tea" and 2 more. To reverse this, use Redo.',
        ),
        (
            [FactChange("new", "user/a.md", "", "")],
            'Undone: restored "user/a.md". To reverse this, use Redo.',
        ),
        ([], "Undone."),
    ],
)
def test_notice_of_undo_names_fact(changes, expected):
    assert describe_undo(changes) == expected


def test_notice_without_facts_says_so():
    assert describe_facts([]) == "no facts"
