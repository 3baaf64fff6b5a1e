"""Every error stands in the tree of the docstring, under one root, with a stable code of its own."""

import inspect
import re

import pytest

from muniment import errors
from muniment.errors import MunimentError, PathEscape, Refusal, ToolError, printable
from muniment.kernel import refusal
from muniment.kernel.names import Via

CLASSES = {
    name: each
    for name, each in vars(errors).items()
    if inspect.isclass(each)
    and each.__module__ in {errors.__name__, refusal.__name__}
    and issubclass(each, BaseException)
}
ABSTRACT = {"MunimentError", "Refusal", "ToolError", "JobError", "LaneError"}
TREE = re.compile(r"^([ │├└─]*)([A-Z]\w+)(?: +([a-z_]+|\(.*\)))?$", re.MULTILINE)


def test_the_docstring_draws_every_class_with_its_parent_and_a_code_of_its_own():
    drawn, parents = {}, [Exception]
    for rails, name, code in TREE.findall(errors.__doc__):
        del parents[len(rails) // 4 :]
        assert CLASSES[name].__bases__ == (parents[-1],), name
        parents.append(CLASSES[name])
        drawn[name] = code
    assert drawn.keys() == CLASSES.keys()
    codes = {name: each.__dict__["code"] for name, each in CLASSES.items() if "code" in each.__dict__}
    assert codes == {name: code for name, code in drawn.items() if name not in ABSTRACT}
    assert len(set(codes.values())) == len(codes)
    assert all(re.fullmatch("[a-z_]{3,40}", code) for code in codes.values())
    for each in CLASSES.values():  # What a model may be told is apart from what people are told.
        assert issubclass(each, MunimentError)
        assert sum(issubclass(each, kind) for kind in (PathEscape, Refusal, ToolError)) <= 1


@pytest.mark.threat("T-LOG-01", control="printable")
def test_an_escape_keeps_little_of_what_was_asked_and_nothing_that_does_not_print():
    error = PathEscape(Via.DOTDOT, "a\n\x1b[2J\u202e" + "x" * 10_000)
    assert error.requested.isprintable()
    assert (len(str(error)) < 500, printable("é\ud800")) == (True, "é\\u{d800}")
