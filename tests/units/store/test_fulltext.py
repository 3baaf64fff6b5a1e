"""How text becomes words: asked of SQLite's own tables, and of text that is made to be slow."""

from __future__ import annotations

import sqlite3
import unicodedata

import pytest

from muniment.store import rows as fulltext
from muniment.store.rows import columns, folded
from muniment.store.state import CATALOG_SCHEMA

TEXTS = {
    "english": "The deployments were drained before the rollout of kube-proxy.",
    "german": "Die Straße nach Köln bleibt gesperrt.",
    "chinese": "下周去东京塔，预算是三千元。Python编程环境",  # noqa: RUF001
    "japanese": "来週は東京タワーに行きます。サーバーを再起動した。",
    "korean": "다음 주에 도쿄 타워에 갑니다.",
    "full width": "ＡＢＣ１２３　ｶﾀｶﾅ",  # noqa: RUF001
    "russian": "Сервер перезагружен в ПОЛНОЧЬ",
    "decomposed": unicodedata.normalize("NFD", "Café naïve 서울"),
}


@pytest.fixture(scope="module")
def table():
    connection = sqlite3.connect(":memory:")
    (create,) = (part for part in CATALOG_SCHEMA.split(";") if "VIRTUAL TABLE text" in part)
    connection.execute(create)
    for number, (name, text) in enumerate(TEXTS.items()):
        row = columns(f"topic-{number}/file_{number}.md", name, "", text, ())
        connection.execute(
            "INSERT INTO text (rowid, name, description, body, context) VALUES (?, ?, ?, ?, ?)",
            (number, *row),
        )
    yield connection
    connection.close()


def found(table, query):
    """Which texts hold every word of the query, folded as they are."""
    words = " ".join(f'"{word}"' for word in folded(query).split())
    rows = table.execute("SELECT rowid FROM text WHERE text MATCH ? ORDER BY rowid", (f"body : ({words})",))
    return [list(TEXTS)[number] for (number,) in rows]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("deployment drain", ["english"]),
        ("ROLLOUT", ["english"]),
        ("kube", ["english"]),
        ("STRASSE koln", ["german"]),
        ("东京塔", ["chinese"]),
        ("预算", ["chinese"]),
        ("python 编程", ["chinese"]),
        ("Python", ["chinese"]),
        ("東京タワー", ["japanese"]),
        ("ｻｰﾊﾞｰ", ["japanese"]),
        ("도쿄 타워", ["korean"]),
        ("abc123 カタカナ", ["full width"]),
        ("полночь", ["russian"]),
        ("cafe naive", ["decomposed"]),
        ("서울", ["decomposed"]),
        ("京塔京", []),
        ("nothing", []),
    ],
)
def test_every_language_is_found_however_it_is_written(table, query, expected):
    assert found(table, query) == expected


def test_no_more_comes_out_than_the_limit():
    assert len(folded("\ufb03" * 349_526)) == len(folded("x" * 2**21)) == fulltext.MAX_INDEXED_CHARS
    assert len(folded("中" * 1_000)) == 999 * 3 - 1 + 2
