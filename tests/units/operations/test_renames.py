"""An entry whose text changes does not retain a name that repeats the old text, in every kind of change."""

from __future__ import annotations

import json

import pytest

from kit.catching import catch_error
from kit.operations import contexts
from kit.operations.contexts import (
    commit_texts,
    create_context,
    get_base,
    make_permissive_policy,
    read_entries,
    run_dream,
    run_forget,
    run_remember,
    write_files,
)
from muniment.content.entry import parse
from muniment.content.titles import build_name_mark
from muniment.errors import NotFound
from muniment.kernel.names import Trust
from muniment.operations.edit import edit_entry, toggle_pin
from muniment.operations.listing import show_entry
from muniment.operations.owner import erase
from muniment.operations.review import approve_review, load_history, load_origin, show_review, undo_task
from muniment.store.index_upkeep import verify_root_index
from muniment.store.review import read_pending
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

context = contexts.context
skip_fact_check = contexts.skip_fact_check
FIRST = "We deploy with Ansible on Thursdays at 10"
SECOND = "We now deploy with Helm on Thursdays at 10"
OLD_NAME = "we-deploy-with-ansible-on-thursdays-at-10.md"
"""The name that earlier versions generated from `FIRST`."""


def make_changing_model(path, text):
    """Return a model that reads an entry and replaces its text."""
    return ScriptedModel(
        [
            reply_with_calls(make_call("read_file", path=path)),
            reply_with_calls(make_call("write_file", path=path, content=text)),
            reply_with_text("Saved."),
        ]
    )


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
        "deploy-ansible.md",
        "deploy-helm.md",
    )
    assert_only_entry(context, new, SECOND)


@pytest.mark.parametrize(
    "name", ["we-deploy-with-ansible-on-thursdays", "anti-disestablishmentarianism-deploys"]
)
def test_long_name_of_model_is_replaced(context, name):
    text = f"{FIRST}, the anti disestablishmentarianism deploys too."
    write = make_call("write_file", path=f"user/deploy/{name}.md", content=f"{text}\n")
    model = ScriptedModel([reply_with_calls(write), reply_with_text("Saved.")])
    (path,) = run_remember(context, text, model).files_touched
    assert read_name(path) == "deploy-ansible-anti.md"


def test_name_kept_by_one_edit_is_replaced_by_the_next(context):
    old = remember_path(context, FIRST)
    longer = f"{FIRST}. The build is green before that."
    assert edit_entry(context, old, longer).path == old
    new = edit_entry(context, old, "We deploy with Helm.").path
    assert read_name(new) == "deploy-helm.md"
    assert_only_entry(context, new, "We deploy with Helm.")


def test_name_without_values_stays_if_a_value_changes(context):
    old = remember_path(context, "The API port is 8080.")
    assert read_name(old) == "api-port.md"
    assert edit_entry(context, old, "The API port is 9090.").path == old
    assert run_remember(context, "The API port is now 7070.", scope="user").files_touched == (old,)
    assert read_name(edit_entry(context, old, "The admin port is 7070.").path) == "admin-port.md"


def test_name_of_earlier_version_is_replaced_with_its_text(context):
    path = f"user/deploy/{OLD_NAME}"
    provenance = json.dumps({"id": "01M8K0NPX9RDQAGJ3DWT0A7CHD"})
    commit_texts(context, {path: f"---\nmuniment: {provenance}\n---\n{FIRST}\n"})
    assert edit_entry(context, path, f"{FIRST}!").path == path
    assert read_name(edit_entry(context, path, "We deploy with Helm.").path) == "deploy-helm.md"


def test_marked_name_is_replaced_if_it_has_a_lost_word(context):
    path = "user/deploy/ansible-thursdays.md"
    provenance = json.dumps(
        {"id": "01M8K0NPX9RDQAGJ3DWT0A7CHD", "named": build_name_mark("ansible-thursdays")}
    )
    commit_texts(context, {path: f"---\nmuniment: {provenance}\n---\n{FIRST}\n"})
    assert (
        read_name(edit_entry(context, path, "We deploy with Ansible on Fridays.").path) == "deploy-ansible.md"
    )


def test_name_with_a_number_stays_while_its_words_do(context):
    first = remember_path(context, FIRST)
    numbered = first.replace(".md", "-2.md")
    (get_base(context) / first).rename(get_base(context) / numbered)
    assert edit_entry(context, numbered, f"{FIRST}. The build is green before that.").path == numbered


def test_second_entry_with_equal_name_gets_number_and_new_name(context):
    write_files(context, {"user/deploy/deploy-ansible.md": "We ship crates.\n"})
    numbered = remember_path(context, FIRST)
    assert read_name(numbered) == "deploy-ansible-2.md"
    assert edit_entry(context, numbered, f"{FIRST}. It takes an hour.").path == numbered
    assert read_name(edit_entry(context, numbered, "We deploy with Helm.").path) == "deploy-helm.md"


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


def test_generated_name_of_file_without_id_stays(context):
    path = "user/deploy-ansible.md"
    write_files(context, {path: f"- {FIRST}\n- The build server is called Hopper\n"})
    assert run_forget(context, "deploy Thursdays").removed_entries[0].path == path
    assert list(read_entries(context)) == [path]
    assert edit_entry(context, path, "We deploy with Helm.").path == path


