"""Read from the source of the tests which test proves which threat, for the pages and the checks.

A mark decorates a test function or one of its parameters:

    @pytest.mark.threat("T-PATH-03", control="openat2_resolve")

Both arguments are literals, so that no test code must run.
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


def read_proofs(source, file):
    """Yield the proofs of one file.

    Raises:
        ValueError: a mark is malformed, or does not decorate a test.
    """
    tree = ast.parse(source)
    marked = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for call in (call for decorator in node.decorator_list for call in _find_marks(decorator)):
                marked.add(call)
                yield Proof(*_read_arguments(call, file), file, node.name)
    if len(marked) == source.count(_MARK_TEXT):  # A walk of every file takes a second.
        return
    for stray in set(_find_marks(tree)) - marked:
        raise ValueError(
            f"{file}:{stray.lineno}: a threat mark must decorate a test function or its parameters"
        )


@cache
def load_proofs():
    """Return every proof of the tests, sorted by threat."""
    tests = REPOSITORY / "tests"
    found = (
        proof
        for path in sorted(tests.rglob("test_*.py"))
        if _MARK_TEXT in (source := path.read_text())
        for proof in read_proofs(source, str(path.relative_to(REPOSITORY)))
    )
    return tuple(sorted(set(found)))


_MARK_TEXT = "mark.threat("


def _find_marks(tree):
    for node in ast.walk(tree):
        is_threat_call = isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "threat"
        if is_threat_call and ast.unparse(node.func) == "pytest.mark.threat":
            yield node


def _read_arguments(call, file):
    match call:
        case ast.Call(
            args=[ast.Constant(value=str(threat))],
            keywords=[ast.keyword(arg="control", value=ast.Constant(value=str(control)))],
        ):
            return threat, control
    raise ValueError(f'{file}:{call.lineno}: write @pytest.mark.threat("T-…", control="…")')
