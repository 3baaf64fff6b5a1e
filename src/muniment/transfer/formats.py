"""Parse the files of other memory tools into items, without side effects. Every text is untrusted.

| format | its files | an item is |
|---|---|---|
| `markdown` | a tree of text files | a file, or a part of it |
| `claude-code` | the auto memory of Claude Code, `~/.claude/projects/<project>/memory/` | a topic file |
| `mcp-memory` | `memory.jsonl` of `@modelcontextprotocol/server-memory` | an entity with its observations |
| `mem0` | the response of `Memory.get_all()`, or of `/v3/memories/` of the mem0 platform | a row |
| `chatgpt` | `conversations.json` of an export; or saved memories as text, one per line | a saved memory |
| `basic-memory` | a vault of Basic Memory | a note |
| `muniment` | the output of `muniment export` | an entry, byte for byte |

Every text may be hostile. A file that has another format, is nested too deeply or is too long becomes an item
with a `problem`. It never raises an error that stops the other files. Memory and time are limited by the
constants below and by those of `transfer/sources.py`, which reads the files.

Sources: code.claude.com/docs/en/memory; modelcontextprotocol/servers, src/memory; mem0ai/mem0,
mem0/memory/main.py and docs/openapi.json; basicmachines-co/basic-memory, docs/NOTE-FORMAT.md. OpenAI
documents no format: the one of ChatGPT was derived from exports of 2025 and 2026.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from types import MappingProxyType
from typing import Any, Final, Protocol
from urllib.parse import unquote

from muniment.content.entry import ENDS_KEY, TYPES, parse
from muniment.content.exact_json import read_json_or_none
from muniment.content.frontmatter import EXPIRY_KEY
from muniment.content.gates import clean_line
from muniment.kernel.names import INDEX_NAME, Trust
from muniment.operations.exporting import EXPORT_FORMAT, EXPORT_NAME
from muniment.transfer.source_text import (
    FrontValue,
    ParsedText,
    TextPart,
    is_text_name,
    parse_end,
    parse_text,
    split_parts,
    strip_text_suffix,
)

MAX_TEXT_BYTES: Final = 1_048_576
"""Maximum number of bytes of one text file, as for any entry. A larger file is rejected."""

MAX_JSON_BYTES: Final = 67_108_864
"""Maximum number of bytes of a JSON file that is read as a whole: about 300 000 facts."""

MAX_CONVERSATION_BYTES: Final = 33_554_432
"""Maximum number of bytes of one conversation. Conversations are read one by one; their file has no limit."""

_INVALID_JSON: Final = "not valid JSON"
_OTHER_FILE: Final = "not a file of this format"


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One memory of another tool: a fact to import, or the reason why it is not imported.

    Attributes:
        name: the name in the report, by which users find the item in the source.
        text: the fact; if `entry` is set, the body of that entry.
        title: the title in the source; empty if it has none.
        description: the description in the source, one line; empty if it has none.
        type: one of `content.entry.TYPES`, or None.
        keywords: the tags in the source.
        expires, ends: the dates as in `content.entry.Entry`; empty if it does not expire or end.
        path: the path of its file in the source, `/`-separated; empty if it does not have a separate file.
        when: the day on which it was created or changed, according to the source. Not verified.
        problem: why it cannot be imported; empty if no problem is known.
        skipped: why it is skipped on purpose; the report lists it, but it is not an error.
        parts: the strings of the source that `text` consists of, if `text` has other lines than the source.
        entry: for an export, the complete file to restore at `path`.
        trust: for an export, the trust that the export claims for the entry.
    """

    name: str
    text: str = ""
    title: str = ""
    description: str = ""
    type: str | None = None
    keywords: tuple[str, ...] = ()
    expires: str = ""
    ends: str = ""
    path: str = ""
    when: str = ""
    problem: str = ""
    skipped: str = ""
    parts: tuple[str, ...] = ()
    entry: bytes | None = None
    trust: Trust = Trust.EXTERNAL


