"""Settings of other programs, edited as text, so that foreign keys, their order, comments and layout stay.

E1 A text that its own program could not read is not touched: `ConfigInvalid`.
E2 What an edit comes to is read again and compared with what it was to mean; `ConfigInvalid` where that
   differs, as where a file is laid out in a way that is not known here. So a mistake of this module
   changes no file.
E3 Between what was there nothing is written but what an edit adds or takes, and commas.

A place in a document is a path of names and positions, such as `("hooks", "Stop", 0, "command")`.
Attacked by `tests/units/cli/test_setup_edits.py`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from muniment.errors import ConfigInvalid

Path = tuple[str | int, ...]

_TABLE: Final = 2
"""Steps to a table of tables, such as `mcp_servers.muniment`."""

_SPACE: Final = " \t\r\n"
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()
_COMMENTED: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|(//[^\n]*|/\*.*?\*/)', re.DOTALL)
"""A text, or a comment of JSON."""

_TOKENS: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]',
    re.DOTALL,
)
"""What tells where a table of TOML begins: texts, comments, brackets and ends of lines."""

_JSON_VALUES: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|[-+.\w]+', re.DOTALL)
_TOML_VALUES: Final = re.compile(_TOKENS.pattern + r"|[-+.:\w]+", re.DOTALL)
"""Texts, comments, and words without quotes."""


@dataclass(frozen=True, slots=True)
class Put:
    """Give the member at a path this value; the objects around it are made where they are missing."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Append:
    """Put a value behind those of the array at a path, which is made where it is missing."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Cut:
    """Take out what stands at a path."""

    path: Path


Edit = Put | Append | Cut


def edit_text(form: Format, text: str, edit: Edit) -> str:
    """The text after an edit.

    Raises:
        ConfigInvalid: as E1 and E2 say.
    """
    meant = applied(form.parse(text), edit)
    try:
        after = form.edited(text, edit)
        is_right = json.dumps(form.parse(after), default=str) == json.dumps(meant, default=str)
    except (ConfigInvalid, LookupError, ValueError, RecursionError):
        is_right = False
    if not is_right:
        raise ConfigInvalid("is laid out in a way that is not edited here")
    return after


def applied(document: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """What a document means after an edit; `document` stays as it is.

    Raises:
        ConfigInvalid: on the way to the path stands no object, or at it no array.
    """
    changed = dict(document)
    at: Any = changed
    *way, last = edit.path
    for step in way:
        found = at.get(step, {}) if isinstance(at, dict) else at[step]
        if not isinstance(found, dict | list):
            raise ConfigInvalid(f"has something at {step!r} that is no object")
        copied = found.copy()
        at[step] = copied
        at = copied
    match edit:
        case Put() if isinstance(at, dict):
            at[last] = edit.value
        case Append():
            before = at.get(last, []) if isinstance(at, dict) else None
            if not isinstance(before, list):
                raise ConfigInvalid(f"has something at {last!r} that is no array")
            at[last] = [*before, edit.value]
        case Cut():
            del at[last]
        case _:
            raise ConfigInvalid(f"has something around {last!r} that is no object")
    return changed


def _masked(text: str, values: re.Pattern[str], secrets: Collection[str], read: Callable[[str], Any]) -> str:
    """The text with `"…"` in the place of each value that is one of these, however it is written."""

    def mask(found: re.Match[str]) -> str:
        word = found[0]
        if word[0] in "\"'":
            try:
                word = read(word)
            except ValueError:
                return found[0]
        return '"…"' if word in secrets else found[0]

    return values.sub(mask, text) if secrets else text


# -- JSON --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Child:
    """A member of an object or an item of an array: where it begins, where its value does, and its end."""

    key: str | int
    begin: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class Json:
    """JSON, with comments where the program takes them. None takes a comma behind the last member.

    Attributes:
        comments: `//` and `/* */` are passed over.
    """

    comments: bool = False

    def parse(self, text: str) -> dict[str, Any]:
        """What a text means. One of nothing but space is an empty object: there is nothing to lose.

        Raises:
            ConfigInvalid: as E1 says.
        """
        if not text.strip(_SPACE):
            return {}
        try:
            found = json.loads(self._blanked(text), parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            raise ConfigInvalid(f"is no JSON: {error.msg.lower()} in line {error.lineno}") from None
        except (ValueError, RecursionError):
            raise ConfigInvalid("is no JSON that is read here") from None
        if not isinstance(found, dict):
            raise ConfigInvalid("is no JSON object")
        return found

    def edited(self, text: str, edit: Edit) -> str:
        """The text after an edit, which is not compared yet."""
        if not text.strip(_SPACE):
            text = "{}\n"
        match edit:
            case Put():
                return self._put(text, edit.path, edit.value)
            case Append():
                return self._put(text, edit.path, [edit.value], appends=edit.value)
            case Cut():
                return self._cut(text, edit.path)

    def rendered(self, value: Mapping[str, Any]) -> str:
        """What a person would paste."""
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

    def masked(self, text: str, secrets: Collection[str]) -> str:
        """The text with `"…"` in the place of each value that is one of these, however it is written."""
        return _masked(text, _JSON_VALUES, secrets, json.loads)

    def _blanked(self, text: str) -> str:
        """The text with space in the place of comments, as long as it was."""

        def blank(found: re.Match[str]) -> str:
            return found[0] if found[1] is None else re.sub(r"[^\n]", " ", found[0])

        return _COMMENTED.sub(blank, text) if self.comments else text

    def _put(self, text: str, path: Path, value: Any, *, appends: Any = None) -> str:
        """With a value at a path, or with one more in the array there."""
        blanked = self._blanked(text)
        start = _skipped(blanked, 0)
        for depth, step in enumerate(path):
            children, _ = _children(blanked, start)
            found = _child_at(children, step)
            if found is None:
                for outer in reversed(path[depth + 1 :]):
                    value = {outer: value}
                return _inserted(text, blanked, start, str(step), value)
            start = found.value
        if appends is not None:
            return _inserted(text, blanked, start, None, appends)
        indent = _indent_at(text, found.begin) if found else ""
        end = _DECODER.raw_decode(blanked, start)[1]
        return text[:start] + _rendered(text, value, indent, inline="\n" not in text[start:end]) + text[end:]

    def _cut(self, text: str, path: Path) -> str:
        """Without what stands at a path."""
        blanked = self._blanked(text)
        start = _skipped(blanked, 0)
        for step in path[:-1]:
            start = next(each.value for each in _children(blanked, start)[0] if each.key == step)
        children, close = _children(blanked, start)
        at = next(index for index, each in enumerate(children) if each.key == path[-1])
        child, rest = children[at], children[at + 1 :]
        begin, end = len(text[: child.begin].rstrip(_SPACE)), child.end
        if rest:
            end = blanked.index(",", child.end) + 1
        is_behind_comment = blanked[begin - 1].isspace()
        if is_behind_comment and "\n" not in text[end : rest[0].begin if rest else close]:
            begin = child.begin  # Else what follows would be a part of the comment.
        head = text[:begin]
        if at and not rest:
            comma = blanked.index(",", children[at - 1].end)
            head = text[:comma] + text[comma + 1 : begin]
        if len(children) == 1 and not (text[start + 1 : begin] + text[end:close]).strip(_SPACE):
            head, end = text[: start + 1], close
        return head + text[end:]


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _skipped(text: str, at: int) -> int:
    """Behind the space at a place."""
    found = _SPACES.match(text, at)
    return found.end() if found else at


def _children(blanked: str, start: int) -> tuple[list[_Child], int]:
    """What an object or array holds that begins at a place, and where it is closed."""
    if blanked[start] not in "{[":
        raise ConfigInvalid("has something else where an object or an array was looked for")
    children: list[_Child] = []
    at = _skipped(blanked, start + 1)
    while blanked[at] not in "}]":
        begin, key = at, len(children)
        if blanked[start] == "{":
            key, at = _DECODER.raw_decode(blanked, at)
            at = _skipped(blanked, _skipped(blanked, at) + 1)
        end = _DECODER.raw_decode(blanked, at)[1]
        children.append(_Child(key, begin, at, end))
        at = _skipped(blanked, end)
        if blanked[at] == ",":
            at = _skipped(blanked, at + 1)
    return children, at


def _child_at(children: list[_Child], key: str | int) -> _Child | None:
    """The child of a key.

    Raises:
        ConfigInvalid: there are two, of which programs heed one or the other.
    """
    found = [each for each in children if each.key == key]
    if len(found) > 1:
        raise ConfigInvalid(f"has {key!r} twice in one object")
    return found[0] if found else None


def _inserted(text: str, blanked: str, start: int, key: str | None, value: Any) -> str:
    """With one more child behind those of the object or array that begins at a place."""
    children, close = _children(blanked, start)
    last = children[-1].end if children else start + 1
    point = max(last, len(text[:close].rstrip(_SPACE)))
    first = children[0].begin if children else close
    is_inline = "\n" not in text[start:first] and "\n" not in text[last:close]
    if not children and "\n" in text.strip(_SPACE):
        is_inline = False
    if not children and text.strip(_SPACE) == "{}":
        is_inline = False
    own = _indent_at(text, start)
    indent = _indent_at(text, first) if children and "\n" in text[start:first] else own + _unit(text)
    name = "" if key is None else json.dumps(key, ensure_ascii=False) + ": "
    piece = name + _rendered(text, value, indent, inline=is_inline)
    if is_inline:
        piece = (" " if children else "") + piece
    else:
        piece = _line_end(text) + indent + piece
        if not children and "\n" not in text[point:close]:
            piece += _line_end(text) + own
    comma = "," if children else ""
    return text[:last] + comma + text[last:point] + piece + text[point:]


def _rendered(text: str, value: Any, indent: str, *, inline: bool) -> str:
    """A value as it is written into a text, its further lines with an indent."""
    if inline:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).split("\n")
    return (_line_end(text) + indent).join(lines)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_at(text: str, at: int) -> str:
    """The space that the line of a place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """One step of indentation, as in the first line that has one; two spaces where none has."""
    found = re.search(r"\n([ \t]+)[\"{\[]", text)
    return found[1] if found else "  "


