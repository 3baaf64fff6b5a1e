"""The questions of `paraphrases.toml`, which `benchmarks/meaning.py` uses, measure only meaning."""

import tomllib

from kit.recall.library import QUALITY, format_entry, open_library

FACTS = tomllib.loads((QUALITY / "paraphrases.toml").read_text(encoding="utf-8"))["fact"]


def test_questions_share_no_word_with_their_facts(tmp_path):
    assert len({fact["question"] for fact in FACTS}) == len(FACTS) >= 60
    texts = {f"user/{number:04}.md": format_entry("", fact["text"]) for number, fact in enumerate(FACTS)}
    with open_library(tmp_path, texts) as memory:
        memory.refresh()
        found = [memory.search_paths(fact["question"], skip_refresh=True, limit=len(FACTS)) for fact in FACTS]
    assert [fact for path, fact, paths in zip(texts, FACTS, found, strict=True) if path in paths] == []