class Document(Protocol):
    """A file of a source, which can be read once."""

    @property
    def name(self) -> str:
        """Return the path of the file in the source, `/`-separated; it may contain any character."""

    @property
    def problem(self) -> str:
        """Return why the file cannot be read; empty if it can."""

    def head(self) -> bytes:
        """Return some of the first bytes of the file without consuming them."""

    def data(self, limit: int) -> bytes:
        """Return all bytes of the file.

        Args:
            limit: the maximum number of bytes.

        Raises:
            ValueError: the file is larger than `limit`, or cannot be read; the text states the reason.
        """

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file in blocks.

        Raises:
            ValueError: the file cannot be read; the text states the reason.
        """


Parser = Callable[[Iterable[Document]], Iterator[SourceItem]]


def _make_parser(parse_document: Callable[[str, str], Iterator[SourceItem]], limit: int) -> Parser:
    """Return a parser that decodes each document and passes its name and text to `parse_document`."""

    def parser(documents: Iterable[Document]) -> Iterator[SourceItem]:
        for document in documents:
            text = _decode_document(document, limit)
            yield from [text] if isinstance(text, SourceItem) else parse_document(document.name, text)

    return parser


def _decode_document(document: Document, limit: int) -> str | SourceItem:
    """Return the text of a document without a byte order mark, or an item with the reason if that fails."""
    if document.problem:
        return SourceItem(document.name, problem=document.problem)
    try:
        data = document.data(limit)
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        return SourceItem(document.name, problem="not UTF-8 text")
    except ValueError as problem:
        return SourceItem(document.name, problem=str(problem))


# -- markdown ----------------------------------------------------------------------------------------

_INDEX_LINE: Final = re.compile(r"\s*(?:#.*|[-*+]\s*\[(?P<label>[^\]]*)\]\((?P<target>[^)]*)\).*|)")
_METADATA_TYPE: Final = re.compile(r"(?:^|[\s{,])type:\s*[\"']?([a-z]+)\b")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def parse_texts(documents: Iterable[Document]) -> Iterator[SourceItem]:
    """Yield the items of text files, with the values of their front matter.

    A `MEMORY.md` that contains only headings and lines with a link is an index of the other files. Each of
    its lines becomes an item only if the linked file is missing, because then the line is the only copy.
    Indexes are read last, when all file names are known.
    """
    names: set[str] = set()
    indexes: list[tuple[str, ParsedText]] = []
    for document in documents:
        names.add(document.name)
        if not document.problem and not is_text_name(document.name):
            yield SourceItem(document.name, skipped=_OTHER_FILE)
            continue
        text = _decode_document(document, MAX_TEXT_BYTES)
        if isinstance(text, SourceItem):
            yield text
            continue
        parsed = parse_text(text.replace("\0", "") if _is_note(text) else text)
        if _is_index(document.name, parsed):
            indexes.append((document.name, parsed))
        else:
            yield from _parse_file(document.name, parsed)
    for name, parsed in indexes:
        yield from _parse_index(name, parsed, names)


def _is_note(text: str) -> bool:
    """Return whether a text is a note of Basic Memory with NUL characters. Basic Memory drops them."""
    return "\0" in text and "permalink:" in text[:1_000]


def _is_index(name: str, parsed: ParsedText) -> bool:
    lines = parsed.body.splitlines()
    return name.rpartition("/")[2] == INDEX_NAME and all(map(_INDEX_LINE.fullmatch, lines))


def _parse_index(name: str, parsed: ParsedText, names: Collection[str]) -> Iterator[SourceItem]:
    folder = name.rpartition("/")[0]
    for number, line in enumerate(parsed.body.splitlines(), parsed.body_line):
        found = _INDEX_LINE.fullmatch(line)
        if found is None or found["target"] is None:
            continue
        target = unquote(found["target"].strip("<> ").partition("#")[0]).removeprefix("./")
        if posixpath.normpath(posixpath.join(folder, target)) not in names:
            fact = line.strip()[1:].strip()
            yield SourceItem(f"{name}:{number}", fact, title=found["label"].strip())


def _parse_file(name: str, parsed: ParsedText) -> Iterator[SourceItem]:
    """Yield the items of a text file: the file as a whole, or each of its parts."""
    values = parsed.by_key
    parts = list(split_parts(parsed))
    is_whole = len(parts) == 1
    end = values.get(EXPIRY_KEY)
    expires = parse_end(_get_scalar(values, EXPIRY_KEY))
    extra_text: list[str] = []
    if end is not None and end.text and not expires:
        extra_text = [f"{EXPIRY_KEY}: {end.text}"]
        reason = "the value of `expires` is not a date such as 2026-12-31: stored as text, not applied"
        yield SourceItem(f"{name}:{end.line}", skipped=reason)
    for number, part in enumerate(parts or [TextPart(1, "")]):
        item = SourceItem(
            name if part.is_whole or is_whole else f"{name}:{part.line}",
            "\n\n".join([*filter(str.strip, [part.text]), *(extra_text if number == 0 else [])]),
            expires=expires,
            ends=parse_end(_get_scalar(values, ENDS_KEY))[: len("2026-12-31")],
            type=_find_type(values),
            path=name if is_whole and name.rpartition("/")[2] != INDEX_NAME else "",
            when=_parse_day(_get_scalar(values, "modified") or _get_scalar(values, "created")),
        )
        if number == 0:
            keywords = dict.fromkeys((*_read_tags(values.get("keywords")), *_read_tags(values.get("tags"))))
            title = _get_scalar(values, "name") or _get_scalar(values, "title")
            title = title or (_get_stem(name) if "permalink" in values else "")
            description = _get_scalar(values, "description")
            item = replace(item, title=title, description=description, keywords=tuple(keywords))
        yield item


_Values = Mapping[str, FrontValue]


def _get_stem(name: str) -> str:
    return strip_text_suffix(name.rpartition("/")[2])


def _get_scalar(values: _Values, key: str) -> str:
    return values[key].text if key in values else ""


def _find_type(values: _Values) -> str | None:
    """Return the entry type in the front matter, or None.

    Newer versions of Claude Code put the type under `metadata`.
    """
    found = [_get_scalar(values, "type")]
    if "metadata" in values:
        found += _METADATA_TYPE.findall("\n".join([values["metadata"].text, *values["metadata"].raw]))
    return next((each for each in found if each in TYPES), None)


def _read_tags(value: FrontValue | None) -> tuple[str, ...]:
    return () if value is None else _clean_tags(value.items)


def _clean_tags(tags: object) -> tuple[str, ...]:
    found = tags if isinstance(tags, list | tuple) else ()
    return tuple(word for tag in found if isinstance(tag, str) and (word := tag.strip().lstrip("#")))


def _parse_day(when: object) -> str:
    """Return the day at the start of a timestamp, such as `2026-12-31`; empty if it has none."""
    found = _DAY.match(when) if isinstance(when, str) else None
    with suppress(ValueError):
        return str(date.fromisoformat(found[0])) if found else ""
    return ""


# -- JSON --------------------------------------------------------------------------------------------

_ROWS: Final = ("results", "memories", "data")
"""Keys under which a response of mem0 can have its rows."""

_TEXTS: Final = ("memory", "content", "text", "data")


STRUCTURE: Final = frozenset({("type", "entity"), ("type", "relation")})
"""Key and value of JSON members that state the kind of a row and contain no fact."""


def _parse_mcp_memory(name: str, text: str) -> Iterator[SourceItem]:
    """Yield one item per entity of a server-memory file, with its observations and outgoing relations.

    The file has one entity or relation per line, or is a response of the tool `read_graph`.
    """
    kinds: dict[str, dict[str, None]] = {}
    facts: dict[str, dict[str, tuple[str, ...]]] = {}
    for row_name, row in _read_graph(name, text):
        if isinstance(row, SourceItem):
            yield row
            continue
        subject = row.get("name", row.get("entityName", row.get("from")))
        relation, target = row.get("relationType"), row.get("to")
        observations = _read_observations(row)
        if isinstance(subject, str) and isinstance(relation, str) and isinstance(target, str):
            facts.setdefault(subject, {})[f"{relation} {target}"] = (relation, target)
        elif isinstance(subject, str) and observations is not None:
            kind = row.get("entityType")
            kinds.setdefault(subject, {}).update({kind: None} if isinstance(kind, str) and kind else {})
            facts.setdefault(subject, {}).update({each: (each,) for each in observations})
        else:
            yield SourceItem(row_name, problem="neither an entity nor a relation")
    for subject, lines in facts.items():
        items = "\n".join(f"- {clean_line(line)}" for line in lines)
        title = clean_line(subject)
        kind = ", ".join(map(clean_line, kinds.get(subject, ())))
        parts = (subject, *kinds.get(subject, ()), *(part for each in lines.values() for part in each))
        yield SourceItem(
            f"entity {title}",
            f"{title}{f' ({kind})' if kind else ''}\n\n{items}",
            title=title,
            problem="" if items else "no observations and no relations",
            parts=parts,
        )


def _read_observations(row: Mapping[str, Any]) -> list[str] | None:
    """Return the texts of the observations of an entity, or None if one of them cannot be read."""
    found = row.get("observations", row.get("contents", []))
    texts_of_row: list[str] = []
    for each in found if isinstance(found, list) else [found]:
        observation = each
        if isinstance(each, dict):
            observation = next(
                (each[key] for key in ("content", *_TEXTS) if isinstance(each.get(key), str)), None
            )
        if not isinstance(observation, str):
            return None
        texts_of_row.append(observation)
    return texts_of_row


def _read_graph(name: str, text: str) -> Iterator[tuple[str, dict[str, Any] | SourceItem]]:
    for row_name, row in read_json_rows(name, text):
        if not isinstance(row, dict):
            yield row_name, SourceItem(row_name, problem=_INVALID_JSON)
        elif isinstance(row.get("entities"), list) or isinstance(row.get("relations"), list):
            for number, inner in enumerate(
                [*_as_list(row.get("entities")), *_as_list(row.get("relations"))], 1
            ):
                inner_name = f"{name}:{number}"
                if isinstance(inner, dict):
                    yield inner_name, inner
                else:
                    yield inner_name, SourceItem(inner_name, problem=_INVALID_JSON)
        elif row.get("type") in ["entity", "relation", None] or "observations" in row:
            yield row_name, row
        else:
            yield row_name, SourceItem(row_name, problem="neither an entity nor a relation")


def read_json_rows(
    name: str, text: str, hook: Callable[[list[tuple[str, Any]]], object] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the JSON documents of a file in order, each with its name.

    Documents may share a line or span several lines.

    A name consists of the file and the line, such as `memory.jsonl:2`. If the file is a single list, the
    members of the list are yielded instead, named by their number. If a document cannot be read, None is
    yielded for its line, and reading continues on the next line.

    Args:
        name: the name of the file.
        text: the content of the file.
        hook: builds the value of each JSON object from its members (`object_pairs_hook` of `json`).

    Cost: linear. Failed reads cover at most the text once more; after that, every line is parsed alone.
    """
    decoder = json.JSONDecoder(object_pairs_hook=hook)
    position = counted = wasted = 0
    line = 1
    while (found := _NOT_SPACE.search(text, position)) is not None:
        position, is_first = found.start(), line == 1 and not counted
        line += text.count("\n", counted, position)
        counted = position
        line_end = text.find("\n", position)
        line_end = len(text) if line_end < 0 else line_end
        try:
            if wasted > len(text):
                value, end = decoder.raw_decode(text[position:line_end])
                end += position
            else:
                value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            wasted += max(line_end, getattr(error, "pos", 0)) - position
            yield f"{name}:{line}", None
            position = line_end
            continue
        if is_first and isinstance(value, list) and not text[end:].strip():
            yield from ((f"{name}:{number}", each) for number, each in enumerate(value, 1))
        else:
            yield f"{name}:{line}", value
        position = end


