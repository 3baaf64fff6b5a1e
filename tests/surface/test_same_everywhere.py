"""One memory for each surface: the same operations have the same results and write the same bytes."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.surfaces import LACKS, SURFACES, FailedOperation, is_equivalent, read_files
from muniment.operations.table import TABLE

pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

FACTS = (
    "The user prefers dark mode in all editors",
    "The user drinks green tea in the morning",
    "This project is deployed on Thursdays",
    "The user no longer drinks green tea in the morning, but coffee",
)
PATHS = ("user/none.md", "user/../escape.md", "/etc/passwd", "user", "")
DRY = st.booleans()
ENTRY = st.integers(0, 3) | st.sampled_from(PATHS)
"""An entry of the list by its number, or a path without an entry."""

STEPS = st.one_of(
    st.tuples(st.just("remember"), st.fixed_dictionaries({"content": st.sampled_from(FACTS)})),
    st.tuples(
        st.just("forget"),
        st.fixed_dictionaries({"query": st.sampled_from(["green tea", "zebra"]), "dry_run": DRY}),
    ),
    st.tuples(
        st.just("dream"), st.fixed_dictionaries({"scope": st.sampled_from(["user", None]), "dry_run": DRY})
    ),
    st.tuples(
        st.just("recall"),
        st.fixed_dictionaries(
            {"query": st.sampled_from(["dark mode", "zebra"])},
            optional={"limit": st.sampled_from([None, 1, 5.0])},
        ),
    ),
    st.just(("standing_context", {})),
    st.tuples(
        st.just("list"),
        st.fixed_dictionaries({}, optional={"scope": st.sampled_from(["user", "none", None])}),
    ),
    st.tuples(st.just("show"), st.fixed_dictionaries({"path": ENTRY})),
    st.tuples(
        st.just("edit"),
        st.fixed_dictionaries(
            {"path": ENTRY, "text": st.sampled_from(["The user likes teal\n", "A\n"]), "dry_run": DRY}
        ),
    ),
    st.tuples(st.just("pin"), st.fixed_dictionaries({"path": ENTRY, "dry_run": DRY})),
    st.tuples(st.just("why"), st.fixed_dictionaries({"path": ENTRY})),
    st.tuples(st.just("explain"), st.fixed_dictionaries({"verb": st.just("modify"), "path": ENTRY})),
    st.tuples(st.just("erase"), st.fixed_dictionaries({"target": ENTRY, "dry_run": DRY})),
    st.tuples(st.just("index"), st.fixed_dictionaries({"dry_run": DRY})),
    st.sampled_from([("history", {}), ("undo", {}), ("reviews", {}), ("export", {})]),
)

ALL_STEPS = [
    ("remember", {"content": FACTS[0]}),
    ("remember", {"content": FACTS[1]}),
    ("list", {"scope": "user"}),
    ("show", {"path": 0}),
    ("edit", {"path": 0, "text": "The user prefers a light theme in all editors\n", "dry_run": False}),
    ("undo", {}),
    ("pin", {"path": 0, "dry_run": True}),
    ("pin", {"path": 0, "dry_run": False}),
    ("recall", {"query": "dark mode", "limit": 5.0}),
    ("recall", {"query": "dark mode", "limit": None}),
    ("standing_context", {}),
    ("standing_context", {"budget": 200.0}),
    ("forget", {"query": "green tea", "dry_run": True}),
    ("forget", {"query": "green tea", "dry_run": False}),
    ("dream", {"scope": "user", "dry_run": False}),
    ("history", {}),
    ("why", {"path": 0}),
    ("explain", {"verb": "modify", "path": 0}),
    ("reviews", {}),
    ("export", {}),
    ("index", {"dry_run": False}),
    ("erase", {"target": 0, "dry_run": True}),
    ("erase", {"target": 0, "dry_run": False}),
]
"""Every operation, at least once."""

FAILING = [
    ("show", {"path": "user/none.md"}),
    ("show", {"path": "user/../escape.md"}),
    ("edit", {"path": "user/none.md", "text": "A\n", "dry_run": False}),
    ("edit", {"path": 0, "text": " \n", "dry_run": False}),
    ("pin", {"path": "user/none.md", "dry_run": True}),
    ("list", {"scope": "none"}),
    ("forget", {"query": " ", "dry_run": True}),
    ("remember", {"content": " "}),
]
"""Operations that fail everywhere with the same code."""


def compare(base, steps):
    """Run steps on every surface, each with a separate memory, compare the results, and return the failed
    operations.
    """
    failed = []
    with ExitStack() as stack:
        surfaces = [stack.enter_context(closing(each(base / each.__name__))) for each in SURFACES]
        for operation, arguments in steps:
            listed = surfaces[0].call("list")[0] or ["user/none.md"]
            resolved = {
                name: listed[value % len(listed)] if type(value) is int else value
                for name, value in arguments.items()
            }
            expected, *found = [each.call(operation, **resolved) for each in surfaces]
            failed += [operation] if isinstance(expected, FailedOperation) else []
            files = [read_files(each.home) for each in surfaces]
            for surface, answer, written in zip(surfaces[1:], found, files[1:], strict=True):
                where = operation, resolved, type(surface).__name__
                assert is_equivalent(expected, answer), (where, expected, answer)
                assert written == files[0], where
    return failed


def test_every_operation_is_the_same_on_every_surface(tmp_path):
    assert {name for name, _ in ALL_STEPS} >= TABLE.keys() - {"import", "review", "approve", "reject"}
    steps = [*ALL_STEPS[:-1], *FAILING, ALL_STEPS[-1]]
    assert compare(tmp_path, steps) == [name for name, _ in FAILING]


@pytest.mark.timeout(600)
def test_operations_in_any_order_are_the_same_on_every_surface(pytestconfig):
    most = 12 if pytestconfig.getoption("--slow") else 2

    @settings(max_examples=most, deadline=None, database=None)
    @given(st.lists(STEPS, min_size=4, max_size=10))
    def run(steps):
        with tempfile.TemporaryDirectory() as directory:
            compare(Path(directory), [("remember", {"content": FACTS[0]}), *steps])

    run()


def test_comparison_detects_different_answer():
    assert is_equivalent(("a", LACKS), ("a", "b"))
    assert not is_equivalent(("a", "b"), ("a", "c"))
    assert not is_equivalent(["a"], FailedOperation("refused"))
    assert not is_equivalent(FailedOperation("not_found"), FailedOperation("refused"))
