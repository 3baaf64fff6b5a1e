"""The tests that prove each threat, read from their source: the pages list them and the tests check them.

A mark is on a test function or on one of its parameters:

    @pytest.mark.threat("T-PATH-03", control="openat2_resolve")

Both are literals, so they are found without running code.
"""

import ast
from dataclasses import dataclass
from functools import cache

from threats.catalogue import REPOSITORY


@dataclass(frozen=True, order=True)
class Proof:
    """A test function that proves a threat, and the control without which it fails.

    Attributes:
        file: the path relative to the repository.
    """

    threat: str
    control: str
    file: str
    function: str


def proofs_in(source, file):
    """Yield the marks of one file.

    Raises:
        ValueError: a mark has another form, or is not on a test.
    """
    tree = ast.parse(source)
    marked = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for call in (call for decorator in node.decorator_list for call in _marks(decorator)):
                marked.add(call)
                yield Proof(*_arguments(call, file), file, node.name)
    if len(marked) == source.count(_WRITTEN):  # Walking every node of every file takes a second.
        return
    for stray in set(_marks(tree)) - marked:
        raise ValueError(f"{file}:{stray.lineno}: put a threat mark on a test function or its parameters")


@cache
def proofs():
    """Return every mark of the tests, sorted by threat."""
    tests = REPOSITORY / "tests"
    found = (
        proof
        for path in sorted(tests.rglob("test_*.py"))
        if _WRITTEN in (source := path.read_text())
        for proof in proofs_in(source, str(path.relative_to(REPOSITORY)))
    )
    return tuple(sorted(set(found)))


_WRITTEN = "mark.threat("


def _marks(tree):
    for node in ast.walk(tree):
        is_near = isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "threat"
        if is_near and ast.unparse(node.func) == "pytest.mark.threat":
            yield node


def _arguments(call, file):
    match call:
        case ast.Call(
            args=[ast.Constant(value=str(threat))],
            keywords=[ast.keyword(arg="control", value=ast.Constant(value=str(control)))],
        ):
            return threat, control
    raise ValueError(f'{file}:{call.lineno}: write @pytest.mark.threat("T-…", control="…")')
