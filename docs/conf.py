"""The documentation as a site: `sphinx-build --fail-on-warning docs FOLDER`. Nothing is fetched.

The pages are plain markdown, which GitHub shows too; the API pages have directives that read docstrings.
"""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from dataclasses import fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

DOCS = Path(__file__).parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECTIONS = {
    "Use it": "first-day commands setup mcp page projects recall models captures captures-wide glossary",
    "From a program": "library daemon http acp adapters api api-types api-client api-testing api-hosts",
    "Run it": "configuration operations moving platforms fleet",
    "What it promises": "entry-format security confinement policies conformance",
}
"""The pages of each section of the sidebar; the build fails if one is missing."""

HEADINGS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")
"""The sections of a docstring."""

project = "Muniment"
root_doc = "README"
exclude_patterns = ["messages.md"]  # It quotes source, which is not valid markdown.
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "Muniment"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
add_module_names = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": "Exception,str"}
python_use_unqualified_type_names = True


def convert_page(_app: Sphinx, name: str, source: list[str]) -> None:
    """Point links that leave docs/ at the repository, and list the pages below the first one.

    A link to a missing file stays as it is, and fails the build.
    """

    def link(match: re.Match[str]) -> str:
        is_there = (DOCS.parent / match[1]).exists()
        return f"]({PROJECT['urls']['Homepage']}/blob/main/{match[1]}" if is_there else match[0]

    source[0] = re.sub(r"\]\(\.\./([^)#]*)", link, source[0])
    if name == root_doc:
        for title, pages in SECTIONS.items():
            lines = "\n".join(pages.split())
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n{lines}\n```\n"


def convert_markup(text: str) -> str:
    """Return the text of a docstring, whose only markup is `code`, as reStructuredText."""
    outside, *pairs = re.split(r"`([^`]+)`", text)
    converted = escape(outside)
    for code, after in zip(pairs[::2], pairs[1::2], strict=True):
        converted += (
            r"\ " * converted[-1:].isalnum() + f"``{code}``" + r"\ " * after[:1].isalnum() + escape(after)
        )
    return converted


def escape(text: str) -> str:
    """Return `text` with all markup characters escaped."""
    return re.sub(r"([*|`\\]|_(?!\w))", r"\\\1", text)


def convert_block(block: str) -> str:
    """Return the lines of a docstring between two empty ones as reStructuredText.

    A block with hanging lines is a list, unless it is a section.
    """
    head, _, rest = block.partition("\n")
    if head in HEADINGS:
        return f"{head}\n{convert_markup(rest)}"
    if re.search(r"^ ", rest, re.MULTILINE):
        lines = (
            f"  {line.lstrip()}" if line[0] == " " else f"- {line.removeprefix('- ')}"
            for line in block.splitlines()
        )
        block = "\n".join(lines)
    return convert_markup(block)


def field_lines(kind: type[Any]) -> list[str]:
    """Return the docstring section for the fields of a result; their annotations contain the meaning."""
    lines = ["", "Attributes:"]
    for each in fields(kind):
        match ast.parse(str(each.type), mode="eval").body:
            case ast.Subscript(ast.Name("Annotated"), ast.Tuple([of, ast.Constant(str(meaning)), *_])):
                lines.append(f"    {each.name} ({ast.unparse(of)}): {meaning}")
            case of:
                lines.append(f"    {each.name} ({ast.unparse(of)}):")
    return lines


def is_result(of: Any) -> bool:
    """Return whether an object is a class of `muniment.types` with fields."""
    return isinstance(of, type) and is_dataclass(of) and of.__module__.startswith("muniment.types")


def convert_docstring(_app: Sphinx, _kind: str, _name: str, of: Any, _options: Any, lines: list[str]) -> None:
    """Convert a docstring in Google style and markdown to reStructuredText.

    Indented blocks are code.
    """
    if is_result(of):
        lines += field_lines(of)
    blocks = re.split(r"\n(?: *\n)+", "\n".join(lines).strip("\n"))
    converted: list[str] = []
    for is_code, group in groupby(blocks, lambda block: block.startswith("    ")):
        converted += ["::"] * is_code + [block if is_code else convert_block(block) for block in group]
    text = "\n\n".join(converted)
    lines[:] = GoogleDocstring(text, Config(napoleon_use_ivar=True), what="object").lines()


def convert_signature(
    _app: Sphinx, _kind: str, _name: str, of: Any, _options: Any, given: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Show the final result type of client methods, and hide the constructors of results."""
    if is_result(of):
        return "", None
    result = re.fullmatch(
        r"\S*Generator\[\S*Try, \S*HttpResponse \| \S*Lost, (.+)\]", returned or "", re.DOTALL
    )
    return given, returned if result is None else re.sub(r"^\S*Accepted\[", "TaskHandle[", result[1])


def finish(app: Sphinx, error: Exception | None) -> None:
    """Copy the first page to `index.html`, which web servers show for a folder."""
    if error is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Connect the functions above; Sphinx calls this."""
    app.add_lexer("jsonl", TextLexer)  # each line starts with its sender
    app.connect("source-read", convert_page)
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("autodoc-process-signature", convert_signature)
    app.connect("build-finished", finish)
