"""Every module name and path that a docstring, a comment or a page quotes as code exists.

`python tests/surface/pages/test_names_in_pages.py` prints the missing ones, with file and line.
"""

import ast
import builtins
import io
import re
import sys
import tokenize
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "src" / "muniment"
SOURCES = {
    ".".join(("muniment", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
PACKAGES = {"muniment", *(name.rpartition(".")[0] for name in SOURCES)} - {""}
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "policies/*.md",
    "docs/*.md",
    "threat-model/**/*.md",
    "threat-model/**/*.toml",
)

DOTTED = re.compile(r"`([a-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
FILE = re.compile(r"`((?:[\w.-]+/)*\w+\.py)(?:::\w+)?`")


def split_words(text):
    return set(text.split())


SUFFIXES = split_words(
    "com conf css db html js json jsonl key lock log md org py safetensors service sh sock sql tar toml txt "
    "yml"
)
OTHERS = {
    *("client.beta.messages.tool_runner", "core.autocrlf", "core.worktree"),  # of SDKs, of git
    *("answer.text", "src/app.py"),  # examples
    *("muniment.task", "muniment.run", "muniment.turn", "muniment.tool", "muniment.commit"),  # spans
    *("muniment.blob", "muniment.home"),  # tables of a fleet
    *("pydantic.py", "sitecustomize.py", "muniment.py"),  # planted by an attacker
}
VALUES = split_words(
    "builder conversation data error hooksConfig limits mcpServers mcp_servers memory recalled scopes self"
)
"""Names of values in pages; the part after the dot is a member of the value."""


@cache
def read_names(module):
    """Return the names that a module defines or imports."""
    found = set()
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found.add(node.asname or node.name)
    return found


def is_own(name):
    """Return whether a full name is a module, or a name in a module."""
    module = name
    while module not in SOURCES:
        module = module.rpartition(".")[0]
        if not module:
            return False
    inner = name.removeprefix(module).removeprefix(".").partition(".")[0]
    return name == module or inner in read_names(module)


def is_foreign(name):
    first = name.partition(".")[0]
    if name in OTHERS:
        return True
    if first == "muniment" or f"muniment.{first}" in SOURCES:
        return False
    known = first in sys.stdlib_module_names or hasattr(builtins, first) or first in VALUES
    return known or find_spec(first) is not None


def list_packages(module):
    """Return the packages from which a module may shorten a name: its own and its parents; for "", all
    packages.
    """
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)] if module else sorted(PACKAGES)


def iterate_texts():
    """Yield (file, its module or "", first line, text) of everything that is checked."""
    for module, path in SOURCES.items():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type in {tokenize.STRING, tokenize.COMMENT}:
                yield path, module, token.start[0], token.string
    for pattern in PAGES:
        for path in sorted(REPOSITORY.glob(pattern)):
            yield path, "", 1, path.read_text(encoding="utf-8")


def find_missing(text, module, folders):
    """Yield the names and paths in a text that do not exist, as matches."""
    for match in DOTTED.finditer(text):
        name = match[1]
        if name.rpartition(".")[2] in SUFFIXES or is_foreign(name) or is_own(name):
            continue
        packages = () if name.startswith("muniment.") else list_packages(module)
        if not any(is_own(f"{package}.{name}") for package in packages):
            yield match
    for match in FILE.finditer(text):
        if match[1] not in OTHERS and not any((folder / match[1]).exists() for folder in folders):
            yield match


def find_unresolved():
    """Yield FILE:LINE: NAME for each name that does not exist."""
    for path, module, first, text in iterate_texts():
        for match in find_missing(text, module, (REPOSITORY, PACKAGE, REPOSITORY / "tests", *path.parents)):
            line = first + text.count("\n", 0, match.start())
            yield f"{path.relative_to(REPOSITORY)}:{line}: {match[1]}"


def test_module_names_written_as_code_exist():
    assert list(find_unresolved()) == []


@pytest.mark.parametrize("name", ["jobs.remember", "kernel.apply.nothing", "daemon/core.py", "muniment.lane"])
def test_missing_module_is_reported(name):
    assert [match[1] for match in find_missing(f"see `{name}`.", "", (PACKAGE,))] == [name]


def test_module_name_may_omit_parent_packages():
    written = (
        "`apply.apply_changes`, `kernel.apply.apply_changes()`, `apply`, `os.open`, `config.toml`, "
        "`kernel/apply.py`, `self.root`"
    )
    assert not list(find_missing(written, "muniment.kernel.write", (PACKAGE,)))
    (match,) = find_missing(written, "muniment.store.commit", (PACKAGE,))
    assert match[1] == "apply.apply_changes"


if __name__ == "__main__":
    sys.stdout.writelines(f"{each}\n" for each in find_unresolved())