# -- TOML --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """A header, from the beginning of its line, and the lines below it, but for comments that end them."""

    path: Path
    begin: int
    end: int


class Toml:
    """TOML: tables are appended at the end, and taken out whole; of a line its value is replaced."""

    def parse(self, text: str) -> dict[str, Any]:
        """What a text means.

        Raises:
            ConfigInvalid: as E1 says.
        """
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigInvalid(f"is no TOML: {error}") from None
        except (ValueError, RecursionError):
            raise ConfigInvalid("is no TOML that is read here") from None

    def edited(self, text: str, edit: Edit) -> str:
        """The text after an edit, which is not compared yet."""
        match edit:
            case Cut():
                tables = _tables(text)
                around = [each for each in tables if each.path == edit.path[:-1]]
                if around and not any(each.path[: len(edit.path)] == edit.path for each in tables):
                    return _without_value(text, around[0], str(edit.path[-1]))
                for table in reversed(tables):
                    if table.path[: len(edit.path)] == edit.path:
                        above = re.search(r"(?<=\n)\r?\n\Z", text[: table.begin])
                        text = text[: above.start() if above else table.begin] + text[table.end :]
                return text
            case Append():
                return _with_tables(text, _array_lines(edit.path, edit.value))
            case Put():
                around = [each for each in _tables(text) if each.path == edit.path[:-1]]
                if len(edit.path) > _TABLE and around:
                    return _with_value(text, around[0], str(edit.path[-1]), edit.value)
                if not isinstance(edit.value, Mapping):
                    raise ConfigInvalid("has no such table")
                return _with_tables(text, [f"[{_dotted(edit.path)}]", *_lines(edit.value)])

    def rendered(self, value: Mapping[str, Any]) -> str:
        """What a person would paste, of tables of tables and arrays of tables."""
        lines: list[str] = []
        for outer, inner in value.items():
            for name, found in inner.items():
                path = (outer, name)
                each = found if isinstance(found, list) else []
                lines += [] if each else [f"[{_dotted(path)}]", *_lines(found), ""]
                lines += [line for one in each for line in (*_array_lines(path, one), "")]
        return "\n".join(lines)

    def masked(self, text: str, secrets: Collection[str]) -> str:
        """The text with `"…"` in the place of each value that is one of these, however it is written."""
        return _masked(text, _TOML_VALUES, secrets, lambda word: tomllib.loads(f"x = {word}")["x"])


