"""Edit settings files of other programs as text, so that other keys, the order, comments and the layout stay.

E1 If the program itself could not read a text, the text is not changed: `ConfigInvalid`.
E2 After an edit, the text is parsed again and compared with the intended value; if they differ,
   `ConfigInvalid` is raised. Therefore a bug in this module or in tomlkit changes no file.
E3 Between existing members, nothing is written except the edit itself and commas.

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
"""Length of the path of a table inside a table, such as `mcp_servers.muniment`."""

_WHITE_SPACE: Final = " \t\r\n"
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()
_STRING_OR_COMMENT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|(//[^\n]*|/\*.*?\*/)', re.DOTALL)
"""Pattern of a JSON string or a comment; the group is set only for a comment."""

_JSON_VALUES: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|[-+.\w]+', re.DOTALL)
_TOML_VALUES: Final = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|[-+.:\w]+''',
    re.DOTALL,
)
"""Patterns of strings, comments, and words without quotes, in JSON and in TOML."""


@dataclass(frozen=True, slots=True)
class Put:
    """An edit that sets the member at a path to a value, and creates missing objects around it."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Append:
    """An edit that appends a value to the array at a path; if the array is missing, it is created."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Cut:
    """An edit that deletes the value at a path."""

    path: Path


Edit = Put | Append | Cut


def edit_text(form: Format, text: str, edit: Edit) -> str:
    """Return the text after an edit, checked against the intended value.

    Args:
        form: the format of the text.
        text: the text before the edit.
        edit: the edit.

    Raises:
        ConfigInvalid: the text is invalid, or has a layout in which the edit is impossible.
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
    """Return the value of a document after an edit; `document` itself stays unchanged.

    Raises:
        ConfigInvalid: a step of the path is not an object, or the value at its end is not an array.
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
    """Return the text with `"…"` in place of each value in `secrets`.

    Args:
        text: the text of a settings file.
        values: the pattern of a value in the format of the file.
        secrets: the values to replace.
        parse: returns the value of a quoted string; escaped characters are then also recognised.
    """

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
    """A member of an object or an item of an array, with its key and its positions in the text.

    Attributes:
        key: the name of the member, or the index of the item.
        begin: the position of the key; for an item, of the value.
        value: the position of the value.
        end: the position after the value.
    """

    key: str | int
    begin: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class Json:
    """The format JSON, with comments if the program allows them.

    A comma after the last member is an error, as in all supported programs.

    Attributes:
        comments: whether `//` and `/* */` are comments.
    """

    comments: bool = False

    def parse(self, text: str) -> dict[str, Any]:
        """Return the value of a text; white space alone counts as an empty object.

        Raises:
            ConfigInvalid: the text is not a JSON object.
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
        """Return the text after an edit; the caller checks the value of the result."""
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
        """Return a value as JSON text that a user can paste."""
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

    def mask(self, text: str, secrets: Collection[str]) -> str:
        """Return the text with `"…"` in place of each value in `secrets`, even if it contains escapes."""
        return _mask_values(text, _JSON_VALUES, secrets, json.loads)

    def _blank_comments(self, text: str) -> str:
        """Return the text with each comment replaced by spaces; positions stay the same."""

        def blank(found: re.Match[str]) -> str:
            return found[0] if found[1] is None else re.sub(r"[^\n]", " ", found[0])

        return _STRING_OR_COMMENT.sub(blank, text) if self.comments else text

    def _put(self, text: str, path: Path, value: Any, *, appended: Any = None) -> str:
        """Return the text with a value at a path, or with one more item in the array at the path.

        Args:
            text: the text before the edit.
            path: the path.
            value: the value; for a missing array, an array with the item.
            appended: the item to append; None: set the value.
        """
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
    """Return the first position at or after `position` that is not white space."""
    found = _SPACES.match(text, position)
    return found.end() if found else position


def _read_children(blanked: str, start: int) -> tuple[list[_Child], int]:
    """Return the children of an object or array, and the position of its closing bracket.

    Args:
        blanked: the text without comments.
        start: the position of the opening bracket.
    """
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
        ConfigInvalid: the key occurs twice; programs differ in which one they use.
    """
    found = [each for each in children if each.key == key]
    if len(found) > 1:
        raise ConfigInvalid(f"has {key!r} twice in one object")
    return found[0] if found else None


def _insert_child(text: str, blanked: str, start: int, key: str | None, value: Any) -> str:
    """Return the text with one more child at the end of an object or array.

    Args:
        text: the text before the edit.
        blanked: the text without comments.
        start: the position of the opening bracket.
        key: the name of the member; None: append an item to an array.
        value: the value of the child.
    """
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
    """Return a value as text; if `inline` is False, with indented lines after the first."""
    if inline:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=_find_indent_unit(text)).split("\n")
    return (_find_line_end(text) + indent).join(lines)


def _find_line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _read_indent(text: str, position: int) -> str:
    """Return the white space at the start of the line that contains a position."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _find_indent_unit(text: str) -> str:
    """Return one step of indentation: that of the first indented line, or two spaces without such a line."""
    found = re.search(r"\n([ \t]+)[\"{\[]", text)
    return found[1] if found else "  "


# -- TOML --------------------------------------------------------------------------------------------


class Toml:
    """The format TOML. New tables are appended at the end; tomlkit replaces and removes values and tables."""

    def parse(self, text: str) -> dict[str, Any]:
        """Return the value of a text.

        Raises:
            ConfigInvalid: the text is not TOML.
        """
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigInvalid(f"is not TOML: {error}") from None
        except (ValueError, RecursionError):
            raise ConfigInvalid("contains TOML that setup cannot read") from None

    def apply_edit(self, text: str, edit: Edit) -> str:
        """Return the text after an edit; the caller checks the value of the result.

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
        """Return a value as TOML text that a user can paste.

        The value must contain only tables of tables, or arrays of tables.
        """
        import tomlkit

        tables = (
            tomlkit.dumps({outer: {name: _inline_tables(table)}})
            for outer, inner in value.items()
            for name, table in inner.items()
        )
        return "\n".join(tables)

    def mask(self, text: str, secrets: Collection[str]) -> str:
        """Return the text with `"…"` in place of each value in `secrets`, even if it contains escapes."""
        return _mask_values(text, _TOML_VALUES, secrets, lambda word: tomllib.loads(f"x = {word}")["x"])


def _inline_tables(table: Any) -> Any:
    """Return a table in which each inner table is written on one line."""
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
    """Return the text with tables added at the end, after an empty line."""
    end = _find_line_end(text)
    if text and not text.endswith("\n"):
        text += end
    return text + (end if text.strip() else "") + added.replace("\n", end)


def _set_value(text: str, path: Path, value: Any) -> str:
    """Return the text with another value for an existing key, or with one more key in a table."""
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
    """Return the text without a value or a table; comments after the table stay."""
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
    """Return the tomlkit document of a text.

    Raises:
        ConfigInvalid: tomlkit would change the text when it writes it, for example if the tables of one array
            are not adjacent.
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
    """Return the tables that have a header, with their lines.

    Returns:
        For each table: its path, the number of its header line, and the number of the line after its last
        key.
    """
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