def test_pinned_entry_follows_its_text_after_unpin(context):
    old = remember_path(context, FIRST)
    pinned = toggle_pin(context, old).path
    assert toggle_pin(context, pinned).path == old
    assert edit_entry(context, old, f"{FIRST}. It takes an hour.").path == old
    assert read_name(edit_entry(context, old, "We deploy with Helm.").path) == "deploy-helm.md"


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
    assert [(step.path, step.kind) for step in load_history(context, new)][-1] == (old, "new")


def test_history_of_renamed_entry_includes_its_earlier_names(context):
    paths = [remember_path(context, FIRST)]
    for tool in "Helm", "Puppet", "Nomad":
        paths.append(edit_entry(context, paths[-1], f"We deploy with {tool}.").path)
    commit_texts(context, {paths[0]: "Another entry.\n"})  # A later entry with the first name.
    steps = load_history(context, paths[-1])
    kinds = {path: [step.kind for step in steps if step.path == path] for path in paths}
    assert kinds == {path: ["removed", "new"] for path in paths[:-1]} | {paths[-1]: ["new"]}
    assert [each.at for each in steps] == sorted((each.at for each in steps), reverse=True)


def test_missing_old_path_names_the_new_path(context):
    old = remember_path(context, FIRST)
    new = edit_entry(
        context, edit_entry(context, old, "We deploy with Helm.").path, "We rest on Sundays."
    ).path
    for operation in (
        lambda: show_entry(context, old),
        lambda: edit_entry(context, old, "alpha"),
    ):
        assert f"not found; it is now {new}" in str(catch_error(NotFound, operation))
    assert run_forget(context, old).summary == f"entry {old} not found; it is now {new}"
    assert new not in run_forget(context, old, trust=Trust.AGENT).summary
    assert load_origin(context, old).state == "removed"
    run_forget(context, new)
    assert "now" not in str(catch_error(NotFound, show_entry, context, old))


def test_erase_removes_versions_under_earlier_names(context):
    old = remember_path(context, FIRST)
    between = edit_entry(context, old, "We deploy with Helm.").path
    new = edit_entry(context, between, "We rest on Sundays.").path
    commit_texts(context, {between: "Another entry."})
    erase(context, new)
    for text, count in (FIRST, 0), ("We rest on Sundays", 0), ("Another entry", 1):
        rows = context.state.ledger.rows("SELECT count(*) FROM step WHERE instr(after, ?)", (text.encode(),))
        assert rows == [(count,)], text
    assert list(read_entries(context)) == [between]


def test_links_to_old_name_stay_and_are_counted(context):
    old = remember_path(context, FIRST)
    link = f"See [the plan](../deploy/{read_name(old)}).\n"
    write_files(context, {"user/notes/a.md": link, "user/notes/b.md": "Deploy Ansible md.\n"})
    done = edit_entry(context, old, "We deploy with Helm.")
    assert done.notes == (
        f"1 entry still contains the old name {read_name(old)} of {done.path}; its links are not changed",
    )
    assert (get_base(context) / "user/notes/a.md").read_text() == link


@pytest.mark.usefixtures("skip_fact_check")
def test_agents_change_of_owners_entry_is_reviewed_with_new_name(context):
    old = remember_path(context, FIRST)
    handle = show_entry(context, old).handle
    text = "---\nname: Deploys\n---\nWe deploy with Helm.\n"
    model = make_changing_model(old, text)
    done = run_remember(context, "We deploy with Helm", model, trust=Trust.AGENT)
    assert done.error.code == "pending_review"
    (pending,) = read_pending(context.state)
    found = show_review(pending.id, context)
    approve_review(pending.id, found.digest, context)
    (path,) = read_entries(context)
    assert (read_name(path), show_entry(context, path).handle) == ("deploy-helm.md", handle)


def test_dream_renames_entry_that_it_rewrites(tmp_path):
    texts = [
        f"The user prefers dark mode in all editors and terminals at {each}" for each in ("home", "work")
    ]
    merged = "At home and at work, the user prefers dark mode in all editors and terminals"
    with create_context(tmp_path, make_permissive_policy()) as context:
        old = remember_path(context, texts[0], trust=Trust.AGENT)
        commit_texts(context, {"user/z.md": f"---\nname: z\n---\n{texts[1]}\n"}, trust=Trust.AGENT)
        answer = {"merges": [{"ids": ["c1", "c2"], "keep": "c1", "text": merged}]}
        result = run_dream(context, ScriptedModel([reply_with_text(json.dumps(answer))]))
        assert (result.counts.merged, result.counts.rewritten) == (1, 1), result.notes
        assert result.deduped_paths == ("user/z.md",)
        (path,) = read_entries(context)
        assert (path != old, read_name(path).startswith("home-work-user-prefers")) == (True, True)


def test_forget_of_a_part_replaces_the_name_it_repeats(context):
    text = f"- {FIRST}\n- The build server is called Hopper\n"
    old = f"user/{OLD_NAME}"
    provenance = json.dumps({"id": "01M8K0NPX9RDQAGJ3DWT0A7CHD"})
    commit_texts(context, {old: f"---\nmuniment: {provenance}\n---\n{text}"})
    done = run_forget(context, "deploy Thursdays")
    assert [each.path for each in done.removed_entries] == [old]
    (path,) = read_entries(context)
    assert read_name(path) == "build-server.md"
    assert f"{old} is now {path}" in done.notes
    again = run_forget(context, "deploy Thursdays", task_id=done.task_id)
    assert (again.repeated, again.removed_entries) == (True, done.removed_entries)
    undo_task(done.task_id, context)
    assert list(read_entries(context)) == [old]
