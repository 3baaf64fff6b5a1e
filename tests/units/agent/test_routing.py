"""Where a fact goes: scope, type, topic, title and file name."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.fake_memory import BOTH, brief
from kit.where import FACTS
from muniment.agent.decision import SLUG_BYTES, cue_table, folded, is_unspaced, slug, title_of
from muniment.agent.filing import read, route
from muniment.agent.model import ScopeBrief
from muniment.names import Scope, Verb
from muniment.policy.decide import Allow, Judge
from muniment.policy.grammar import canonicalise, check_creatable
from muniment.policy.load import load_policy

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200)


@cache
def facts(name):
    """The facts of a file, and those of them that do not go where a person would put them."""
    rows = json.loads((FACTS / f"{name}.json").read_text(encoding="utf-8"))
    return rows, [row for row in rows if read(row["text"]).scope != row["scope"]]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["held_out", "ordinary", "matters"])
def test_95_in_100_facts_go_where_a_person_would_put_them_and_no_language_is_left_behind(name):
    rows, wrong = facts(name)
    assert len(wrong) <= 0.05 * len(rows), wrong
    if name != "matters":
        total, missed = (Counter(row["lang"] for row in each) for each in (rows, wrong))
        assert not {lang for lang, count in total.items() if count >= 10 and missed[lang] > 0.1 * count}
        assert len(rows) >= {"ordinary": 220, "held_out": 120}[name]


def test_a_run_that_may_write_nowhere_is_not_routed():
    assert route(brief("I prefer tabs", (ScopeBrief(Scope("user"), writable=False),))) is None
    assert route(brief("I prefer tabs", ())) is None


def test_the_file_is_named_after_the_words_of_the_fact():
    for fact, file in (
        *((f"The user prefers dark mode{end}", "editor/prefers-dark-mode.md") for end in ("", ".")),
        ("Tests run with make check", "testing/tests-run-with-make-check.md"),
        *(("I'm allergic to peanuts", "im-allergic-to-peanuts.md"), ("ผมชอบกาแฟ", "ผมชอบกาแฟ.md")),
        ("我喜欢用制表符而不是空格", "style/我喜欢用制表符而不是空格.md"),
        ("मुझे छोटे उत्तर पसंद हैं", "communication/मुझे-छोटे-उत्तर-पसंद-हैं.md"),
        *(("CLAUDE.md", "claude-md.md"), ("../../etc/passwd", "etc-passwd.md")),
    ):
        assert route(brief(fact, BOTH)).file == file
    assert re.fullmatch(r"note-[0-9a-f]{8}\.md", route(brief("🙏", BOTH)).file)
    for word in ("con", "AUX", "nul", "Com1", "memory", "Claude", "AGENTS", "qwen", "gemini", "SKILL"):
        assert slug(word, word) == f"note-{word.lower()}"  # A device, or a file of instructions.


def test_a_cut_never_parts_a_letter_from_its_marks():
    for mark_heavy in ("कि" * 100, "ก็" * 100, "e\u0323\u0302x" * 100):
        for text in (title_of(mark_heavy).rstrip("…"), slug(mark_heavy, mark_heavy)):
            rest = unicodedata.normalize("NFKC", mark_heavy)[len(text) :]
            assert not unicodedata.category(rest[0]).startswith("M")


@given(TEXT)
def test_any_fact_gets_a_path_that_the_grammar_and_the_default_policy_allow(fact):
    if fact.strip():
        decision = route(brief(fact, BOTH))
        path = canonicalise(f"{decision.scope}/{decision.file}", [Scope("user"), Scope("project")])
        check_creatable(path)
        assert path.text == f"{decision.scope}/{decision.file}"
        assert Judge(load_policy("strict")).decide(Verb.CREATE, path) == Allow()
        assert len(path.name.encode()) <= SLUG_BYTES + len("note-.md")


def pattern_of(written):
    """What the comment of `cues.toml` says of a cue, as an expression: the oracle."""
    cue, _, stopped = written.partition("!")
    words = re.escape(folded(cue.strip("^* ")).strip())
    each = (re.escape(folded(stop).strip() + " " * stop.endswith(" ")) for stop in stopped.split("|"))
    stops = "|".join(each)
    first = "^ " if cue.startswith("^") else ""
    if is_unspaced(cue):
        return f"{first}{words}" + (f"(?!{stops})" if stopped else "")
    before, after = first or "(?<= )" * (cue[0] != "*"), "(?= )" * (cue[-1] != "*")
    return before + words + after + (f"(?! (?:{stops}))" if stopped else "")


WRITTEN = ["i!o |t ", "^user is", "mon!fri|to ", "deploy", "deploy*", "*ing", "app |", "我!们|司", "^私"]
WRITTEN += ["to do", "to"]
PARTS = [
    *("i", "o", "t", "user is", "is", "mon", "friday", "to", "do", "deploying", "deploy", "app"),
    *("我", "们", "私", "x"),
]


@given(st.lists(st.sampled_from(PARTS), max_size=9))
def test_cues_are_found_and_counted_where_their_marks_say(parts):
    text, table = f" {' '.join(parts)} ", cue_table(WRITTEN)
    pattern = re.compile("|".join(map(pattern_of, sorted(WRITTEN, key=len, reverse=True))))
    assert table.occurs(text) == (pattern.search(text) is not None)
    assert table.count(text) == len(pattern.findall(text))
