"""Long questions about long conversations: never worse than plain full-text search of the same rows."""

from __future__ import annotations

import importlib.util
import re

import pytest

from kit.recall.library import entry_of, library
from kit.where import REPOSITORY
from muniment.recall.search import COLUMN_WEIGHTS

BENCHMARKS = REPOSITORY / "benchmarks"
CONVERSATIONS = 2
DEPTH = 10
PLAIN = f"""
    SELECT entry.rel FROM text JOIN entry ON entry.id = text.rowid
    WHERE text MATCH ? ORDER BY bm25(text, {", ".join(map(str, COLUMN_WEIGHTS))}) LIMIT {DEPTH}
"""


def dialogues():
    """The generated conversations of the benchmark."""
    spec = importlib.util.spec_from_file_location("dialogues", BENCHMARKS / "dialogues.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dialogues(CONVERSATIONS)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of each question the rank of what answers it, ours and that of plain search; None: it is not there."""
    ranks = []
    for sessions, asked in dialogues():
        entries = {
            f"user/{turn.id.replace(':', '/')}.md": entry_of(turn.head, turn.text)
            for turns in sessions
            for turn in turns
        }
        with library(tmp_path_factory.mktemp("talk"), entries) as shelves:
            shelves.refresh()
            for question in asked:
                right = f"{question.evidence.replace(':', '/')}.md"
                words = " OR ".join(f'"{word}"' for word in re.findall(r"[a-z]+", question.text.lower()))
                ours = [hit.key.rel for hit in shelves.hits(question.text, limit=DEPTH, as_it_is=True)]
                plain = [rel for (rel,) in shelves.catalog.rows(PLAIN, (words,))]
                ranks.append([each.index(right) if right in each else None for each in (ours, plain)])
    return ranks


@pytest.mark.parametrize("depth", [5, DEPTH])
def test_recall_finds_more_than_plain_full_text_search(found, depth):
    ours, plain = (
        sum(rank is not None and rank < depth for rank in ranks) / len(found)
        for ranks in zip(*found, strict=True)
    )
    assert len(found) >= 300
    assert ours > plain + 0.05, (ours, plain)
