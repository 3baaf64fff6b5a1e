"""The catalog row of an entry, computed from its bytes and from the caller's assessment of the bytes.

Pure, except for `insert_texts` and `delete_texts`.

For an entry that is withheld or unreadable, a row contains only path, size and digest. Text, name,
description and keywords are in no column, so that no reader of rows can disclose them.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from muniment.content.entry import parse
from muniment.content.gates import clean_line
from muniment.content.words import list_statements, separate_words
from muniment.kernel.change import digest
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.store.handles import read_handle
from muniment.store.index import IndexRow, format_entry_line
from muniment.store.table import Table

# -- irregular verbs ---------------------------------------------------------------------------------
#
# Irregular verbs of English, which no stemmer knows: each verb with its forms. Data.
#
# Forms that are more often another word are omitted: `left`, `saw`, `ground`, `bit`, `bound`, `led`, `rose`.

_VERBS: Final = """
arise arose arisen; awake awoke awoken; beat beaten; become became; begin began begun; bend bent; bite
bitten; bleed bled; blow blew blown; break broke broken; bring brought; build built; burn burnt; buy
bought; catch caught; choose chose chosen; cling clung; come came; creep crept; deal dealt; dig dug; draw
drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate eaten; fall fell fallen; feed
fed; feel felt; fight fought; find found; flee fled; fly flew flown; forbid forbade forbidden; forget
forgot forgotten; forgive forgave forgiven; freeze froze frozen; get got gotten; give gave given; go went
gone; grow grew grown; hang hung; hear heard; hide hidden; hold held; keep kept; kneel knelt; know knew
known; learn learnt; lend lent; lose lost; make made; mean meant; meet met; mistake mistook mistaken;
overcome overcame; oversee oversaw overseen; overtake overtook overtaken; pay paid; prove proven; ride
rode ridden; ring rang rung; rise risen; run ran; say said; see seen; seek sought; sell sold; send sent;
sew sewn; shake shook shaken; shine shone; show shown; shrink shrank shrunk; sing sang sung; sink sank
sunk; sit sat; sleep slept; slide slid; speak spoke spoken; spend spent; spin spun; stand stood; steal
stole stolen; stick stuck; strike struck stricken; strive strove striven; swear swore sworn;
sweep swept; swell swollen; swim swam swum; swing swung; take took taken; teach taught; tear tore torn;
tell told; think thought; throw threw thrown; undergo underwent undergone; understand understood;
undertake undertook undertaken; undo undid undone; uphold upheld; wake woke woken; wear wore worn; weave
wove woven; weep wept; win won; withdraw withdrew withdrawn; withhold withheld; withstand withstood; write
wrote written
"""
IRREGULAR: Final = {
    form: verb for verb, *forms in (line.split() for line in _VERBS.split(";")) for form in forms
}


# -- full text ---------------------------------------------------------------------------------------
#
# The four columns of an entry's full-text row, and the normalisation of their text.
#
# Pure. A query passes through `normalize_for_index` also, so that both sides agree:
#
# - F1. Differences of compatibility and case are removed (NFKC, casefold). The tokenizer of the table,
#   `porter unicode61`, then splits words and removes accents and endings.
# - F2. All forms of an irregular English verb are one word: `kept` becomes `keep`, as `keeps` does by its
#   ending.
# - F3. Chinese, Japanese and Korean, which use few spaces or none, are split into every pair of neighbouring
#   characters. Two or more characters are found anywhere in a text. A single character is found only if it is
#   isolated. Other scripts without spaces are separated from neighbouring words of letters.
# - F4. Time and space are linear, also for text that is designed to normalise slowly or to expand. The result
#   has at most `MAX_INDEXED_CHARS` characters before pairing. No character is normalised together with more
#   than `_PIECE_CHARS` others.
#
# Not guaranteed: that a word longer than `_PIECE_CHARS` is found complete.
#
# Attacked in tests/units/store/test_fulltext.py.
# Source: UAX #15, 13 (Stream-Safe Text Format), for the reason to cut long runs of marks.

MAX_INDEXED_CHARS: Final = 1 << 20
"""Maximum characters of a full-text column: the size of the largest file.

Text is cut only if one character becomes many when it is folded (U+FDFA becomes 18).
"""

_PIECE_CHARS: Final = 256
# As much as fits up to the end of a word; inside an endless word, as much as fits.
_PIECE: Final = re.compile(rf".{{1,{_PIECE_CHARS}}}(?!\S)|.{{1,{_PIECE_CHARS}}}", re.DOTALL)

_WORD: Final = re.compile(r"(?<![^\W_])[a-z]{3,10}(?![^\W_])")

_CJK: Final = re.compile(
    "["
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"  # Han
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "]+"
)


def digest_statement(statement: str) -> str:
    """Return the key of a statement in the catalog: 32 hexadecimal digits of its digest."""
    return digest(statement.encode("utf-8", "surrogatepass"))[:32]


class Columns(NamedTuple):
    """The four columns of an entry's full-text row; see `build_columns`."""

    name: str
    description: str
    body: str
    context: str


