"""Namespaces, keys and values of a store as folders, names and entries. Apart, since it needs no SDK. Pure.

V1 `text_of(name_of(text)) == text` for every text; two texts never have one name, also where case is ignored.
V2 A value comes back as it was, to the last character; the entry is markdown that a person reads and search
   finds: what a value says in one of `TEXT_KEYS` is its text, and all else stands below in a block of JSON.
V3 An entry that nobody put there by a store is a value, too: `{"content": its text}`. So is one that somebody
   has edited so that it can no longer be read as what was put.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from muniment.content.entry import Entry
from muniment.content.titles import RESERVED_STEMS
from muniment.errors import BadArguments
from muniment.kernel.path import FILE_SUFFIX, fold, is_canonical_character, segment_problem
from muniment.operations.entries import with_front
from muniment.policy.grammar import looked_like

TEXT_KEYS: Final = ("content", "text", "memory", "data")
"""What users of stores call the text of a value; the first that there is."""

KEY: Final = "value"
"""In front matter: what the body is. `text` or another of `TEXT_KEYS`, `json`, or both with a plus between;
without it the body is the content."""

_JSON: Final = "json"
_OPENS, _CLOSES = "```json\n", "\n```\n"
_EMPTY: Final = "="
_ESCAPED: Final = re.compile("=([0-9a-f]{2}(?:=[0-9a-f]{2})*)")
_MAX_DEPTH: Final = 64
"""Values within one another; far below what the parser takes."""

_MAX_BITS: Final = 8_192
"""Of a whole number; beyond some 14 000 Python refuses to read its digits again."""

# -- names -------------------------------------------------------------------------------------------


def name_of(text: str) -> str:
    """The name of a file or folder, without suffix, for a key or label (V1).

    Small letters, digits, `-` and `_` stand for themselves, all else as `=` and two hexadecimal digits for
    each byte of UTF-8, such as `user=3a123`.

    Raises:
        BadArguments: it holds half a character.
    """
    try:
        name = "".join(char if _is_plain(char) else _escaped(char) for char in text) or _EMPTY
        if segment_problem(name + FILE_SUFFIX) is not None:  # Letters that become others side by side.
            name = "".join(char if char.isascii() else _escaped(char) for char in name)
        if name in RESERVED_STEMS or segment_problem(name + FILE_SUFFIX) or looked_like(name + FILE_SUFFIX):
            name = _escaped(name[0]) + name[1:]  # Of ours, of Windows, or taken for one of these.
    except UnicodeEncodeError:
        raise BadArguments("a key or label holds half a character") from None
    return name


def text_of(name: str) -> str:
    """The key or label of a name (V1); of a name that nobody escaped, what it would be."""
    if name == _EMPTY:
        return ""
    try:
        return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].replace("=", "")).decode(), name)
    except UnicodeDecodeError:
        return name


def _is_plain(char: str) -> bool:
    return char in "-_" or (char.isalnum() and fold(char) == char and is_canonical_character(char))


def _escaped(char: str) -> str:
    return "".join(f"={byte:02x}" for byte in char.encode())


# -- values ------------------------------------------------------------------------------------------


def file_of(value: Mapping[str, Any]) -> str:
    """The text of an entry that is a value (V2).

    Raises:
        BadArguments: it is no object of JSON; says what in it is not.
    """
    _require_json(value, "value", 0)
    key = next((each for each in TEXT_KEYS if isinstance(value.get(each), str)), None)
    rest = {name: each for name, each in value.items() if name != key}
    kinds = [*([key] if key else []), *([_JSON] if rest or not key else [])]
    body = str(value[key]) if key else ""
    if _JSON in kinds:
        block = f"{_OPENS}{json.dumps(rest, ensure_ascii=False, indent=1)}{_CLOSES}"
        body = f"{body}\n\n{block}" if key else block
    return with_front(body, {} if kinds == [TEXT_KEYS[0]] else {KEY: "+".join(kinds)})


def value_of(entry: Entry) -> dict[str, Any]:
    """The value of an entry (V2, V3)."""
    fields = () if entry.front is None else entry.front.fields
    kinds = next((each.first.strip() for each in fields if each.key == KEY), TEXT_KEYS[0]).split("+")
    try:
        text, rest = _divided(entry.body) if kinds[-1] == _JSON else (entry.body, {})
    except (ValueError, RecursionError):
        return {TEXT_KEYS[0]: entry.body}
    match kinds:
        case ["json"] if not text:
            return rest
        case [key] if key in TEXT_KEYS:
            return {key: text}
        case [key, "json"] if key in TEXT_KEYS and text.endswith("\n\n"):
            return {key: text[:-2], **rest}
        case _:
            return {TEXT_KEYS[0]: entry.body}


def strings_of(value: object) -> str:
    """All texts in a value, a line each, as they are and not as JSON writes them: what gates look at."""
    match value:
        case str():
            return value
        case Mapping():
            return "\n".join([*map(str, value), *map(strings_of, value.values())])
        case list():
            return "\n".join(map(strings_of, value))
        case _:
            return ""


def _divided(body: str) -> tuple[str, dict[str, Any]]:
    """What stands before the last block of JSON, and what that says.

    Raises:
        ValueError: there is none at the end.
    """
    at = body.rindex(_OPENS)
    if not body.endswith(_CLOSES):
        raise ValueError("something stands behind the block")
    rest = json.loads(body[at + len(_OPENS) : -len(_CLOSES)])
    if not isinstance(rest, dict):
        raise ValueError("it is no object")  # noqa: TRY004  of a text, not of an argument
    return body[:at], rest


def _require_json(value: object, where: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise BadArguments(f"a value may be {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        for name, each in value.items():
            if type(name) is not str:
                raise BadArguments(f"{where} has a key that is no text")
            _require_plain(name, f"a key of {where}")
            _require_json(each, f"{where}[{name[:40]!r}]", depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _require_json(each, f"{where}[{number}]", depth + 1)
    else:
        _require_plain(value, where)


def _require_plain(value: object, where: str) -> None:
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise BadArguments(f"{where} holds half a character")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadArguments(f"{where} is no number that JSON knows")
    elif isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise BadArguments(f"{where} is a number of more than {_MAX_BITS} bits")
    elif value is not None:
        raise BadArguments(f"{where} is a {type(value).__name__}, which JSON does not know")


# -- filters -----------------------------------------------------------------------------------------


_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(found: Any, wanted: Any) -> bool:
    """Whether a value is as a filter wants it: as `InMemoryStore` reads filters, but no text is an error.

    Raises:
        ValueError: it names an operator that there is not.
    """
    if isinstance(wanted, dict):
        if any(str(name).startswith("$") for name in wanted):
            return all(_compares(found, name, each) for name, each in wanted.items())
        return isinstance(found, dict) and all(
            matches(found.get(name), each) for name, each in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(matches, found, wanted))
    return bool(found == wanted)


def _compares(found: Any, name: str, wanted: Any) -> bool:
    if name in {"$eq", "$ne"}:
        return bool(found == wanted) is (name == "$eq")
    if name not in _ORDERS:
        raise ValueError(f"Unsupported operator: {name}")
    try:
        return _ORDERS[name](float(found), float(wanted))
    except (TypeError, ValueError, OverflowError):
        return False
