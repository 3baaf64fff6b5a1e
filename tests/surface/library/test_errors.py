"""Every error stands in the tree of the docstring, under one root, with a stable code of its own."""

from __future__ import annotations

import inspect
import re

import pytest

from muniment import errors
from muniment.errors import MunimentError, PathEscape, Refusal, ToolError, printable
from muniment.names import Via

CLASSES = {
    name: each
    for name, each in vars(errors).items()
    if inspect.isclass(each) and each.__module__ == errors.__name__ and issubclass(each, BaseException)
}
ABSTRACT = {"MunimentError", "Refusal", "ToolError", "JobError", "LaneError"}
TREE = re.compile(r"^(?P<rails>[ │├└─]*)(?P<name>[A-Z]\w+)(?: +(?P<code>[a-z_]+|\(.*\)))?$", re.MULTILINE)


def drawn():
    """(name, parent, code) as the docstring draws them."""
    stack = []
    for found in TREE.finditer(errors.__doc__):
        depth = len(found["rails"]) // 4
        del stack[depth - 1 :]
        yield found["name"], stack[-1] if stack else None, found["code"]
        stack.append(found["name"])


def test_the_docstring_draws_every_class_with_its_parent_and_code():
    lines = {name: (parent, code) for name, parent, code in drawn()}
    assert set(lines) == set(CLASSES)
    for name, (parent, code) in lines.items():
        if parent is not None:
            assert CLASSES[name].__bases__ == (CLASSES[parent],), name
        if name not in ABSTRACT:
            assert CLASSES[name].code == code, name


def test_every_code_belongs_to_one_class_that_declares_it():
    codes = {name: each.__dict__["code"] for name, each in CLASSES.items() if "code" in each.__dict__}
    assert set(codes) == set(CLASSES) - ABSTRACT
    assert len(set(codes.values())) == len(codes)
    assert all(re.fullmatch("[a-z_]{3,40}", code) for code in codes.values())


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_says_when_it_is_raised(name):
    assert issubclass(CLASSES[name], MunimentError)
    assert (CLASSES[name].__doc__ or "").strip()


@pytest.mark.threat("T-LOG-01", control="printable")
def test_an_escape_keeps_little_of_what_was_asked_and_nothing_that_does_not_print():
    error = PathEscape(Via.DOTDOT, "a\n\x1b[2J\u202e" + "x" * 10_000)
    assert error.requested.isprintable()
    assert len(str(error)) < 500
    assert printable("é\ud800") == "é\\u{d800}"


def test_what_a_model_may_be_told_is_apart_from_what_people_are_told():
    told = {PathEscape, Refusal, ToolError}
    for each in CLASSES.values():
        assert sum(issubclass(each, kind) for kind in told) <= 1
