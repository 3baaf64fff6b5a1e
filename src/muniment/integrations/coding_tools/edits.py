"""Edit settings of other programs as text, so that other keys, their order, comments and layout stay.

E1 A text that its own program could not read is not changed: `ConfigInvalid`.
E2 The text after an edit is parsed again and compared with the intended value; `ConfigInvalid` if they
   differ. So a bug in this module, or in tomlkit, changes no file.
E3 Between existing members only the edit itself and commas are written.

A position in a document is a path of names and indexes, such as `("hooks", "Stop", 0, "command")`. Attacked
by `tests/units/cli/test_setup_edits.py`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from muniment.errors import ConfigInvalid

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

Path = tuple[str | int, ...]

_TABLE_DEPTH: Final = 2
"""Length of the path of a table in a table, such as `mcp_servers.muniment`."""

_WHITE_SPACE: Final = " \t\r\n"
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()
_STRING_OR_COMMENT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|(//[^\n]*|/\*.*?\*/)', re.DOTALL)
"""Matches a JSON string or a comment."""

_JSON_VALUES: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|[-+.\w]+', re.DOTALL)
_TOML_VALUES: Final = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|[-+.:\w]+''',
    re.DOTALL,
)
"""Match strings, comments, and words without quotes."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set the member at a path to a value; missing objects around it are created."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Append:
    """Append a value to the array at a path; a missing array is created."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Cut:
    """Delete the value at a path."""

    path: Path


Edit = Put | Append | Cut


def edit_text(form: Format, text: str, edit: Edit) -> str:
    """Return the text after an edit.

    Raises:
        ConfigInvalid: as described in E1 and E2.
    """
    expected = apply_edit(form.parse(text), edit)
    try:
        after = form.apply_edit(text, edit)
        is_correct = json.dumps(form.parse(after), default=str) == json.dumps(expected, default=str)
    except (ConfigInvalid, LookupError, ValueError, RecursionError):
        is_correct = False
    if not is_correct:
        raise ConfigInvalid("has a layout that setup cannot edit")
    return after


def apply_edit(document: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """Return the value of a document after an edit; do not change `document`.

    Raises:
        ConfigInvalid: a step of the path is not an object, or its end is not an array.
    """
    changed = dict(document)
    node: Any = changed
    *parents, last = edit.path
    for step in parents:
        found = node.get(step, {}) if isinstance(node, dict) else node[step]
        if not isinstance(found, dict | list):
            raise ConfigInvalid(f"has a value at {step!r} that is not an object")
        child_copy = found.copy()
        node[step] = child_copy
        node = child_copy
    match edit:
        case Put() if isinstance(node, dict):
            node[last] = edit.value
        case Append():
            before = node.get(last, []) if isinstance(node, dict) else None
            if not isinstance(before, list):
                raise ConfigInvalid(f"has a value at {last!r} that is not an array")
            node[last] = [*before, edit.value]
        case Cut():
            del node[last]
        case _:
            raise ConfigInvalid(f"has a value around {last!r} that is not an object")
    return changed


def _mask_values(
    text: str, values: re.Pattern[str], secrets: Collection[str], parse: Callable[[str], Any]
) -> str:
    """Return the text with `"…"` in place of each value in `secrets`, in every notation."""

    def mask(found: re.Match[str]) -> str:
        word = found[0]
        if word[0] in "\"'":
            try:
                word = parse(word)
            except ValueError:
                return found[0]
        return '"…"' if word in secrets else found[0]

    return values.sub(mask, text) if secrets else text


# -- JSON --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Child:
    """A member of an object or an item of an array: the positions of its start, its value and its end."""

    key: str | int
    begin: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class Json:
    """JSON, with comments if the program allows them. No program allows a comma after the last member.

    Attributes:
        comments: `//` and `/* */` are skipped.
    """

    comments: bool = False

    def parse(self, text: str) -> dict[str, Any]:
        """Return the value of a text. White space alone counts as an empty object, since nothing can be lost.

        Raises:
            ConfigInvalid: as described in E1.
        """
        if not text.strip(_WHITE_SPACE):
            return {}
        try:
            found = json.loads(self._blank_comments(text), parse_constant=_reject_constant)
        except json.JSONDecodeError as error:
            raise ConfigInvalid(f"is not JSON: {error.msg.lower()} in line {error.lineno}") from None
        except (ValueError, RecursionError):
            raise ConfigInvalid("contains JSON that setup cannot read") from None
        if not isinstance(found, dict):
            raise ConfigInvalid("is not a JSON object")
        return found

    def apply_edit(self, text: str, edit: Edit) -> str:
        """Return the text after an edit; the caller compares its value (E2)."""
        if not text.strip(_WHITE_SPACE):
            text = "{}\n"
        match edit:
            case Put():
                return self._put(text, edit.path, edit.value)
            case Append():
                return self._put(text, edit.path, [edit.value], appended=edit.value)
            case Cut():
                return self._cut(text, edit.path)

    def render(self, value: Mapping[str, Any]) -> str:
        """Return JSON for a user to paste."""
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

    def mask(self, text: str, secrets: Collection[str]) -> str:
        """Return the text with `"…"` in place of each value in `secrets`, in every notation."""
        return _mask_values(text, _JSON_VALUES, secrets, json.loads)

    def _blank_comments(self, text: str) -> str:
        """Return the text with comments replaced by spaces, with the same length."""

        def blank(found: re.Match[str]) -> str:
            return found[0] if found[1] is None else re.sub(r"[^\n]", " ", found[0])

        return _STRING_OR_COMMENT.sub(blank, text) if self.comments else text

    def _put(self, text: str, path: Path, value: Any, *, appended: Any = None) -> str:
        """Return the text with a value at a path, or with one more item in the array at the path."""
        blanked = self._blank_comments(text)
        start = _skip_space(blanked, 0)
        for depth, step in enumerate(path):
            children, _ = _read_children(blanked, start)
            found = _find_child(children, step)
            if found is None:
                for outer in reversed(path[depth + 1 :]):
                    value = {outer: value}
                return _insert_child(text, blanked, start, str(step), value)
            start = found.value
        if appended is not None:
            return _insert_child(text, blanked, start, None, appended)
        indent = _read_indent(text, found.begin) if found else ""
        end = _DECODER.raw_decode(blanked, start)[1]
        return (
            text[:start] + _render_value(text, value, indent, inline="\n" not in text[start:end]) + text[end:]
        )

    def _cut(self, text: str, path: Path) -> str:
        """Return the text without the value at a path."""
        blanked = self._blank_comments(text)
        start = _skip_space(blanked, 0)
        for step in path[:-1]:
            start = next(each.value for each in _read_children(blanked, start)[0] if each.key == step)
        children, close = _read_children(blanked, start)
        position = next(index for index, each in enumerate(children) if each.key == path[-1])
        child, rest = children[position], children[position + 1 :]
        begin, end = len(text[: child.begin].rstrip(_WHITE_SPACE)), child.end
        if rest:
            end = blanked.index(",", child.end) + 1
        is_after_comment = blanked[begin - 1].isspace()
        if is_after_comment and "\n" not in text[end : rest[0].begin if rest else close]:
            begin = child.begin  # Otherwise the following text would become part of the comment.
        head = text[:begin]
        if position and not rest:
            comma = blanked.index(",", children[position - 1].end)
            head = text[:comma] + text[comma + 1 : begin]
        if len(children) == 1 and not (text[start + 1 : begin] + text[end:close]).strip(_WHITE_SPACE):
            head, end = text[: start + 1], close
        return head + text[end:]


def _reject_constant(name: str) -> Any:
    raise ValueError(name)


def _skip_space(text: str, position: int) -> int:
    """Return the position after the white space at a position."""
    found = _SPACES.match(text, position)
    return found.end() if found else position


def _read_children(blanked: str, start: int) -> tuple[list[_Child], int]:
    """Return the children of the object or array that starts at a position, and the position of its end."""
    if blanked[start] not in "{[":
        raise ConfigInvalid("has another value in place of an object or an array")
    children: list[_Child] = []
    position = _skip_space(blanked, start + 1)
    while blanked[position] not in "}]":
        begin, key = position, len(children)
        if blanked[start] == "{":
            key, position = _DECODER.raw_decode(blanked, position)
            position = _skip_space(blanked, _skip_space(blanked, position) + 1)
        end = _DECODER.raw_decode(blanked, position)[1]
        children.append(_Child(key, begin, position, end))
        position = _skip_space(blanked, end)
        if blanked[position] == ",":
            position = _skip_space(blanked, position + 1)
    return children, position


def _find_child(children: list[_Child], key: str | int) -> _Child | None:
    """Return the child with a key, or None.

    Raises:
        ConfigInvalid: the key occurs twice; programs use one or the other.
    """
    found = [each for each in children if each.key == key]
    if len(found) > 1:
        raise ConfigInvalid(f"has {key!r} twice in one object")
    return found[0] if found else None


def _insert_child(text: str, blanked: str, start: int, key: str | None, value: Any) -> str:
    """Return the text with one more child in the object or array that starts at a position."""
    children, close = _read_children(blanked, start)
    last = children[-1].end if children else start + 1
    insert_position = max(last, len(text[:close].rstrip(_WHITE_SPACE)))
    first = children[0].begin if children else close
    is_inline = "\n" not in text[start:first] and "\n" not in text[last:close]
    if not children and "\n" in text.strip(_WHITE_SPACE):
        is_inline = False
    if not children and text.strip(_WHITE_SPACE) == "{}":
        is_inline = False
    outer_indent = _read_indent(text, start)
    indent = (
        _read_indent(text, first)
        if children and "\n" in text[start:first]
        else outer_indent + _find_indent_unit(text)
    )
    name = "" if key is None else json.dumps(key, ensure_ascii=False) + ": "
    piece = name + _render_value(text, value, indent, inline=is_inline)
    if is_inline:
        piece = (" " if children else "") + piece
    else:
        piece = _find_line_end(text) + indent + piece
        if not children and "\n" not in text[insert_position:close]:
            piece += _find_line_end(text) + outer_indent
    comma = "," if children else ""
    return text[:last] + comma + text[last:insert_position] + piece + text[insert_position:]


def _render_value(text: str, value: Any, indent: str, *, inline: bool) -> str:
    """Return a value as text; lines after the first are indented."""
    if inline:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=_find_indent_unit(text)).split("\n")
    return (_find_line_end(text) + indent).join(lines)


def _find_line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _read_indent(text: str, position: int) -> str:
    """Return the white space at the start of the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _find_indent_unit(text: str) -> str:
    """Return one step of indentation, as in the first indented line; two spaces if no line is indented."""
    found = re.search(r"\n([ \t]+)[\"{\[]", text)
    return found[1] if found else "  "