_NOT_SPACE: Final = re.compile(r"[^\s,\x1e]")
"""The first character of a JSON document. RFC 7464 puts a record separator between documents."""


def parse_mem0(documents: Iterable[Document]) -> Iterator[SourceItem]:
    """Yield the rows of one or more responses of mem0 as items.

    If several rows have the same id, the newest counts, and the others are yielded as skipped.
    """
    rows: dict[str, tuple[str, str, SourceItem]] = {}
    for document in documents:
        text = _decode_document(document, MAX_JSON_BYTES)
        if isinstance(text, SourceItem):
            yield text
            continue
        for row_name, row in _read_mem0_rows(document.name, text):
            item, changed = _parse_mem0_row(row_name, row)
            key = str(row.get("id") or item.name) if isinstance(row, dict) else item.name
            if item.problem or item.skipped:
                yield item
                continue
            found = (changed, row_name, item)
            older, newer = sorted((rows.get(key, found), found), key=lambda each: each[0])
            rows[key] = newer
            if older[2].text != newer[2].text:
                yield replace(
                    older[2], name=older[1], skipped=f"replaced by {newer[1]}, which has the same id"
                )
    yield from (item for *_, item in rows.values())


def _read_mem0_rows(name: str, text: str) -> Iterator[tuple[str, Any]]:
    for row_name, row in read_json_rows(name, text):
        listed = (
            next((row[key] for key in _ROWS if isinstance(row.get(key), list)), None)
            if isinstance(row, dict)
            else None
        )
        if listed is None:
            yield row_name, row
        else:
            yield from ((f"{name}:{number}", each) for number, each in enumerate(listed, 1))


