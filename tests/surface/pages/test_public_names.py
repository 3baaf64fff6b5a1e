"""The API pages list the public names, and examples and pages use no other names."""

import ast
import builtins
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import muniment
from kit.locations import REPOSITORY
from kit.shell import find_code_blocks, read_page
from muniment import errors

DIRECTIVES = [
    found
    for path in sorted((REPOSITORY / "docs").glob("api*.md"))
    for found in re.findall(r"^\.\. auto(\w+):: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
]
LISTED = {name for _, name in DIRECTIVES}
MODULES = {
    *("muniment", "muniment.client", "muniment.errors", "muniment.types"),
    *(name for kind, name in DIRECTIVES if kind == "module"),
    *re.findall(r"muniment\.integrations\.\w+", read_page("docs/adapters.md")),
}
CODE = [
    *(
        (path.name, path.read_text(encoding="utf-8"))
        for path in sorted((REPOSITORY / "examples").glob("*.py"))
    ),
    *(
        (path.name, block)
        for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
        for kind in ("python", "py")
        for block in find_code_blocks(path.read_text(encoding="utf-8"), kind)
    ),
]


def find_names(source):
    """Yield the full names of the package that a program imports or reads."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case ast.Attribute(value=ast.Name(id="muniment")):
                yield f"muniment.{node.attr}"


def is_public(name):
    home, _, last = name.rpartition(".")
    if name in LISTED or name in MODULES:
        return True
    if home not in MODULES:
        return False
    module = import_module(home)
    public = vars(module) if home == "muniment.errors" else getattr(module, "__all__", vars(module))
    return not last.startswith("_") and last in public


@pytest.mark.parametrize("name", ["muniment.Memory", "muniment.client.Client", "muniment.errors.NotFound"])
def test_a_documented_name_is_public(name):
    assert is_public(name)


@pytest.mark.parametrize(
    "name", ["muniment.api.Memory", "muniment.kernel.apply.apply_changes", "muniment.Place"]
)
def test_an_undocumented_name_is_private(name):
    assert not is_public(name)


def test_examples_and_pages_use_public_names_only():
    names = [
        (file, name) for file, source in CODE for name in find_names(source) if name.startswith("muniment")
    ]
    assert len(names) > 50
    assert [each for each in names if not is_public(each[1])] == []


def test_api_pages_list_every_public_name():
    wanted = {f"muniment.{name}" for name in muniment.__all__ if name != "__version__"}
    assert wanted - LISTED == set()
    assert {name for name in LISTED if re.fullmatch(r"muniment\.[A-Z]\w+|muniment\.open", name)} == wanted
    assert len(LISTED) == len(DIRECTIVES), "one name is listed twice"


def test_errors_that_public_methods_raise_are_public():
    for owner in (muniment.Memory, muniment.Conversation, muniment.Sandbox):
        documented = [muniment.open, *(each for each in vars(owner).values() if callable(each))]
        for function in documented:
            section = (function.__doc__ or "").partition("Raises:")[2]
            raised = re.findall(r"^ +((?:[A-Z]\w+, )*[A-Z]\w+): ", section, re.MULTILINE)
            names = {name for line in raised for name in line.split(", ") if hasattr(errors, name)}
            assert names <= set(muniment.__all__), function


def test_results_of_public_methods_are_public():
    public = {*muniment.__all__, *import_module("muniment.types").__all__, *vars(builtins), "Self"}
    tree = ast.parse(Path(inspect.getfile(muniment.Memory)).read_text(encoding="utf-8"))
    (memory,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Memory")
    methods = [node for node in memory.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
    methods = [node for node in methods if not node.decorator_list]  # Properties are for the package.
    assert len(methods) > 12
    named = {each.id for node in methods for each in ast.walk(node.returns) if isinstance(each, ast.Name)}
    assert named - public == set()
