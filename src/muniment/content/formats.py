"""What other memory tools keep, as items: parsers of their files. Pure, and nothing here is believed.

| format | its files | an item is |
|---|---|---|
| `markdown` | a tree of `.md` files | a file |
| `claude-code` | the auto memory of Claude Code, `~/.claude/projects/<project>/memory/` | a topic file |
| `mcp-memory` | `memory.jsonl` of `@modelcontextprotocol/server-memory` | an entity with what is said of it |
| `mem0` | the answer of `Memory.get_all()`, or of the platform's `/v3/memories/` | a row |
| `chatgpt` | `conversations.json` of an export; or saved memories as text, one a line | a saved memory |
| `basic-memory` | a vault of Basic Memory | a note |
| `muniment` | what `muniment export` writes | an entry, byte for byte |

Every text here is hostile: a file that is no such format, too deep or too long, gives an item with a
`problem`, never an error that ends the others. Memory and time are bounded by the limits below and by those
of whoever reads the files (`jobs/sources.py`).

Sources: code.claude.com/docs/en/memory; modelcontextprotocol/servers, src/memory; mem0ai/mem0,
mem0/memory/main.py and docs/openapi.json; basicmachines-co/basic-memory, docs/NOTE-FORMAT.md. OpenAI
documents no format: that of `chatgpt` is read from exports of 2025 and 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Any, Final, Protocol

from muniment.content.entry import TYPES, Entry, parse
from muniment.content.frontmatter import Field, read_list, read_scalar
from muniment.content.gates import one_line
from muniment.exact_json import json_or_none
from muniment.kernel.names import INDEX_NAME, Trust
from muniment.kernel.path import FILE_SUFFIX

MAX_TEXT_BYTES: Final = 1_048_576
"""Bytes of one markdown file that are read, as of any entry; one that is larger is refused."""

MAX_JSON_BYTES: Final = 67_108_864
"""Bytes of a JSON file that is read as a whole: some 300 000 facts."""

MAX_CONVERSATION_BYTES: Final = 33_554_432
"""Bytes of one conversation; a file of them may be as long as it likes, and is read one by one."""

EXPORT_NAME: Final = "muniment-export.json"
EXPORT_FORMAT: Final = "muniment-export/1"
"""The first member of an exported tar, and what it says of itself."""

_NO_JSON: Final = "it is no valid JSON"
_OTHER: Final = "it is no file of this format"


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One thing to be remembered, as its source has it.

    Attributes:
        name: which it is, for people who look for it in the source.
        text: what it says; of an `entry` its body.
        title: what it is called there; empty: it is not.
        description: likewise, one line.
        type: one of `content.entry.TYPES`, or None.
        keywords: its tags.
        expires, ends: as of `content.entry.Entry`; empty: it lasts.
        path: of its file in the source, `/`-separated; empty: it has none of its own.
        when: the day on which it was made or changed there, as far as the source tells; proves nothing.
        problem: why it cannot be imported; empty: nothing is known against it.
        entry: of an export, the whole file that is to stand at `path` again.
        trust: of an export, what it says of itself.
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
    entry: bytes | None = None
    trust: Trust = Trust.EXTERNAL


class Document(Protocol):
    """A file of a source; it can be read once."""

    @property
    def name(self) -> str:
        """Its path in the source, `/`-separated; may hold anything."""

    @property
    def problem(self) -> str:
        """Why it cannot be read; empty: it can."""

    def head(self) -> bytes:
        """Some of its first bytes, which are read again afterwards."""

    def data(self, limit: int) -> bytes:
        """All of it.

        Raises:
            ValueError: it holds more than `limit` bytes, or cannot be read; says which.
        """

    def blocks(self) -> Iterator[bytes]:
        """Its bytes one block after the other.

        Raises:
            ValueError: it cannot be read; says why.
        """


Parser = Callable[[Iterable[Document]], Iterator[SourceItem]]


def _each(parse_text: Callable[[str, str], Iterator[SourceItem]], limit: int, suffix: str = "") -> Parser:
    """Takes documents one by one, by name and text, but for readable ones of another suffix."""

    def parser(documents: Iterable[Document]) -> Iterator[SourceItem]:
        for document in documents:
            if document.problem or document.name.endswith(suffix):
                text = _read(document, limit)
                yield from [text] if isinstance(text, SourceItem) else parse_text(document.name, text)

    return parser


def _read(document: Document, limit: int) -> str | SourceItem:
    """The text of a document, without a byte order mark; or the item that says why there is none."""
    if document.problem:
        return SourceItem(document.name, problem=document.problem)
    try:
        data = document.data(limit)
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        return SourceItem(document.name, problem="it is not UTF-8 text")
    except ValueError as problem:
        return SourceItem(document.name, problem=str(problem))


# -- markdown ----------------------------------------------------------------------------------------

_INDEX_LINE: Final = re.compile(r"\s*(?:#.*|[-*+]\s*\[[^\]]*\]\([^)]*\).*|)")
_METADATA_TYPE: Final = re.compile(r"\s+type:\s*[\"']?([a-z]+)[\"']?\s*")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_Fields = Mapping[str, Field]


def _markdown(name: str, text: str) -> Iterator[SourceItem]:
    """Files as they are, with the keys of their front matter that an entry has.

    `MEMORY.md` is passed over where it is an index: nothing but headings and lines that begin with a link.
    """
    entry, fields = _entry(text)
    is_index = name.rpartition("/")[2] == INDEX_NAME
    if is_index and all(map(_INDEX_LINE.fullmatch, entry.body.splitlines())):
        return
    yield SourceItem(
        name,
        entry.body,
        title=entry.name or "",
        description=entry.description or "",
        type=entry.type or _metadata_type(fields),
        keywords=entry.keywords,
        expires=entry.expires or "",
        ends="" if entry.ends is None else str(entry.ends),
        path="" if is_index else name,
        when=_day(_scalar(fields, "modified")),
    )


def _basic_memory(name: str, text: str) -> Iterator[SourceItem]:
    """Notes whole, with their observations and relations as the lists that they are; tags are keywords."""
    entry, fields = _entry(text.replace("\0", ""))
    yield SourceItem(
        name,
        entry.body,
        title=_scalar(fields, "title") or name.rpartition("/")[2].removesuffix(FILE_SUFFIX),
        keywords=_tags(fields.get("tags")),
        path=name,
        when=_day(_scalar(fields, "modified") or _scalar(fields, "created")),
    )


def _entry(text: str) -> tuple[Entry, _Fields]:
    entry = parse(text)
    fields: dict[str, Field] = {}
    for field in entry.front.fields if entry.front is not None else ():
        if field.key is not None:
            fields.setdefault(field.key, field)
    return entry, fields


def _scalar(fields: _Fields, key: str) -> str:
    with suppress(ValueError):
        if key in fields:
            return (read_scalar(fields[key].first, fields[key].rest) or "").strip()
    return ""


def _metadata_type(fields: _Fields) -> str | None:
    """The type that newer versions of Claude Code put below `metadata`."""
    lines = fields["metadata"].rest if "metadata" in fields else ()
    found = next((match[1] for line in lines if (match := _METADATA_TYPE.fullmatch(line))), None)
    return found if found in TYPES else None


def _tags(field: Field | None) -> tuple[str, ...]:
    if field is None:
        return ()
    with suppress(ValueError):
        return _words(read_list(field.first, field.rest))
    with suppress(ValueError):
        return _words((read_scalar(field.first, field.rest) or "").split(","))
    return ()


def _words(tags: object) -> tuple[str, ...]:
    found = tags if isinstance(tags, list | tuple) else ()
    return tuple(word for tag in found if isinstance(tag, str) and (word := tag.strip().lstrip("#")))


def _day(when: object) -> str:
    """The day that a time begins with; empty where it is none."""
    found = _DAY.match(when) if isinstance(when, str) else None
    with suppress(ValueError):
        return str(date.fromisoformat(found[0])) if found else ""
    return ""


# -- JSON --------------------------------------------------------------------------------------------

_ROWS: Final = ("results", "memories", "data")
"""Under which of these an answer of mem0 has its rows."""

_TEXTS: Final = ("memory", "content", "text")


def _mcp_memory(name: str, text: str) -> Iterator[SourceItem]:
    """Entities, one a line, or the answer of `read_graph`; a relation is told with the entity it is from."""
    kinds: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    for where, row in _graph(name, text):
        if isinstance(row, SourceItem):
            yield row
            continue
        subject = row.get("name", row.get("entityName", row.get("from")))
        relation, target = row.get("relationType"), row.get("to")
        observations = row.get("observations", [])
        if isinstance(subject, str) and isinstance(relation, str) and isinstance(target, str):
            said.setdefault(subject, []).append(f"{relation} {target}")
        elif isinstance(subject, str) and isinstance(observations, list):
            kinds[subject] = kind if isinstance(kind := row.get("entityType"), str) else ""
            said.setdefault(subject, []).extend(each for each in observations if isinstance(each, str))
        else:
            yield SourceItem(where, problem="it is neither an entity nor a relation")
    for subject, lines in said.items():
        items = "\n".join(f"- {one_line(line)}" for line in dict.fromkeys(lines))
        title = one_line(subject)
        kind = f" ({one_line(kinds[subject])})" if kinds.get(subject) else ""
        problem = "" if items else "nothing is said of it"
        yield SourceItem(f"entity {title}", f"{title}{kind}\n\n{items}", title=title, problem=problem)


def _graph(name: str, text: str) -> Iterator[tuple[str, dict[str, Any] | SourceItem]]:
    whole = json_or_none(text) if '"entities"' in text[:1_000] else None
    if isinstance(whole, dict):
        rows = [*_list(whole.get("entities")), *_list(whole.get("relations"))]
        numbered: Iterable[tuple[int, object]] = enumerate(rows, 1)
    else:
        lines = enumerate(text.split("\n"), 1)
        numbered = ((number, json_or_none(line)) for number, line in lines if line.strip())
    for number, row in numbered:
        where = f"{name}:{number}"
        if not isinstance(row, dict):
            yield where, SourceItem(where, problem=_NO_JSON)
        elif row.get("type") in ["entity", "relation", None]:
            yield where, row


def mem0(documents: Iterable[Document]) -> Iterator[SourceItem]:
    """Rows of one or several answers; of one id the newest counts, and what was replaced is passed over."""
    rows: dict[str, tuple[str, SourceItem]] = {}
    for document in documents:
        text = _read(document, MAX_JSON_BYTES)
        found = text if isinstance(text, SourceItem) else _rows_of(json_or_none(text))
        if isinstance(found, SourceItem) or found is None:
            yield found or SourceItem(document.name, problem=_OTHER)
            continue
        for number, row in enumerate(found, 1):
            item, changed = _row(f"{document.name}:{number}", row)
            key = str(row.get("id") or item.name) if isinstance(row, dict) else item.name
            if item.problem:
                yield item
            elif item.text:
                rows[key] = max(rows.get(key, ("", item)), (changed, item), key=lambda each: each[0])
    yield from (item for _, item in rows.values())


def _rows_of(value: object) -> list[Any] | None:
    if isinstance(value, dict):
        value = next((value[key] for key in _ROWS if isinstance(value.get(key), list)), None)
    return value if isinstance(value, list) else None


def _row(name: str, row: object) -> tuple[SourceItem, str]:
    """A row as an item, without text where it is outdated; and when it was changed last."""
    said = row.get(next((key for key in _TEXTS if key in row), "")) if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(said, str) or not said.strip():
        return SourceItem(name, problem="it has no text"), ""
    if row.get("replaced_by") or row.get("enabled") is False:
        return SourceItem(name), ""
    changed = row.get("updated_at") or row.get("created_at")
    keywords, expires = _words(row.get("categories")), _day(row.get("expiration_date"))
    named = f"memory {one_line(row['id'])}" if isinstance(row.get("id"), str) else name
    item = SourceItem(named, said, keywords=keywords, expires=expires, when=_day(changed))
    return item, changed if isinstance(changed, str) else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


# -- ChatGPT -----------------------------------------------------------------------------------------

_CONVERSATIONS: Final = re.compile(r"(?:.*/)?conversations(?:-[0-9]+)?\.json")
_NUMBERED: Final = re.compile(r"\s*(?:[0-9]{1,4}[.)]|[-*+\u2022])?\s*(?:\[[0-9-]{10}\]\.?\s*)?")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
_SAVES: Final = (b'"bio"', b'"model_set_context"')
"""What stands in every conversation in which something was saved; the others are not taken apart."""


def chatgpt(documents: Iterable[Document]) -> Iterator[SourceItem]:
    """What ChatGPT saved to its memory, as far as an export tells: never what was said in conversations.

    That is every message to the tool `bio`, in all branches, and the lists that a model was shown of it. No
    export tells what was deleted there since. A `.txt` or `.md` file is such a list, copied from settings.
    """
    for document in documents:
        if not document.problem and _CONVERSATIONS.fullmatch(document.name):
            yield from _saved(document)
        elif document.problem or document.name.endswith((".txt", FILE_SUFFIX)):
            yield from _each(_listed, MAX_TEXT_BYTES)([document])
        elif document.name.rpartition("/")[2] == "memory.json":
            yield from mem0([document])


def _saved(document: Document) -> Iterator[SourceItem]:
    number = 0
    try:
        for number, raw in enumerate(elements(document.blocks()), 1):
            if any(mark in raw for mark in _SAVES):
                yield from _of_conversation(f"{document.name}:{number}", json_or_none(raw))
    except ValueError as problem:
        yield SourceItem(f"{document.name}:{number + 1}", problem=str(problem))


def _of_conversation(name: str, conversation: object) -> Iterator[SourceItem]:
    mapping = conversation.get("mapping") if isinstance(conversation, dict) else None
    if not isinstance(mapping, dict):
        yield SourceItem(name, problem=_NO_JSON if conversation is None else "it is no conversation")
        return
    for node in mapping.values():
        message = node.get("message") if isinstance(node, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(content, dict):
            continue
        author = message.get("author")
        is_model = isinstance(author, dict) and author.get("role") == "assistant"
        if isinstance(listed := content.get("model_set_context"), str):
            yield from _listed(name, listed)
        elif is_model and message.get("recipient") == "bio":
            text = "\n".join(part for part in _list(content.get("parts")) if isinstance(part, str))
            yield SourceItem(name, text, problem="" if text.strip() else "it has no text")


def _listed(name: str, text: str) -> Iterator[SourceItem]:
    for number, line in enumerate(text.splitlines(), 1):
        if said := _NUMBERED.sub("", line, count=1).strip():
            yield SourceItem(f"{name}:{number}", said)


def elements(blocks: Iterable[bytes], limit: int = MAX_CONVERSATION_BYTES) -> Iterator[bytes]:
    """The objects of a JSON array, as their bytes, without holding more than one of them.

    Raises:
        ValueError: it is no array of objects, ends within one, or one holds more than `limit` bytes.

    Cost: linear but for strings of many blocks; nothing is taken apart.
    """
    held, at, depth, start = b"", 0, _BEFORE, 0
    for block in blocks:
        held += block
        for token in _TOKEN.finditer(held, at):
            if token[0] == b'"':
                break  # A string that goes on in the next block.
            at, before, depth = token.end(), depth, _depth_behind(token[0], depth)
            if (before, depth) == (1, 2):
                start = token.start()
            elif (before, depth) == (2, 1):
                yield held[start:at]
        held, at = (held[start:], at - start) if depth > 1 else (held[at:], 0)
        start = 0
        if len(held) > limit:
            raise ValueError(f"it holds more than {limit} bytes")
    if depth != 0:
        raise ValueError(_NO_JSON)


_BEFORE: Final = -1
"""The depth before the array."""


def _depth_behind(mark: bytes, depth: int) -> int:
    if depth == _BEFORE and mark == b"[":
        return 1
    if mark in {b"[", b"{"} and depth > 0:
        return depth + 1
    if mark in {b"]", b"}"} and depth > 0:
        return depth - 1
    if mark.startswith(b'"') and depth > 0:
        return depth
    raise ValueError(_OTHER)


# -- export ------------------------------------------------------------------------------------------


def exported(documents: Iterable[Document]) -> Iterator[SourceItem]:
    """Entries of an export; what it says of their trust is a claim."""
    trusts: Mapping[str, object] | None = None
    for document in documents:
        if document.problem or document.name.endswith(".jsonl"):
            yield from _each(_lines_of_export, MAX_JSON_BYTES)([document])
            continue
        try:
            data = document.data(MAX_JSON_BYTES if trusts is None else MAX_TEXT_BYTES)
        except ValueError as problem:
            yield SourceItem(document.name, problem=str(problem))
            continue
        if trusts is not None:
            yield _exported(document.name, document.name, data, trusts.get(document.name))
            continue
        told = json_or_none(data) if document.name == EXPORT_NAME else None
        if not isinstance(told, dict) or told.get("format") != EXPORT_FORMAT:
            yield SourceItem(document.name, problem="it is no export of this version")
            return
        trusts = entries if isinstance(entries := told.get("entries"), dict) else {}


def _lines_of_export(name: str, text: str) -> Iterator[SourceItem]:
    head, *lines = text.split("\n")
    told = json_or_none(head)
    if not isinstance(told, dict) or told.get("format") != EXPORT_FORMAT:
        yield SourceItem(name, problem="it is no export of this version")
        return
    for number, line in enumerate(lines, 2):
        row = json_or_none(line) if line else {}
        where = f"{name}:{number}"
        if not isinstance(row, dict):
            yield SourceItem(where, problem=_NO_JSON)
        elif isinstance(path := row.get("path"), str) and isinstance(said := row.get("text"), str):
            yield _exported(path, path, said.encode("utf-8", "surrogatepass"), row.get("trust"))
        elif line:
            yield SourceItem(where, problem="it has no path or no text")


def _exported(name: str, path: str, data: bytes, claimed: object) -> SourceItem:
    trust = Trust(claimed) if isinstance(claimed, str) and claimed in set(Trust) else Trust.EXTERNAL
    return SourceItem(name, parse(data).body, path=path, entry=data, trust=trust)


# -- formats -----------------------------------------------------------------------------------------

FORMATS: Final[Mapping[str, Parser]] = MappingProxyType(
    {
        "markdown": _each(_markdown, MAX_TEXT_BYTES, FILE_SUFFIX),
        "claude-code": _each(_markdown, MAX_TEXT_BYTES, FILE_SUFFIX),
        "mcp-memory": _each(_mcp_memory, MAX_JSON_BYTES),
        "mem0": mem0,
        "chatgpt": chatgpt,
        "basic-memory": _each(_basic_memory, MAX_TEXT_BYTES, FILE_SUFFIX),
        "muniment": exported,
    }
)


def recognised(documents: Sequence[Document]) -> str | None:
    """Which format the first documents of a source, at least one, are of; None: nobody can tell."""
    if documents[0].name == EXPORT_NAME or EXPORT_FORMAT.encode() in documents[0].head()[:200]:
        return "muniment"
    if any(_CONVERSATIONS.fullmatch(each.name) for each in documents):
        return "chatgpt"
    texts = [each for each in documents if each.name.endswith(FILE_SUFFIX) and not each.problem]
    if texts:
        found = {_recognised_text(each) for each in texts}
        return next((each for each in ("basic-memory", "claude-code") if each in found), "markdown")
    for each in documents:
        head = b"" if each.problem else each.head().removeprefix(b"\xef\xbb\xbf").lstrip()
        if b'"entities"' in head or re.match(rb'\{\s*"type"\s*:\s*"(?:entity|relation)"', head):
            return "mcp-memory"
        if b'"mapping"' in head:
            return "chatgpt"
        if re.search(rb'"(?:memory|memories|results)"\s*:', head):
            return "mem0"
    return None


def _recognised_text(document: Document) -> str:
    entry, fields = _entry(document.head().decode("utf-8", "replace"))
    if "permalink" in fields:
        return "basic-memory"
    is_index = document.name.rpartition("/")[2] == INDEX_NAME
    return "claude-code" if is_index or entry.type or _metadata_type(fields) else "markdown"
