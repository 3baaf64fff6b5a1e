"""Queries of the web page: the latest changes, folders, differences and counts by day."""

from __future__ import annotations

from itertools import pairwise

from kit.catching import catch_error
from kit.operations import contexts
from kit.operations.contexts import commit_texts, write_files
from kit.store.bench import make_deadline
from muniment import errors
from muniment.kernel.path import CanonicalPath
from muniment.operations.review import diff_task, load_history, read_content
from muniment.store import tasks
from muniment.store.audit import read_records, verify
from muniment.store.erase import EraseContext, erase
from muniment.store.ledger import count_by_day, get_root_key, read_content_before
from muniment.store.review import MAX_DIFF_LINES, format_difference
from muniment.store.upkeep import open_view

context = contexts.context
PATH = "user/a.md"


def get_key(place, scope="user"):
    return get_root_key(place.state, place.roots[scope])


def read_view(place, scope="user"):
    return open_view(place.state, place.roots[scope], place.policy)


def write_versions(place, *texts):
    """Change an entry from text to text and return the tasks, oldest first."""
    for old, new in pairwise((None, *texts)):
        commit_texts(place, {PATH: new if old is None else (old, new)})
    return [step.task for step in reversed(load_history(place, PATH))]


AT = CanonicalPath("user", "a.md")


def test_task_has_its_previous_text_its_text_and_a_difference(context):
    one, two = write_versions(context, "same\nold\n", "same\nnew\nmore\n")
    found = [read_content_before(context.state, get_key(context), AT, task) for task in (one, two)]
    assert found == [None, b"same\nold\n"]
    assert [read_content(context, PATH, task) for task in (one, two)] == [
        b"same\nold\n",
        b"same\nnew\nmore\n",
    ]
    assert diff_task(context, PATH, one) == ("@ line 1", "+ same", "+ old")
    assert diff_task(context, PATH, two) == ("@ line 2", "- old", "+ new", "+ more")
    commit_texts(context, {}, removals=[(PATH, "same\nnew\nmore\n")])
    removal = load_history(context, PATH)[0].task
    assert diff_task(context, PATH, removal) == ("@ line 1", "- same", "- new", "- more")
    for task in "no-task", removal.swapcase():
        catch_error(errors.NotFound, diff_task, context, PATH, task)
        catch_error(errors.NotFound, read_content_before, context.state, get_key(context), AT, task)
    catch_error(errors.NotFound, diff_task, context, "user/b.md", one)


def test_difference_shows_every_character_and_line_end():
    lines = list(format_difference(b"a\r\nsame\n", "a\nsame\nb\u202ec".encode()))
    assert lines == ["@ line 1", "- a\\u{d}", "+ a", "@ line 3", "+ b\\u{202e}c\\ no line feed"]
    assert list(format_difference(None, None)) == list(format_difference(b"same\n", b"same\n")) == []
    many = b"".join(b"%d\n" % number for number in range(MAX_DIFF_LINES + 1))
    # Without a limit to both sides, all lines are shown.
    assert len(list(format_difference(many, b"0\n"))) == MAX_DIFF_LINES + 2


def test_erased_text_is_missing_on_both_sides(context):
    one, two = write_versions(context, "old words\n", "new words\n")
    erase(PATH, EraseContext(context.state, context.roots, context.policy, make_deadline()))
    for task in one, two:
        error = catch_error(errors.Erased, read_content, context, PATH, task)
        assert f"the text that {task} left at {PATH} was erased" in str(error)
        catch_error(errors.Erased, diff_task, context, PATH, task)
    error = catch_error(errors.Erased, read_content_before, context.state, get_key(context), AT, two)
    assert f"the text that {two} found at {PATH} was erased" in str(error)


def test_history_and_records_return_the_latest_in_order(context):
    made = write_versions(context, *(f"{number}\n" for number in range(5)))
    assert [step.task for step in load_history(context, limit=2)] == [made[4], made[3]]
    assert [step.task for step in load_history(context, PATH, 1)] == [made[4]]
    assert len(load_history(context)) == 5
    every = read_records(context.state)
    assert read_records(context.state, latest=2) == every[-2:]
    assert read_records(context.state, latest=100) == every
    assert read_records(context.state, task=made[1], latest=1) == read_records(context.state, task=made[1])
    assert read_records(context.state, latest=0) == ()
    assert verify(context.state).problems == ()


def test_changes_are_counted_by_day_and_scope(context):
    days = ("2026-11-20T23:59:59.999Z", "2026-11-21T00:00:00.000Z", "2026-11-21T12:00:00.000Z")
    roots = {get_key(context, scope): scope for scope in context.roots}
    for number, day in enumerate(days):
        commit_texts(context, {f"user/{number}.md": "x\n", f"project/{number}.md": "x\n"}, at=day)
    today = load_history(context)[0].at[:10]
    assert count_by_day(context.state, roots, "2026-11-01") in (
        ((today, "project", 3), (today, "user", 3)),
        ((today, "user", 3), (today, "project", 3)),
    )
    assert count_by_day(context.state, roots, "9999-01-01") == ()
    assert count_by_day(context.state, {}, "2026-11-01") == ()
    assert count_by_day(context.state, {get_key(context): "mine"}, today) == ((today, "mine", 3),)


def test_entries_are_listed_by_folder_and_page(context):
    rels = ["a.md", "b/1.md", "b/2.md", "b.md", "c/1.md", "c/d.md", "z.md"]
    write_files(context, {f"user/{rel}": "x\n" for rel in rels})
    write_files(context, {"project/b/other.md": "x\n"})
    seen = read_view(context)
    assert seen.topics() == (("", 3), ("b", 2), ("c", 2))
    every = [each.rel for each in seen.entries()]
    assert every == sorted(rels)
    paged, after = [], ""
    while page := seen.entries_after(after, 2):
        assert len(page) <= 2
        paged += [each.rel for each in page]
        after = page[-1].rel
    assert paged == every
    assert [each.rel for each in seen.entries_after("", 9, "b")] == ["b/1.md", "b/2.md"]
    assert [each.rel for each in seen.entries_after("b/1.md", 9, "b")] == ["b/2.md"]
    assert [each.rel for each in seen.entries_after("", 9, "")] == ["a.md", "b.md", "z.md"]
    assert seen.entries_after("", 9, "nothing") == ()
    assert read_view(context, "project").topics() == (("b", 1),)


def test_events_of_a_task_are_found(context):
    made = write_versions(context, "old\n", "new\n")
    for task in made:
        assert [event.task for event in tasks.read_task_events(context.state.ledger, task)] == [task]
    (one, two) = (tasks.read_task_events(context.state.ledger, task)[0].number for task in made)
    assert one < two
    assert tasks.read_task_events(context.state.ledger, "no-task") == ()
