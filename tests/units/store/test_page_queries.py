"""Queries of the web page: the latest changes, folders, differences and counts by day."""

from __future__ import annotations

from itertools import pairwise

from kit.operations import places
from kit.operations.places import committed, lay
from kit.raising import raised
from kit.store.ground import patience
from muniment import errors
from muniment.kernel.path import CanonicalPath
from muniment.operations.review import content_of, diff_of, history_of
from muniment.store import tasks
from muniment.store.audit import records, verify
from muniment.store.erase import EraseGround, erase
from muniment.store.ledger import content_before, count_by_day, root_key
from muniment.store.review import MAX_DIFF_LINES, changed_lines
from muniment.store.upkeep import view_of

place = places.place
PATH = "user/a.md"


def get_key(place, scope="user"):
    return root_key(place.state, place.roots[scope])


def read_view(place, scope="user"):
    return view_of(place.state, place.roots[scope], place.policy)


def write_versions(place, *texts):
    """Change an entry from text to text and return the tasks, oldest first."""
    for old, new in pairwise((None, *texts)):
        committed(place, {PATH: new if old is None else (old, new)})
    return [step.task for step in reversed(history_of(place, PATH))]


AT = CanonicalPath("user", "a.md")


def test_task_has_its_previous_text_its_text_and_a_difference(place):
    one, two = write_versions(place, "same\nold\n", "same\nnew\nmore\n")
    found = [content_before(place.state, get_key(place), AT, task) for task in (one, two)]
    assert found == [None, b"same\nold\n"]
    assert [content_of(place, PATH, task) for task in (one, two)] == [b"same\nold\n", b"same\nnew\nmore\n"]
    assert diff_of(place, PATH, one) == ("@ line 1", "+ same", "+ old")
    assert diff_of(place, PATH, two) == ("@ line 2", "- old", "+ new", "+ more")
    committed(place, {}, removals=[(PATH, "same\nnew\nmore\n")])
    removal = history_of(place, PATH)[0].task
    assert diff_of(place, PATH, removal) == ("@ line 1", "- same", "- new", "- more")
    for task in "no-task", removal.swapcase():
        raised(errors.NotFound, diff_of, place, PATH, task)
        raised(errors.NotFound, content_before, place.state, get_key(place), AT, task)
    raised(errors.NotFound, diff_of, place, "user/b.md", one)


def test_difference_shows_every_character_and_line_end():
    lines = list(changed_lines(b"a\r\nsame\n", "a\nsame\nb\u202ec".encode()))
    assert lines == ["@ line 1", "- a\\u{d}", "+ a", "@ line 3", "+ b\\u{202e}c\\ no line feed"]
    assert list(changed_lines(None, None)) == list(changed_lines(b"same\n", b"same\n")) == []
    many = b"".join(b"%d\n" % number for number in range(MAX_DIFF_LINES + 1))
    # Without a limit to both sides, all lines are shown.
    assert len(list(changed_lines(many, b"0\n"))) == MAX_DIFF_LINES + 2


def test_erased_text_is_missing_on_both_sides(place):
    one, two = write_versions(place, "old words\n", "new words\n")
    erase(PATH, EraseGround(place.state, place.roots, place.policy, patience()))
    for task in one, two:
        error = raised(errors.Erased, content_of, place, PATH, task)
        assert f"the text that {task} left at {PATH} was erased" in str(error)
        raised(errors.Erased, diff_of, place, PATH, task)
    error = raised(errors.Erased, content_before, place.state, get_key(place), AT, two)
    assert f"the text that {two} found at {PATH} was erased" in str(error)


def test_history_and_records_return_the_latest_in_order(place):
    made = write_versions(place, *(f"{number}\n" for number in range(5)))
    assert [step.task for step in history_of(place, limit=2)] == [made[4], made[3]]
    assert [step.task for step in history_of(place, PATH, 1)] == [made[4]]
    assert len(history_of(place)) == 5
    every = records(place.state)
    assert records(place.state, latest=2) == every[-2:]
    assert records(place.state, latest=100) == every
    assert records(place.state, task=made[1], latest=1) == records(place.state, task=made[1])
    assert records(place.state, latest=0) == ()
    assert verify(place.state).problems == ()


def test_changes_are_counted_by_day_and_scope(place):
    days = ("2026-11-20T23:59:59.999Z", "2026-11-21T00:00:00.000Z", "2026-11-21T12:00:00.000Z")
    roots = {get_key(place, scope): scope for scope in place.roots}
    for number, day in enumerate(days):
        committed(place, {f"user/{number}.md": "x\n", f"project/{number}.md": "x\n"}, at=day)
    today = history_of(place)[0].at[:10]
    assert count_by_day(place.state, roots, "2026-11-01") in (
        ((today, "project", 3), (today, "user", 3)),
        ((today, "user", 3), (today, "project", 3)),
    )
    assert count_by_day(place.state, roots, "9999-01-01") == ()
    assert count_by_day(place.state, {}, "2026-11-01") == ()
    assert count_by_day(place.state, {get_key(place): "mine"}, today) == ((today, "mine", 3),)


def test_entries_are_listed_by_folder_and_page(place):
    rels = ["a.md", "b/1.md", "b/2.md", "b.md", "c/1.md", "c/d.md", "z.md"]
    lay(place, {f"user/{rel}": "x\n" for rel in rels})
    lay(place, {"project/b/other.md": "x\n"})
    seen = read_view(place)
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
    assert read_view(place, "project").topics() == (("b", 1),)


def test_events_of_a_task_are_found(place):
    made = write_versions(place, "old\n", "new\n")
    for task in made:
        assert [event.task for event in tasks.of_task(place.state.ledger, task)] == [task]
    (one, two) = (tasks.of_task(place.state.ledger, task)[0].number for task in made)
    assert one < two
    assert tasks.of_task(place.state.ledger, "no-task") == ()
