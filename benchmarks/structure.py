"""How large the program is, and what one remembered fact passes.

    python benchmarks/structure.py [CHECKOUT]

Code lines are those that are neither blank nor comment nor docstring; a function's are counted likewise.
An import closure is what a new interpreter holds of the package once a module is imported. The files of a
fact are those that `one_fact.py` counts, with more that it passes.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

CLOSURES = ("muniment.store.commit", "muniment.sandbox.sandbox")

PARTS = {"kernel": 2_450, "sandbox.fence": 1_130}
"""The packages that a reviewer reads whole, and the code lines that each may have."""

CLOSURE = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(sum(name.split(".")[0] == "muniment" for name in sys.modules))
"""


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """The numbers of the lines that are code."""
    told = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                told |= set(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return {n for n, line in lines if line.strip() and not line.strip().startswith("#") and n not in told}


def measured(folder: Path) -> Iterator[tuple[str, object]]:
    """What the sources below a folder come to."""
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


def main() -> None:
    """Print a table."""
    from measuring import told  # here, since a test loads this file without its neighbours
    from one_fact import counted

    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    package = checkout / "src" / "muniment"
    for name, value in measured(package):
        print(f"{name:28}{value}")
    for part in PARTS:
        folder = package / part.replace(".", "/")
        if folder.is_dir():  # An older checkout has none.
            print(f"{'code lines of ' + part:28}{dict(measured(folder))['code lines']}")
    for module in CLOSURES:
        print(f"{'closure of ' + module[9:]:28}{told(checkout, '-c', CLOSURE, module)}")
    fact = counted(checkout)
    print(f"{'files of a fact':28}{fact['files']} ({fact['functions']} functions)")
    print(f"{'code lines of tests':28}{dict(measured(checkout / 'tests'))['code lines']}")


if __name__ == "__main__":
    main()
