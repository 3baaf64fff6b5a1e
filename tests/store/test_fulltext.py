"""How text becomes words: asked of SQLite's own tables, and of text that is made to be slow."""

from __future__ import annotations

import sqlite3
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_the_context_gathers_what_tells_the_subject():
    row = columns(
        "deploy/aws/kube_notes.md", "Na\u200bme\n of it", "About\tit", "the body", ("Helm", "東京塔")
    )
    assert row.context.split() == [
        "deploy/aws/kube_notes",
        "helm",
        "東京",
        "京塔",
        "name",
        "of",
        "it",
        "about",
        "it",
    ]
    assert (row.name, row.description, row.body) == (folded("Na\u200bme\n of it"), "about\tit", "the body")


def test_a_run_is_cut_into_pairs_and_stands_apart_from_other_words():
    assert folded("a東京塔b 中 x").split() == ["a", "東京", "京塔", "b", "中", "x"]
    assert folded("。・，") == "。・,"  # noqa: RUF001


@given(st.text(max_size=600))
def test_folding_twice_changes_nothing_but_what_is_paired_already(text):
    once = folded(text)
    assert once.encode("utf-8", "surrogatepass") == folded(text).encode("utf-8", "surrogatepass")
    if not fulltext._CJK.search(once):
        assert folded(once).split() == once.split()


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80))
def test_a_short_text_is_folded_as_a_whole(text):
    plain = unicodedata.normalize("NFKC", text.casefold())
    assert folded(text).split() == folded(plain).split()


@pytest.mark.parametrize("size", [255, 256, 257, 5_000])
def test_words_are_not_cut_where_pieces_meet(size):
    text = "é" * (size - 3) + " Wörter treffen sich hier"
    assert folded(text).split() == ["é" * (size - 3), "wörter", "treffen", "sich", "hier"]


def test_no_more_comes_out_than_the_limit():
    assert len(folded("\ufb03" * 349_526)) == len(folded("x" * 2**21)) == fulltext.MAX_INDEXED_CHARS
    assert len(folded("中" * 1_000)) == 999 * 3 - 1 + 2


@pytest.mark.parametrize(
    "text",
    [
        "x" + "\u0315\u0300" * 60_000,
        "\ufdfa" * 30_000,
        "中" * 120_000,
        "\u1e96" * 120_000,
        "x\u0345 " * 40_000,
    ],
)
def test_twice_as_much_text_takes_no_more_than_a_few_times_as_long(text):
    def cost(sample):
        began = time.process_time()
        folded(sample)
        return time.process_time() - began

    folded(text[:1_000])
    whole = min(cost(text) for _ in range(3))
    half = min(cost(text[: len(text) // 2]) for _ in range(3))
    assert whole < 5 * half + 0.05
    assert whole < 2