def _parse_mem0_row(name: str, row: object) -> tuple[SourceItem, str]:
    """Return the item of a mem0 row, skipped if the row is outdated, and the time of its last change."""
    if isinstance(row, str) and row.strip():
        return SourceItem(name, row), ""
    fact = (
        next((row[key] for key in _TEXTS if isinstance(row.get(key), str)), "")
        if isinstance(row, dict)
        else ""
    )
    if not isinstance(row, dict) or not fact.strip():
        return SourceItem(name, problem=_INVALID_JSON if row is None else "no text"), ""
    if row.get("replaced_by") or row.get("enabled") is False:
        return SourceItem(name, fact, skipped="marked as replaced or not enabled"), ""
    changed = row.get("updated_at") or row.get("created_at")
    keywords, expires = _clean_tags(row.get("categories")), _parse_day(row.get("expiration_date"))
    item_name = f"memory {clean_line(row['id'])}" if isinstance(row.get("id"), str) else name
    item = SourceItem(item_name, fact, keywords=keywords, expires=expires, when=_parse_day(changed))
    return item, changed if isinstance(changed, str) else ""


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


# -- ChatGPT -----------------------------------------------------------------------------------------

_CONVERSATIONS: Final = re.compile(r"(?:.*/)?conversations(?:-[0-9]+)?\.json")
_NUMBERED: Final = re.compile(r"\s*(?:[0-9]{1,4}[.)]|[-*+\u2022])?\s*(?:\[[0-9-]{10}\]\.?\s*)?")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
_SAVE_MARKERS: Final = (b'"bio"', b'"model_set_context"')
"""Bytes in every conversation in which ChatGPT saved a memory. Other conversations are not parsed."""


