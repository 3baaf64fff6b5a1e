"""Plain English, as CONTRIBUTING describes it: words, names, docstrings, references.

`python tests/test_language.py` prints every finding with its file and line.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from functools import cache
from pathlib import Path

import pytest

from kit.messages_page import is_message

REPOSITORY = Path(__file__).parents[1]
CODE = ("src/**/*.py", "tests/**/*.py", "benchmarks/**/*.py", "examples/**/*.py", "docs/*.py")
PAGES = ("*.md", "docs/*.md", "policies/*.md", "threat-model/**/*.md", "examples/**/*.md")
TEMPLATES = ("src/**/*.html",)
MAX_TEST_NAME = 60

RULES = tomllib.loads((Path(__file__).parent / "language.toml").read_text(encoding="utf-8"))
WORDS = RULES["words"]
"""Banned in prose, as whole words; and what to use."""

HEADLESS = re.compile(r"(?:^|[.:;(]\s+)(?:What|Who|Whose|Those|Whatever|Whoever)\b(?![^.]*\?)")
"""Sentences that start with a pronoun instead of their subject; questions may."""

IDENTIFIERS = set(RULES["identifiers"]["banned"].split())
"""Banned in names, as one of the words between underscores or capitals."""


CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|“[^”]*”|'\w+'|\{%.*?%\}|\{[^}]*\}+")
"""Names, quotations and statements of templates, which are not prose of the project."""


def files(*patterns):
    return sorted(
        path
        for pattern in patterns
        for path in REPOSITORY.glob(pattern)
        if not {"vendor", "facts", "__pycache__", ".venv"} & set(path.parts) and path.name != "CHANGELOG.md"
    )


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def is_definition(node):
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def prose_of_code(path):
    """Yield (line, text) of the comments and docstrings of a module, and of the messages of `src`."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(tree(path)):
        for statement in getattr(node, "body", []) if is_definition(node) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield statement.lineno, text
    if "src" in path.relative_to(REPOSITORY).parts:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_message(node.value):
                yield node.lineno, node.value


def prose():
    """Yield (path, line, text) of everything that a person reads."""
    for path in files(*CODE):
        yield from ((path, line, text) for line, text in prose_of_code(path))
    for path in files(*PAGES):
        text = CODE_BLOCK.sub(lambda match: "\n" * match[0].count("\n"), path.read_text("utf-8"))
        yield from ((path, line, row) for line, row in enumerate(text.splitlines(), 1))
    for path in files(*TEMPLATES):
        yield from ((path, line, row) for line, row in enumerate(path.read_text("utf-8").splitlines(), 1))


def findings_in_text(text):
    """Yield (offset, word, what to use) for each banned word of a text."""
    bare = QUOTED.sub(lambda match: "\n" * match[0].count("\n"), text)
    if any_banned().search(bare):
        for words, use in WORDS.items():
            for match in re.finditer(rf"\b(?:{words})\b", bare):
                yield match.start(), match[0], use
    for match in HEADLESS.finditer(bare):
        yield match.start(), match[0], "the subject first"


@cache
def any_banned():
    return re.compile(rf"\b(?:{'|'.join(WORDS)})\b")


def findings_in_prose():
    """Yield a line for each banned word of the prose."""
    for path, line, text in prose():
        for _, word, use in findings_in_text(text):
            yield f"{path.relative_to(REPOSITORY)}:{line}: {word!r}: use {use}"


def names():
    """Yield (path, line, name) of every definition, argument and assignment."""
    for path in files(*CODE):
        for node in ast.walk(tree(path)):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield path, node.lineno, name
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    yield path, node.lineno, name


def findings_in_names():
    for path, line, name in names():
        parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
        is_system_name = name.endswith("BENEATH")  # of openat2(2), and its value in the configuration
        if not name.startswith("test_") and not is_system_name and parts & IDENTIFIERS:
            yield f"{path.relative_to(REPOSITORY)}:{line}: {name}"


def findings_in_tests():
    for path, line, name in names():
        if name.startswith("test_") and len(name) > MAX_TEST_NAME:
            yield f"{path.relative_to(REPOSITORY)}:{line}: {len(name)} characters: {name}"


def report(rows, most=20):
    rows = list(rows)
    assert not rows, f"{len(rows)} findings:\n" + "\n".join(rows[:most])


@pytest.mark.parametrize("text", RULES["examples"]["banned"])
def test_banned_words_are_found(text):
    assert list(findings_in_text(text))


@pytest.mark.parametrize("text", RULES["examples"]["plain"])
def test_plain_words_are_not_found(text):
    assert not list(findings_in_text(text))


def test_prose_contains_no_banned_words():
    report(findings_in_prose())


def test_names_contain_no_banned_words():
    report(findings_in_names())


def test_test_names_have_at_most_60_characters():
    report(findings_in_tests())


def test_ruff_checks_imperative_docstrings():
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        lint = tomllib.load(file)["tool"]["ruff"]["lint"]
    assert "D401" in lint["extend-select"]
    assert not any(rule.startswith("D4") for rule in lint["ignore"])


if __name__ == "__main__":
    for row in (*findings_in_prose(), *findings_in_names(), *findings_in_tests()):
        sys.stdout.write(row + "\n")