def _tables(text: str) -> list[_Table]:
    """The tables of a text that is TOML."""
    found: list[tuple[int, Path]] = []
    counts: dict[Path, int] = {}
    depth = line = 0
    for token in _TOKENS.finditer(text):
        mark = token[0]
        if mark == "\n":
            line = token.end()
        elif mark in "[{":
            if mark == "[" and depth == 0 and not text[line : token.start()].strip(_SPACE):
                header = text[line:].split("\n", 1)[0].rstrip("\r")
                found.append((line, _addressed(tomllib.loads(header), header, counts)))
            depth += 1
        elif mark in "]}":
            depth -= 1
        if "\n" in mark and mark != "\n":
            line = text.rfind("\n", 0, token.end()) + 1
    ends = [begin for begin, _ in found[1:]] + [len(text)]
    tables = []
    for (begin, path), end in zip(found, ends, strict=False):
        lines = text[begin:end].splitlines(keepends=True)
        while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
            lines.pop()
        tables.append(_Table(path, begin, begin + len("".join(lines))))
    return tables


def _addressed(named: Any, header: str, counts: dict[Path, int]) -> Path:
    """The path of a table, from what its header alone means; `counts` has the tables of each array so far."""
    names: list[str] = []
    is_array = header.lstrip().startswith("[[")
    while named:
        named = named[0] if isinstance(named, list) else named
        for name, inner in named.items():
            names.append(name)
            named = inner
        if named == [{}]:
            named = None
    path: Path = ()
    for depth, name in enumerate(names):
        path += (name,)
        if is_array and depth == len(names) - 1:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path += (counts[path] - 1,)
    return path