def parse_chatgpt(documents: Iterable[Document]) -> Iterator[SourceItem]:
    """Yield the saved memories of ChatGPT from an export, never other text of conversations.

    Saved memories are the messages to the tool `bio` in all branches of a conversation, and the lists of
    memories that a model received. An export does not show which of them the user deleted later. A text file
    is a list that the user copied from the settings of ChatGPT.
    """
    for document in documents:
        if not document.problem and _CONVERSATIONS.fullmatch(document.name):
            yield SourceItem(document.name, skipped="conversations; only saved memories are imported")
            yield from _parse_saved_memories(document)
        elif document.problem or is_text_name(document.name):
            yield from _make_parser(_parse_list, MAX_TEXT_BYTES)([document])
        elif document.name.rpartition("/")[2] == "memory.json":
            yield from parse_mem0([document])
        else:
            yield SourceItem(document.name, skipped=_OTHER_FILE)


def _parse_saved_memories(document: Document) -> Iterator[SourceItem]:
    number = 0
    try:
        for number, raw in enumerate(split_elements(document.blocks()), 1):
            if any(mark in raw for mark in _SAVE_MARKERS):
                yield from _parse_conversation(f"{document.name}:{number}", read_json_or_none(raw))
    except ValueError as problem:
        yield SourceItem(f"{document.name}:{number + 1}", problem=str(problem))


