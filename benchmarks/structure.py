"""Measure the size of the program, and the code that one remembered fact passes.

    python benchmarks/structure.py [CHECKOUT]

Code lines are lines that are not blank, comment or docstring; the lines of a function are counted in the same
way. A loose module is not in a package. A circle is a set of modules that all reach each other by imports.
Imports inside functions and under `TYPE_CHECKING` count. A static closure has every module that import
statements reach; a dynamic one is the set of package modules that a new interpreter loads when a module is
imported. The files of a fact are those that `one_fact.py` counts.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

CLOSURES = ("muniment.store.commit", "muniment.sandbox.sandbox", "muniment.api")

LIBRARY = "muniment.api"
"""The module whose static closure is the maximum that a user of the library has to read."""

PARTS = {"kernel": 2_450, "sandbox.fence": 1_130}
"""The packages that a reviewer reads completely, and the limit of code lines of each."""

CLOSURE = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(sum(name.split(".")[0] == "muniment" for name in sys.modules))
"""


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that are code."""
    docstring_lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstring_lines |= set(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return {
        n
        for n, line in lines
        if line.strip() and not line.strip().startswith("#") and n not in docstring_lines
    }


def measured(folder: Path) -> Iterator[tuple[str, object]]:
    """Yield the figures of the sources below a folder."""
    lines, classes, functions = {}, 0, []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        code = code_lines(text, tree)
        lines[str(path.relative_to(folder))] = len(code)
        for node in ast.walk(tree):
            classes += isinstance(node, ast.ClassDef)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(len(code & set(range(node.lineno, node.end_lineno + 1))))
    yield "code lines", sum(lines.values())
    yield "files", len(lines)
    yield "of these `__init__`", sum(name.endswith("__init__.py") for name in lines)
    yield "classes", classes
    yield "largest file", "{} ({})".format(*max((count, name) for name, count in lines.items()))
    yield "function lines, median", statistics.median(functions)
    yield "function lines, p90", statistics.quantiles(functions, n=10)[-1]


def modules(package: Path) -> dict[str, Path]:
    """Return the files of a package by the full names of their modules."""
    return {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in sorted(package.rglob("*.py"))
    }


def imports(sources: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports by a statement, at any level."""
    found: dict[str, set[str]] = {}
    for importer, path in sources.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                wholes = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {whole if whole in sources else str(node.module) for whole in wholes}
        found[importer] = named & sources.keys()
    return found


def list_reached(graph: Mapping[str, set[str]], first: str) -> set[str]:
    """Return the modules that imports reach from one, including that module."""
    found, pending = {first}, [first]
    while pending:
        new = graph[pending.pop()] - found
        found |= new
        pending += new
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in number:
            visit(module)
    return found


def shape(package: Path) -> Iterator[tuple[str, object]]:
    """Count packages, loose modules, circles and the static closure of the library."""
    sources = modules(package)
    graph = imports(sources)
    found = circles(graph)
    loose = [path.stem for path in package.glob("*.py") if not path.stem.startswith("__")]
    yield "packages", sum((path / "__init__.py").exists() for path in package.iterdir())
    yield "loose modules", len(loose)
    yield "circles", f"{len(found)} {' | '.join(map(' '.join, found))}".rstrip()
    closure = list_reached(graph, LIBRARY)
    texts = [sources[name].read_text(encoding="utf-8") for name in closure]
    lines = sum(len(code_lines(text, ast.parse(text))) for text in texts)
    yield f"static closure of {LIBRARY[9:]}", f"{lines} code lines in {len(closure)} modules"


def main() -> None:
    """Print a table."""
    from measuring import run_json  # Imported here, since a test loads this file without its neighbours.
    from one_fact import count_in_process

    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    package = checkout / "src" / "muniment"
    for name, value in measured(package):
        print(f"{name:36}{value}")
    for name, value in shape(package):
        print(f"{name:36}{value}")
    for part in PARTS:
        folder = package / part.replace(".", "/")
        if folder.is_dir():  # Missing in an older checkout.
            print(f"{'code lines of ' + part:36}{dict(measured(folder))['code lines']}")
    for module in CLOSURES:
        path = package.parent / module.replace(".", "/")
        # An older checkout has it in another place.
        if not (path.is_dir() or path.with_suffix(".py").exists()):
            continue
        print(f"{'dynamic closure of ' + module[9:]:36}{run_json(checkout, '-c', CLOSURE, module)}")
    fact = count_in_process(checkout)
    print(f"{'files of a fact':36}{fact['files']} ({fact['functions']} functions)")
    print(f"{'code lines of tests':36}{dict(measured(checkout / 'tests'))['code lines']}")


if __name__ == "__main__":
    main()