# -- TOML --------------------------------------------------------------------------------------------


class Toml:
    """TOML: new tables are appended at the end; tomlkit replaces and removes values and tables."""

    def parse(self, text: str) -> dict[str, Any]:
        """Return the meaning of a text.

        Raises:
            ConfigInvalid: the text is not TOML (E1).
        """
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigInvalid(f"is not TOML: {error}") from None
        except (ValueError, RecursionError):
            raise ConfigInvalid("contains TOML that setup cannot read") from None

    def apply_edit(self, text: str, edit: Edit) -> str:
        """Return the text after an edit; the caller compares its meaning (E2).

        Raises:
            ConfigInvalid: tomlkit cannot make the edit.
        """
        from tomlkit.exceptions import TOMLKitError

        try:
            match edit:
                case Cut():
                    return _remove_item(text, edit.path)
                case Put() if len(edit.path) > _TABLE_DEPTH:
                    return _set_value(text, edit.path, edit.value)
                case Put() | Append():
                    value = [edit.value] if isinstance(edit, Append) else edit.value
                    table, name = map(str, edit.path)
                    return _append_tables(text, self.render({table: {name: value}}))
        except (TOMLKitError, TypeError, AttributeError) as error:
            raise ConfigInvalid("has a layout that setup cannot edit") from error

    def render(self, value: Mapping[str, Any]) -> str:
        """Return tables of tables, and arrays of tables, for a user to paste."""
        import tomlkit

        tables = (
            tomlkit.dumps({outer: {name: _inline_tables(table)}})
            for outer, inner in value.items()
            for name, table in inner.items()
        )
        return "\n".join(tables)

    def mask(self, text: str, secrets: Collection[str]) -> str:
        """Return the text with `"…"` in place of each value in `secrets`, in every notation."""
        return _mask_values(text, _TOML_VALUES, secrets, lambda word: tomllib.loads(f"x = {word}")["x"])