def build_columns(rel: str, name: str, description: str, body: str, keywords: Sequence[str]) -> Columns:
    """Return the full-text columns of an entry, one for each part of the entry.

    The last column, `context`, contains words that state the subject of the entry: the names of its folders
    and file, its keywords, and the text of its line in the index.

    Args:
        rel: canonical path inside the scope.
        name: the name, not cleaned.
        description: the description, not cleaned.
        body: the text after the front matter.
        keywords: keywords in the front matter.
    """
    context = "\n".join([rel.removesuffix(FILE_SUFFIX), *keywords, clean_line(name), clean_line(description)])
    return Columns(
        normalize_for_index(name),
        normalize_for_index(description),
        normalize_for_index(body),
        normalize_for_index(context),
    )


def normalize_for_index(text: str) -> str:
    """Return `text` in the form in which it is indexed and queried, cut to `MAX_INDEXED_CHARS`."""
    if text.isascii():
        return _WORD.sub(_replace_irregular_form, text[:MAX_INDEXED_CHARS].lower())
    pieces: list[str] = []
    remaining = MAX_INDEXED_CHARS
    for piece in _PIECE.finditer(text):
        pieces.append(fold(piece[0])[:remaining])
        remaining -= len(pieces[-1])
        if not remaining:
            break
    return _WORD.sub(_replace_irregular_form, _CJK.sub(_split_into_pairs, separate_words("".join(pieces))))


def _replace_irregular_form(word: re.Match[str]) -> str:
    """Return the verb of which a word is an irregular form, or the word itself."""
    return IRREGULAR.get(word[0], word[0])


def _split_into_pairs(run: re.Match[str]) -> str:
    """Return every pair of neighbouring characters of the matched text, separated by spaces."""
    text = run[0]
    return f" {' '.join(map(''.join, pairwise(text))) or text} "


# -- rows --------------------------------------------------------------------------------------------


_IDENTIFIER: Final = re.compile("[0-9A-Za-z]{1,64}")
"""Pattern of an id or a digest of an entry."""

_MAX_IDENTIFIERS: Final = 8

_TIME: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


class Assessment(NamedTuple):
    """The assessment of a file by a caller that knows the ledger and the content checks.

    Attributes:
        trust: trust of the file.
        expires: expiry date as in `content.entry.Entry`, or a time; None if the entry never expires.
        held: name of the check that withholds the text from models; None if the text may be shown.
        mixed: whether the text has sentences of the owner and sentences of others.
    """

    trust: Trust
    expires: str | None = None
    held: str | None = None
    mixed: bool = False


AssessFile = Callable[[RelPath, Digest, bytes], Assessment]
"""Returns the assessment of a file; called once for each file that is read, with path, digest and bytes."""


class Embedder(Protocol):
    """Computes vectors, which find entries that share no word with a question (`recall.semantic_search`)."""

    @property
    def identity(self) -> str:
        """Return the id of the embedding model; vectors of different models cannot be compared."""

    def compute_vector(self, columns: Columns) -> bytes | None:
        """Return the vector of an entry with these columns; None if the model knows none of their words."""


class Row(NamedTuple):
    """The columns of an entry in the order of the table `entry`, without the stamp of its file."""

    rel: str
    topic: str
    key: str
    sort: str
    digest: str
    name: str
    description: str
    type: str | None
    keywords: str
    trust: str
    expires: str | None
    ends: str | None
    ident: str | None
    handle: str
    updated: str
    sees: str
    readable: int
    held: str | None
    mixed: int
    note: str
    line: str
    line_bytes: int


class Text(NamedTuple):
    """The text of an entry that is not withheld, in the forms that the catalog stores.

    Attributes:
        columns: the full-text columns.
        statement_digests: digests of the statements in the body.
        vector: vector of the entry; None without an embedder, or if the embedder knows none of the words.
    """

    columns: Columns
    statement_digests: tuple[str, ...]
    vector: bytes | None


def build_entry_row(
    scope: Scope, rel: RelPath, data: bytes, digest: Digest, assessed: Assessment, embedder: Embedder | None
) -> tuple[Row, Text | None]:
    """Return the row of an entry that was read; and its text, or None if the entry is withheld.

    Args:
        scope: scope of the entry.
        rel: path of the entry.
        data: bytes of the file.
        digest: digest of the bytes.
        assessed: trust, expiry and withholding of the file.
        embedder: computes the vector of the entry; None: no vector.
    """
    from muniment.content.titles import read_current_titles

    if assessed.held is not None:
        return _build_bare_row(rel, digest, assessed, ""), None
    entry = parse(data)
    titles = read_current_titles(entry, rel)
    row = _build_row(
        IndexRow(rel, titles.name, titles.description, assessed.trust),
        digest,
        assessed,
        entry.type,
        entry.keywords,
        "; ".join(entry.notes),
        entry.muniment or {},
        None if entry.ends is None else str(entry.ends),
    )
    text_columns = build_columns(rel, titles.name, titles.description, entry.body, entry.keywords)
    vector = None if embedder is None else embedder.compute_vector(text_columns)
    row = row._replace(handle=read_handle(entry, CanonicalPath(scope, rel)))
    return row, Text(text_columns, tuple(map(digest_statement, list_statements(entry.body))), vector)


