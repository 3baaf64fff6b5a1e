"""Every error is in the tree of the docstring, under one root, with a stable code."""

import inspect
import re
from pathlib import Path

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
TREE = re.compile(r"^([ │├└─]*)([A-Z]\w+)(?: +([a-z_, ]+|\(.*\)))?$", re.MULTILINE)


def test_docstring_lists_each_class_with_parent_and_unique_codes():
    drawn, parents = {}, [Exception]
    for rails, name, code in TREE.findall(errors.__doc__):
        del parents[len(rails) // 4 :]
        assert CLASSES[name].__bases__ == (parents[-1],), name
        parents.append(CLASSES[name])
        drawn[name] = re.findall("[a-z_]+", code) if not code.startswith("(") else []
    assert drawn.keys() == CLASSES.keys()
    for name, each in CLASSES.items():
        own = each.__dict__.get("codes", (each.__dict__.get("code"),))
        assert name == "ToolError" or own in {tuple(drawn[name]), (None,)}, name
    codes = [code for each in drawn.values() for code in each]
    assert len(set(codes)) == len(codes)
    assert set(codes) <= errors.CODES.keys()
    daemons = {code for code, means in errors.CODES.items() if means.status or means.ends_task}
    assert errors.CODES.keys() - set(codes) <= daemons
    for means in errors.CODES.values():
        assert means.answer == "" or (means.status, errors.CODES[means.answer].status > 0) == (0, True)


def test_code_of_raised_error_belongs_to_its_class():
    pattern = re.compile(r"(\w+)\((?:[^()]|\([^()]*\))*?code=\"([a-z_]+)\"", re.DOTALL)
    found = set()
    for path in Path(errors.__file__).parent.rglob("*.py"):
        found |= {each for each in pattern.findall(path.read_text()) if each[0] in CLASSES}
    assert len(found) > 10
    drawn = {name: code for _, name, code in TREE.findall(errors.__doc__)}
    assert {(name, code) for name, code in found if code not in drawn[name]} == set()


def test_no_class_and_no_code_is_declared_twice():
    declared = [
        code
        for each in CLASSES.values()
        for code in {*each.__dict__.get("codes", ()), each.__dict__.get("code")} - {None}
    ]
    assert sorted(declared) == sorted({*declared})
    in_kernel = {name for name, each in vars(refusal).items() if inspect.isclass(each)}
    assert in_kernel - CLASSES.keys() == {Via.__name__}
    sources = "".join(Path(each.__file__).read_text() for each in (errors, refusal))
    assert all(sources.count(f"\nclass {name}(") == 1 for name in CLASSES)


def test_tool_errors_belong_to_one_branch():
    for each in CLASSES.values():  # Messages for models and messages for people are separate.
        assert issubclass(each, MunimentError)
        assert sum(issubclass(each, kind) for kind in (PathEscape, Refusal, ToolError)) <= 1


@pytest.mark.threat("T-LOG-01", control="printable")
def test_path_escape_message_is_short_and_printable():
    error = PathEscape(Via.DOTDOT, "a\n\x1b[2J\u202e" + "x" * 10_000)
    assert error.requested.isprintable()
    assert (len(str(error)) < 500, printable("é\ud800")) == (True, "é\\u{d800}")
