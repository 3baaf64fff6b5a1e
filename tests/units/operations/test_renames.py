"""An entry whose text changes does not retain a name that repeats the old text, whatever changes it."""

from __future__ import annotations

import pytest

from kit.operations import contexts
from kit.operations.contexts import (
    commit_texts,
    get_base,
    read_entries,
    run_forget,
    run_remember,
    write_files,
)
from muniment.content.entry import parse
from muniment.kernel.names import Trust
from muniment.operations.edit import edit_entry, toggle_pin
from muniment.operations.listing import show_entry
from muniment.operations.review import load_history, load_origin, undo_task
from muniment.store.upkeep import verify_root_index

context = contexts.context
FIRST = "We deploy on Thursdays at 10"
SECOND = "We now deploy on Wednesdays at 10"


def remember_path(context, fact, **options):
    (path,) = run_remember(context, fact, scope="user", **options).files_touched
    return path


def read_name(path):
    return path.rpartition("/")[2]


def assert_only_entry(context, path, text):
    """Check that one entry exists, at this path and with this text, and that the index lists it."""
    entries = read_entries(context)
    assert list(entries) == [path]
    assert parse(entries[path]).body.strip() == text
    index = (get_base(context) / "user/MEMORY.md").read_text()
    assert path.removeprefix("user/") in index
    assert index.count(".md)") == 1
    assert verify_root_index(context.state, context.roots["user"], context.policy).problems == ()


@pytest.mark.parametrize("trust", list(Trust)[:3])
def test_superseded_entry_gets_the_name_of_its_new_text(context, trust):
    old = remember_path(context, FIRST, trust=trust)
    new = remember_path(context, SECOND, trust=trust)
    assert (read_name(old), read_name(new)) == (
        "we-deploy-on-thursdays-at-10.md",
        "we-now-deploy-on-wednesdays-at-10.md",
    )
    assert_only_entry(context, new, SECOND)


def test_name_kept_by_one_edit_is_replaced_by_the_next(context):
    old = remember_path(context, FIRST)
    longer = f"{FIRST}. The build is green before that."
    assert edit_entry(context, old, longer).path == old
    new = edit_entry(context, old, "We deploy on Wednesdays.").path
    assert read_name(new) == "we-deploy-on-wednesdays.md"
    assert_only_entry(context, new, "We deploy on Wednesdays.")


def test_name_with_a_number_stays_while_its_words_do(context):
    first = remember_path(context, FIRST)
    numbered = first.replace(".md", "-2.md")
    (get_base(context) / first).rename(get_base(context) / numbered)
    assert edit_entry(context, numbered, f"{FIRST}. The build is green before that.").path == numbered


def test_second_entry_with_equal_name_gets_number_and_new_name(context):
    write_files(context, {"user/deploy/we-deploy-on-thursdays-at-10.md": "We ship crates.\n"})
    numbered = remember_path(context, FIRST)
    assert read_name(numbered) == "we-deploy-on-thursdays-at-10-2.md"
    assert edit_entry(context, numbered, f"{FIRST}. It takes an hour.").path == numbered
    assert read_name(edit_entry(context, numbered, "We deploy on Fridays.").path) == "we-deploy-on-fridays.md"


def test_name_without_words_follows_its_text(context):
    old = remember_path(context, "🐧 🐧 🐧 ❤ 🍕")
    assert read_name(old).startswith("note-")
    assert read_name(edit_entry(context, old, "The user likes pizza.").path) == "likes-pizza.md"


def test_name_that_a_person_chose_stays(context):
    write_files(context, {"user/team/thursdays.md": f"{FIRST}\n"})
    assert (
        edit_entry(context, "user/team/thursdays.md", "We deploy on Wednesdays.").path
        == "user/team/thursdays.md"
    )
    assert (
        edit_entry(context, "user/team/thursdays.md", "We deploy on Fridays.").path
        == "user/team/thursdays.md"
    )


def test_pinned_entry_follows_its_text_after_unpin(context):
    old = remember_path(context, FIRST)
    pinned = toggle_pin(context, old).path
    assert toggle_pin(context, pinned).path == old
    assert edit_entry(context, old, f"{FIRST}. It takes an hour.").path == old
    assert read_name(edit_entry(context, old, "We deploy on Fridays.").path) == "we-deploy-on-fridays.md"


def test_undo_and_its_undo_restore_name_handle_and_history(context):
    old = remember_path(context, FIRST)
    handle = show_entry(context, old).handle
    done = run_remember(context, SECOND, scope="user")
    (new,) = done.files_touched
    undone = undo_task(done.task_id, context)
    assert_only_entry(context, old, FIRST)
    assert (show_entry(context, handle).path, load_origin(context, handle).path) == (old, old)
    undo_task(undone.task_id, context)
    assert_only_entry(context, new, SECOND)
    assert (show_entry(context, handle).path, load_origin(context, handle).state) == (new, "committed")
    assert [(step.path, step.kind) for step in load_history(context, new)][-1] == (new, "new")


def test_forget_of_a_part_replaces_the_name_it_repeats(context):
    text = f"- {FIRST}\n- The build server is called Hopper\n"
    old = "user/we-deploy-on-thursdays-at-10.md"
    commit_texts(context, {old: text})
    done = run_forget(context, "deploy Thursdays")
    assert [each.path for each in done.removed_entries] == [old]
    (path,) = read_entries(context)
    assert read_name(path) == "the-build-server-is-called-hopper.md"
    assert f"{old} is now {path}" in done.notes
    again = run_forget(context, "deploy Thursdays", task_id=done.task_id)
    assert (again.repeated, again.removed_entries) == (True, done.removed_entries)
    undo_task(done.task_id, context)
    assert list(read_entries(context)) == [old]
