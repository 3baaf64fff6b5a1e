"""The tree of errors is the one that its docstring draws, and no code belongs to two classes."""

from __future__ import annotations

import inspect
import re

from muniment.client import errors
from muniment.client.errors import ClientError, Problem, TaskFailed
from muniment.errors import MunimentError

CLASSES = {
    name: each
    for name, each in vars(errors).items()
    if inspect.isclass(each) and each.__module__ == errors.__name__
}
NAMES = re.compile(r"^(?P<rails>[ │├└─]*)(?P<names>[A-Z]\w+(?:, [A-Z]\w+)*)", re.MULTILINE)


def drawn():
    """(name, parent) as the docstring draws them."""
    tree = errors.__doc__.split("\n\n")[1]
    stack = []
    for found in NAMES.finditer(tree):
        del stack[len(found["rails"]) // 4 - 1 :]
        names = found["names"].split(", ")
        yield from ((name, stack[-1] if stack else None) for name in names)
        stack.append(names[0])


def test_the_docstring_draws_every_class_with_its_parent():
    parents = dict(drawn())
    assert parents.pop("MunimentError") is None
    assert set(parents) == set(CLASSES)
    for name, parent in parents.items():
        assert CLASSES[name].__bases__[0].__name__ == parent, name
    assert issubclass(ClientError, MunimentError)


def test_no_code_belongs_to_two_classes():
    for top in (Problem, TaskFailed):
        codes = [
            code for each in CLASSES.values() if issubclass(each, top) for code in each.__dict__["codes"]
        ]
        assert len(codes) == len(set(codes))


def test_a_class_without_codes_of_its_own_is_the_top_of_its_branch():
    for each in CLASSES.values():
        if issubclass(each, Problem | TaskFailed):
            assert bool(each.__dict__["codes"]) == (each not in {Problem, TaskFailed})
        elif each is not ClientError:
            assert re.fullmatch("[a-z_]+", each.code)