def _inline_tables(table: Any) -> Any:
    """Return a table with each table in it written on one line."""
    return (
        {name: _convert_to_inline(each) for name, each in table.items()} if isinstance(table, dict) else table
    )


def _convert_to_inline(value: Any) -> Any:
    import tomlkit

    if not isinstance(value, dict):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _append_tables(text: str, added: str) -> str:
    """Return the text with tables at the end, below an empty line."""
    end = _find_line_end(text)
    if text and not text.endswith("\n"):
        text += end
    return text + (end if text.strip() else "") + added.replace("\n", end)


def _set_value(text: str, path: Path, value: Any) -> str:
    """Return the text with another value of a key, or with one more key in a table."""
    import tomlkit

    document = _parse_toml(text)
    table = _get_item(document, path[:-1])
    if path[-1] in table:
        table[path[-1]] = _convert_to_inline(value)
        return document.as_string()
    _, end = [lines for each, lines in _find_tables(text) if each == path[:-1]][0]  # noqa: RUF015  or LookupError
    lines = text.splitlines(keepends=True)
    lines[end - 1] = lines[end - 1].rstrip("\r\n") + _find_line_end(text)
    lines.insert(
        end, tomlkit.dumps({str(path[-1]): _convert_to_inline(value)}).replace("\n", _find_line_end(text))
    )
    return "".join(lines)


