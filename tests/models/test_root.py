"""Any path text at any moment: the root against arbitrary paths and a racing process."""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.kernel.trees import CANARY, LINKS, OPERATIONS, RESOLVERS, create_trees
from kit.memories import take_snapshot
from kit.paths import make_path
from muniment.errors import PathEscape, Refusal, ToolError
from muniment.testing.race import Swap

# Any text, and paths of names in the tree, which lead further.
NAMES = (
    [name for name, _, _ in LINKS.values()]
    + ["note.md", "topic", "one.md", "deep", "two.md", "folder.md", "hard.md", "fifo.md"]
    + ["outside", "other", f"{CANARY}.md", f"{CANARY}-dir", "inside", "proc", "self", "root"]
    + ["..", ".", "", "\0", "~", "%2e%2e", "..;", "\u2024\u2024", "\uff0e\uff0e", "\udc2e\udcff", "\n", "*"]
)
PATHS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.lists(st.one_of(st.sampled_from(NAMES), st.text(max_size=4)), max_size=8).map("/".join),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=12).map(lambda names: "/" + "/".join(names)),
)


def plant_everything(base):
    trees = create_trees(base)
    for name, target, _rel in LINKS.values():
        with contextlib.suppress(FileExistsError):
            (trees.inside / name).symlink_to(target.format(outside=trees.outside, other=trees.other))
    os.link(trees.outside / "note.md", trees.inside / "hard.md")
    os.mkfifo(trees.inside / "fifo.md")
    return trees


@pytest.fixture(scope="module")
def planted_roots():
    with tempfile.TemporaryDirectory() as base:
        trees = plant_everything(Path(base))
        roots = {name: trees.open_root(name) for name in RESOLVERS}
        yield trees, roots, take_snapshot(trees.outside, trees.other)
        for root in roots.values():
            os.close(root.fd)


def describe_outcome(operation, root, rel):
    try:
        return repr(operation(root, rel))
    except (PathEscape, Refusal, ToolError) as error:
        # An error may repeat the caller's text in one line.
        length = "one line" if str(error).isprintable() else "several lines"
        return f"{type(error).__name__} {getattr(error, 'via', '')} in {length}"


@pytest.mark.threat("T-PATH-01", control="layer_one")
@pytest.mark.threat("T-PATH-01", control="checked_paths")
@given(rel=PATHS)
def test_any_path_text_is_rejected_or_stays_inside(planted_roots, rel):
    trees, roots, before = planted_roots
    for operation in OPERATIONS.values():
        outcomes = {name: describe_outcome(operation, root, rel) for name, root in roots.items()}
        assert outcomes["openat2"] == outcomes["walk"]
        assert CANARY not in outcomes["openat2"]
        assert not outcomes["openat2"].endswith(" lines")
    assert take_snapshot(trees.outside, trees.other) == before


@pytest.mark.threat("T-PATH-04", control="walk_checks")
@pytest.mark.threat("T-PATH-04", control="openat2_resolve")
@pytest.mark.parametrize("resolver", RESOLVERS)
@pytest.mark.parametrize("rounds", [1_500, pytest.param(200_000, marks=pytest.mark.slow)])
def test_directory_exchanged_for_a_link_leaks_nothing(tmp_path, resolver, rounds):
    trees, seen, left = create_trees(tmp_path), set(), iter(range(rounds))
    (trees.inside / "topic" / "note.md").write_text("inside")
    (trees.inside / "swap").symlink_to(trees.outside)
    before, root = take_snapshot(trees.outside), trees.open_root(resolver)
    with Swap(trees.inside / "topic", trees.inside / "swap") as swap:
        for _ in swap.rounds(exchanges=1, enough=lambda: next(left, None) is None):
            seen.add(describe_outcome(OPERATIONS["read"], root, "topic/note.md"))
            with contextlib.suppress(PathEscape):
                seen.update(entry.name for entry in root.list_directory(make_path("user", "topic")))
    os.close(root.fd)
    assert take_snapshot(trees.outside) == before
    assert seen <= {repr(b"inside"), "PathEscape symlink in one line", "note.md", "one.md", "deep"}