def _with_tables(text: str, lines: list[str]) -> str:
    """With these lines at the end, below an empty one."""
    end = _line_end(text)
    if text and not text.endswith("\n"):
        text += end
    return text + (end if text.strip() else "") + "".join(line + end for line in lines)


def _array_lines(path: Path, value: Mapping[str, Any]) -> list[str]:
    """One more table of an array; members of it that hold tables are arrays again."""
    plain = {name: each for name, each in value.items() if not _holds_tables(each)}
    lines = [f"[[{_dotted(path)}]]", *_lines(plain)]
    for name, each in value.items():
        if _holds_tables(each):
            lines += [line for one in each for line in _array_lines((*path, name), one)]
    return lines


def _holds_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_dotted((name,))} = {_inline(value)}" for name, value in table.items()]


def _inline(value: Any) -> str:
    """A value on one line. A text of JSON is one of TOML, but for DEL, which E2 finds."""
    if isinstance(value, dict):
        return "{ " + ", ".join(_lines(value)) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _dotted(path: Path) -> str:
    """The names of a path, as a key."""
    names = [str(each) for each in path if isinstance(each, str)]
    return ".".join(each if re.fullmatch(r"[A-Za-z0-9_-]+", each) else json.dumps(each) for each in names)


def _with_value(text: str, table: _Table, name: str, value: Any) -> str:
    """With another value of a key that has a line of its own in a table, or with one more such line."""
    found = _key_of(text, table, name)
    if found is None:
        head = text[: table.end] + ("" if text[: table.end].endswith("\n") else _line_end(text))
        return head + _lines({name: value})[0] + _line_end(text) + text[table.end :]
    end = _end_of(text, found)
    return text[: found.end()] + _inline(value) + _comment_of(text[found.end() : end]) + text[end:]


def _without_value(text: str, table: _Table, name: str) -> str:
    """Without the lines of a key that has lines of its own in a table."""
    found = _key_of(text, table, name)
    return text if found is None else text[: found.start()] + text[_end_of(text, found) + 1 :]


def _key_of(text: str, table: _Table, name: str) -> re.Match[str] | None:
    key = re.escape(_dotted((name,)))
    return re.compile(rf"^[ \t]*{key}[ \t]*=[ \t]*", re.MULTILINE).search(text, table.begin, table.end)


def _end_of(text: str, found: re.Match[str]) -> int:
    """Where the last line of a value ends, of which the key was found."""
    end = found.end()
    while True:
        end = text.index("\n", end + 1) if "\n" in text[end + 1 :] else len(text)
        try:
            tomllib.loads(text[found.start() : end])
        except tomllib.TOMLDecodeError:
            if end == len(text):
                raise
            continue
        return end


def _comment_of(rest: str) -> str:
    """The comment that follows a value on its line, with the space before it."""
    outside = re.sub(r'"(?:\\.|[^"\\])*"|\'[^\']*\'', lambda found: "x" * len(found[0]), rest)
    at = outside.rfind("#")
    last = outside.rfind("]") if outside.lstrip().startswith("[") else 0
    if at > last:
        return rest[len(rest[:at].rstrip(" \t")) :]
    return "\r" if rest.endswith("\r") else ""


Format = Json | Toml
"""How a settings file is written."""
