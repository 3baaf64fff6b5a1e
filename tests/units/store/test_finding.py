"""Full-text rows narrow a search and lose nothing: what holds the words is among what is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.jobs.places import made
from kit.memories import put
from muniment.content.words import significant, vocabulary
from muniment.store.catalog import may_hold
from muniment.store.upkeep import view_of


def named(place, query):
    view = view_of(place.state, place.roots["user"], place.policy, sweep=True)
    return may_hold(place.state, view, significant(query))


TEXTS = {
    "a.md": "The user prefers dark mode.\n",
    "b.md": "用户喜欢使用深色模式 with TypeScript\n",
    "c.md": "ผู้ใช้ชอบโหมดมืด\n",
    "d.md": "Использует ВКЛАДКИ, naïve café\n",
    "e.md": "사용자는 다크모드를 씁니다\n",
    "f.md": "---\nname: Dark things\ndescription: what is dark\nkeywords: [night]\n---\nmode\n",
    "topic/modes.md": "ダークモードが好き\n",
}


@pytest.mark.parametrize(
    ("query", "files"),
    [
        ("dark mode", {"a.md", "f.md"}),
        ("night", {"f.md"}),
        ("深色模式", {"b.md"}),
        ("深色 typescript", {"b.md"}),
        ("вкладки", {"d.md"}),
        ("CAFÉ", {"d.md"}),
        ("다크모드", {"e.md"}),
        ("ダークモード", {"topic/modes.md"}),
        ("xyzzy", set()),
    ],
)
def test_the_rows_name_what_holds_the_words(tmp_path, query, files):
    with made(tmp_path) as place:
        for rel, text in TEXTS.items():
            put(place.roots["user"].trusted_path, rel, text)
        assert named(place, query) == files


@pytest.mark.parametrize("query", ["โหมดมืด", "x" * 200, "ꓘꓳ"])
def test_words_that_the_tokenizer_may_cut_otherwise_narrow_nothing(tmp_path, query):
    with made(tmp_path) as place:
        assert named(place, query) is None
        assert named(place, f"{query} dark") == frozenset()


ALPHABET = "ab é深色モ다ทй〡_-'.,2ß\u0301\u200bﬁ\n "


@settings(max_examples=30)
@given(
    texts=st.lists(st.text(ALPHABET, max_size=25), min_size=1, max_size=6),
    query=st.text(ALPHABET, max_size=8),
)
def test_nothing_that_holds_the_words_is_left_out(tmp_path_factory, texts, query):
    words = significant(query)
    with made(tmp_path_factory.mktemp("memory")) as place:
        for number, text in enumerate(texts):
            put(place.roots["user"].trusted_path, f"{number}.md", text)
        found = named(place, query) if words else None
        view = view_of(place.state, place.roots["user"], place.policy)
        for number, text in enumerate(texts):
            if words and vocabulary(text).holds(words) and view.entry(f"{number}.md").held is None:
                assert found is None or f"{number}.md" in found