class _FullTextRow(NamedTuple):
    """The full-text row of an entry; `rowid` is the number of the entry."""

    rowid: int
    columns: Columns


class _StatementRow(NamedTuple):
    """A statement in the body of an entry."""

    digest: str
    entry: int


class _VectorRow(NamedTuple):
    """The vector of an entry."""

    entry: int
    value: bytes


_FULL_TEXT: Final = Table("text", _FullTextRow)
_STATEMENTS: Final = Table("saying", _StatementRow)
_VECTORS: Final = Table("vector", _VectorRow)
_DROP: Final = (
    "DELETE FROM text WHERE rowid = ?",
    "DELETE FROM saying WHERE entry = ?",
    "DELETE FROM vector WHERE entry = ?",
)


def insert_texts(connection: sqlite3.Connection, texts: Collection[tuple[int, Text]]) -> None:
    """Insert the texts of entries into the full-text, statement and vector tables.

    Args:
        connection: an open transaction of the catalog.
        texts: for each entry, its number and its text.
    """
    _FULL_TEXT.insert(connection, [_FullTextRow(number, text.columns) for number, text in texts])
    _STATEMENTS.insert(
        connection, [_StatementRow(each, number) for number, text in texts for each in text.statement_digests]
    )
    vectors = [(number, text.vector) for number, text in texts]
    _VECTORS.insert(connection, [_VectorRow(number, each) for number, each in vectors if each is not None])


def delete_texts(connection: sqlite3.Connection, entries: Collection[tuple[int]]) -> None:
    """Delete the texts of entries, given the numbers of the entries."""
    for statement in _DROP:
        connection.executemany(statement, entries)


def build_unreadable_row(rel: RelPath, note: str) -> Row:
    """Return the row of an unreadable entry. Its author is unknown, so it has the lowest trust.

    Args:
        rel: path of the entry.
        note: why the file cannot be read.
    """
    from muniment.content.admission import NAME_GATE, find_name_gate

    is_withheld = find_name_gate(rel, Trust.EXTERNAL) is not None
    return _build_bare_row(
        rel, None, Assessment(Trust.EXTERNAL, held=NAME_GATE if is_withheld else None), note
    )


def _parse_names(value: object) -> Iterator[str]:
    """Yield the valid ids and digests in a value of the front matter, which is one of them or a list."""
    listed = value[:_MAX_IDENTIFIERS] if isinstance(value, list | tuple) else [value]
    return (each for each in listed if isinstance(each, str) and _IDENTIFIER.fullmatch(each))


def _parse_time(value: object) -> str:
    """Return a time in the front matter; empty if it does not have the format that Muniment writes."""
    return value if isinstance(value, str) and _TIME.fullmatch(value) else ""


def _build_bare_row(rel: RelPath, digest: Digest | None, assessed: Assessment, note: str) -> Row:
    from muniment.content.admission import NAME_GATE

    stem = rel.rpartition("/")[2].removesuffix(FILE_SUFFIX)
    index = IndexRow(
        rel, stem, "", assessed.trust, is_readable=digest is not None, is_withheld=assessed.held is not None
    )
    row = _build_row(index, digest, assessed, None, (), note)
    if assessed.held == NAME_GATE:
        return row._replace(line="", line_bytes=0)  # The line would contain the name.
    return row


def _build_row(
    index: IndexRow,
    file_digest: Digest | None,
    assessed: Assessment,
    type_: str | None,
    keywords: tuple[str, ...],
    note: str,
    provenance: Mapping[str, object] = MappingProxyType({}),
    ends: str | None = None,
) -> Row:
    line = format_entry_line(index)
    return Row(
        rel=index.rel,
        topic=index.rel.rpartition("/")[0],
        key=digest(index.rel.encode()),
        sort=fold(index.rel),
        digest=file_digest or "",
        name=index.name,
        description=index.description,
        type=type_,
        keywords=json.dumps(keywords),
        trust=assessed.trust,
        expires=assessed.expires,
        ends=ends,
        ident=next(_parse_names(provenance.get("id")), None),
        handle="",  # An unreadable or withheld entry has no handle, so none confirms that it exists.
        updated=_parse_time(provenance.get("updated")),
        sees=" ".join(name for key in ("supersedes", "see") for name in _parse_names(provenance.get(key))),
        readable=int(index.is_readable),
        held=assessed.held,
        mixed=int(assessed.mixed),
        note=note,
        line=line,
        line_bytes=len(line.encode()),
    )