def _parse_conversation(name: str, conversation: object) -> Iterator[SourceItem]:
    mapping = conversation.get("mapping") if isinstance(conversation, dict) else None
    if not isinstance(mapping, dict):
        yield SourceItem(name, problem=_INVALID_JSON if conversation is None else "not a conversation")
        return
    for node in mapping.values():
        message = node.get("message") if isinstance(node, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(content, dict):
            continue
        author = message.get("author")
        is_model = isinstance(author, dict) and author.get("role") == "assistant"
        if isinstance(listed := content.get("model_set_context"), str):
            yield from _parse_list(name, listed)
        elif is_model and message.get("recipient") == "bio":
            text = "\n".join(part for part in _as_list(content.get("parts")) if isinstance(part, str))
            yield SourceItem(name, text, problem="" if text.strip() else "no text")


def _parse_list(name: str, text: str) -> Iterator[SourceItem]:
    for number, line in enumerate(text.splitlines(), 1):
        marker = _NUMBERED.match(line)
        fact = line[marker.end() if marker else 0 :].strip()
        if fact:
            day = _DAY.search(marker[0]) if marker else None
            yield SourceItem(f"{name}:{number}", fact, when=_parse_day(day and day[0]))


def split_elements(blocks: Iterable[bytes], limit: int = MAX_CONVERSATION_BYTES) -> Iterator[bytes]:
    """Yield the objects of a JSON array as bytes; only one of them is in memory at a time.

    Args:
        blocks: the bytes of the array, in blocks of any size.
        limit: the maximum number of bytes of one object.

    Raises:
        ValueError: the bytes are not an array of objects, end inside the array, or an object is too large.

    Cost: linear, except for strings that span many blocks. Objects are not parsed.
    """
    buffer, position, depth, start = b"", 0, _BEFORE_ARRAY, 0
    for block in blocks:
        buffer += block
        for token in _TOKEN.finditer(buffer, position):
            if token[0] == b'"':
                break  # A string that continues in the next block.
            position, before, depth = token.end(), depth, _compute_next_depth(token[0], depth)
            if (before, depth) == (1, 2):
                start = token.start()
            elif (before, depth) == (2, 1):
                yield buffer[start:position]
        buffer, position = (buffer[start:], position - start) if depth > 1 else (buffer[position:], 0)
        start = 0
        if len(buffer) > limit:
            raise ValueError(f"larger than {limit} bytes")
    if depth != 0:
        raise ValueError(_INVALID_JSON)


_BEFORE_ARRAY: Final = -1
"""The nesting depth before the array begins."""


def _compute_next_depth(token: bytes, depth: int) -> int:
    if depth == _BEFORE_ARRAY and token == b"[":
        return 1
    if token in {b"[", b"{"} and depth > 0:
        return depth + 1
    if token in {b"]", b"}"} and depth > 0:
        return depth - 1
    if token.startswith(b'"') and depth > 0:
        return depth
    raise ValueError(_OTHER_FILE)


# -- export ------------------------------------------------------------------------------------------


def parse_export(documents: Iterable[Document]) -> Iterator[SourceItem]:
    """Yield the entries of a Muniment export. The trust that an export states is only a claim."""
    trusts: Mapping[str, object] | None = None
    for document in documents:
        if document.problem or document.name.endswith(".jsonl"):
            yield from _make_parser(_parse_export_lines, MAX_JSON_BYTES)([document])
            continue
        try:
            data = document.data(MAX_JSON_BYTES if trusts is None else MAX_TEXT_BYTES)
        except ValueError as problem:
            yield SourceItem(document.name, problem=str(problem))
            continue
        if trusts is not None:
            yield _parse_exported_entry(document.name, document.name, data, trusts.get(document.name))
            continue
        header = read_json_or_none(data) if document.name == EXPORT_NAME else None
        if not isinstance(header, dict) or header.get("format") != EXPORT_FORMAT:
            yield SourceItem(document.name, problem="not an export of Muniment, or of a newer version")
            return
        trusts = entries if isinstance(entries := header.get("entries"), dict) else {}


def _parse_export_lines(name: str, text: str) -> Iterator[SourceItem]:
    head, *lines = text.split("\n")
    header = read_json_or_none(head)
    if not isinstance(header, dict) or header.get("format") != EXPORT_FORMAT:
        yield SourceItem(name, problem="not an export of Muniment, or of a newer version")
        return
    for number, line in enumerate(lines, 2):
        row = read_json_or_none(line) if line else {}
        row_name = f"{name}:{number}"
        if not isinstance(row, dict):
            yield SourceItem(row_name, problem=_INVALID_JSON)
        elif isinstance(path := row.get("path"), str) and isinstance(entry_text := row.get("text"), str):
            yield _parse_exported_entry(
                path, path, entry_text.encode("utf-8", "surrogatepass"), row.get("trust")
            )
        elif line:
            yield SourceItem(row_name, problem="no path or no text")


def _parse_exported_entry(name: str, path: str, data: bytes, claimed: object) -> SourceItem:
    trust = Trust(claimed) if isinstance(claimed, str) and claimed in set(Trust) else Trust.EXTERNAL
    return SourceItem(name, parse(data).body, path=path, entry=data, trust=trust)


# -- formats -----------------------------------------------------------------------------------------

FORMATS: Final[Mapping[str, Parser]] = MappingProxyType(
    {
        "markdown": parse_texts,
        "claude-code": parse_texts,
        "mcp-memory": _make_parser(_parse_mcp_memory, MAX_JSON_BYTES),
        "mem0": parse_mem0,
        "chatgpt": parse_chatgpt,
        "basic-memory": parse_texts,
        "muniment": parse_export,
    }
)


def detect_format(documents: Sequence[Document]) -> str | None:
    """Return the name of the format of a source, or None if it is unknown.

    Args:
        documents: the first documents of the source, at least one.
    """
    if documents[0].name == EXPORT_NAME or EXPORT_FORMAT.encode() in documents[0].head()[:200]:
        return "muniment"
    if any(_CONVERSATIONS.fullmatch(each.name) for each in documents):
        return "chatgpt"
    found = {_detect_text_format(each) for each in documents if is_text_name(each.name) and not each.problem}
    if found:
        return next((each for each in ("basic-memory", "claude-code") if each in found), "markdown")
    for each in documents:
        if (format_name := None if each.problem else _detect_json_format(each)) is not None:
            return format_name
    return None


def _detect_json_format(document: Document) -> str | None:
    head = document.head().decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    row = next(read_json_rows("", head.partition("\n")[0]), ("", None))[1]
    if isinstance(row, dict) and row.get("type") in ["entity", "relation"]:
        return "mcp-memory"
    if re.search(r'"(?:entities|entityType|relationType|observations)"\s*:', head):
        return "mcp-memory"
    if '"mapping"' in head:
        return "chatgpt"
    return "mem0" if re.search(r'"(?:memory|memories|results)"\s*:', head) else None


def _detect_text_format(document: Document) -> str:
    values = parse_text(document.head().decode("utf-8", "replace")).by_key
    if "permalink" in values:
        return "basic-memory"
    is_index = document.name.rpartition("/")[2] == INDEX_NAME
    return "claude-code" if is_index or _find_type(values) else "markdown"
