"""How text becomes words, and that their rows narrow a search without loss."""

from __future__ import annotations

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.memories import write_file
from kit.operations.contexts import create_context
from muniment.content.words import build_vocabulary, find_significant_words
from muniment.recall.description_search import find_candidates
from muniment.store import rows
from muniment.store.rows import normalize_for_index
from muniment.store.upkeep import open_view

TEXTS = {
    "english": "The deployments were drained before the rollout of kube-proxy. The user prefers dark mode.",
    "german": "Die Straße nach Köln bleibt gesperrt.",
    "chinese": "下周去东京塔，预算是三千元。Python编程环境 用户喜欢使用深色模式 with TypeScript",  # noqa: RUF001
    "japanese": "来週は東京タワーに行きます。サーバーを再起動した。",
    "korean": "다음 주에 도쿄 타워에 갑니다.",
    "full": "ＡＢＣ１２３　ｶﾀｶﾅ",  # noqa: RUF001
    "russian": "Сервер перезагружен в ПОЛНОЧЬ",
    "decomposed": unicodedata.normalize("NFD", "Café naïve 서울"),
    "topic/front": "---\nname: Dark things\ndescription: what is dark\nkeywords: [night]\n---\nmode\n",
    "thai": "ผู้ใช้ชอบโหมดมืด",
}
FOUND = {
    "english": ("deployment drain", "ROLLOUT", "kube", "dark mode"),
    "german": ("STRASSE koln",),
    "chinese": ("东京塔", "预算", "python 编程", "Python", "深色模式", "深色 typescript"),
    "japanese": ("東京タワー", "ｻｰﾊﾞｰ"),
    "korean": ("도쿄 타워",),
    "full": ("abc123 カタカナ",),
    "russian": ("полночь",),
    "decomposed": ("cafe naive", "서울"),
    "topic/front": ("night", "dark mode"),
    "": ("京塔京", "nothing"),
}


def find_rows(place, query):
    view = open_view(place.state, place.roots["user"], place.policy, sweep=True)
    return find_candidates(place.state, view, find_significant_words(query))


def test_rows_find_words_in_every_language_and_spelling(tmp_path):
    with create_context(tmp_path) as place:
        for name, text in TEXTS.items():
            write_file(place.roots["user"].trusted_path, f"{name}.md", text)
        for query in {query for queries in FOUND.values() for query in queries}:
            expected = {f"{name}.md" for name, queries in FOUND.items() if name and query in queries}
            assert find_rows(place, query) == expected, query
            words = " ".join(f'"{word}"' for word in normalize_for_index(query).split())
            found = "SELECT rel FROM text JOIN entry ON entry.id = text.rowid WHERE text MATCH ?"
            assert {rel for (rel,) in place.state.catalog.rows(found, (words,))} == expected, query
        for query in ("โหมดมืด", "x" * 200, "ꓘꓳ"):  # The tokenizer may split these words differently.
            assert find_rows(place, query) is None
            assert find_rows(place, f"{query} unheard") == frozenset()


def test_indexed_text_is_bounded():
    assert (
        len(normalize_for_index("\ufb03" * 349_526))
        == len(normalize_for_index("x" * 2**21))
        == rows.MAX_INDEXED_CHARS
    )
    assert len(normalize_for_index("中" * 1_000)) == 999 * 3 - 1 + 2


ALPHABET = "ab é深色モ다ทй〡_-'.,2ß\u0301\u200bﬁ\n "


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(st.text(ALPHABET, max_size=25), min_size=1, max_size=6), st.text(ALPHABET, max_size=8))
def test_entry_with_the_words_is_never_left_out(tmp_path_factory, texts, query):
    words = find_significant_words(query)
    with create_context(tmp_path_factory.mktemp("memory")) as place:
        for number, text in enumerate(texts):
            write_file(place.roots["user"].trusted_path, f"{number}.md", text)
        found = find_rows(place, query) if words else None
        view = open_view(place.state, place.roots["user"], place.policy)
        for number, text in enumerate(texts):
            if (
                words
                and build_vocabulary(text).contains_all(words)
                and view.entry(f"{number}.md").held is None
            ):
                assert found is None or f"{number}.md" in found