def _remove_item(text: str, path: Path) -> str:
    """Return the text without a value or a table; comments below a table stay."""
    tables = [lines for each, lines in _find_tables(text) if each[: len(path)] == path]
    if not tables:
        document = _parse_toml(text)
        del _get_item(document, path[:-1])[path[-1]]
        return document.as_string()
    lines = text.splitlines(keepends=True)
    for begin, end in reversed(tables):
        del lines[begin - (begin > 1 and not lines[begin - 1].strip()) : end]
    return "".join(lines)


def _parse_toml(text: str) -> TOMLDocument:
    """Return the document of a text.

    Raises:
        ConfigInvalid: writing it would change the text, such as for an array whose tables are not adjacent.
    """
    import tomlkit

    document = tomlkit.parse(text)
    if document.as_string() != text:
        raise ConfigInvalid("has a layout that setup cannot edit")
    return document


def _get_item(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def _find_tables(text: str) -> list[tuple[Path, tuple[int, int]]]:
    """Return the tables that have a header: path, number of its line, and of the line after its last key."""
    from tomlkit.items import AoT, Table

    mark, paths, counts = "#", list[Path](), Counter[Path]()
    while mark in text:
        mark += "#"
    document = _parse_toml(text)

    def mark_headers(body: Iterable[tuple[Any, Any]], path: Path) -> None:
        for key, item in body:
            for table in item.body if isinstance(item, AoT) else [item]:
                inner = (*path, key.key) if key else path
                if isinstance(item, AoT):
                    counts[inner] += 1
                    inner = (*inner, counts[inner] - 1)
                if isinstance(table, Table):
                    table.comment(f"{mark}{len(paths)}")
                    paths.append(inner)
                    mark_headers(table.value.body, inner)

    mark_headers(document.body, ())
    marked = document.as_string().splitlines()
    headers = [(number, int(line.rpartition(mark)[2])) for number, line in enumerate(marked) if mark in line]
    lines, found = text.splitlines(), []
    ends = [number for number, _ in headers[1:]] + [len(lines)]
    for (begin, index), end in zip(headers, ends, strict=True):
        notes = takewhile(_is_blank_or_comment, reversed(lines[begin:end]))
        found.append((paths[index], (begin, end - sum(1 for _ in notes))))
    return found


def _is_blank_or_comment(line: str) -> bool:
    """Return whether a line is empty or a comment."""
    return line.strip()[:1] in {"", "#"}


Format = Json | Toml
"""The format of a settings file."""
