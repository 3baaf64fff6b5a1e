"""Where a fact goes: scope, type, topic, title and file name."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter

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


def facts(name):
    return json.loads((FACTS / f"{name}.json").read_text(encoding="utf-8"))


def decide(fact, scopes=BOTH):
    decision = route(brief(fact, scopes))
    assert decision is not None
    return decision


@pytest.mark.parametrize("name", ["ordinary", "held_out", "matters"])
def test_95_in_100_facts_go_where_a_person_would_put_them(name):
    rows = facts(name)
    wrong = [row["text"] for row in rows if read(row["text"]).scope != row["scope"]]
    assert len(wrong) <= 0.05 * len(rows), wrong


@pytest.mark.parametrize("name", ["ordinary", "held_out"])
def test_no_language_with_ten_facts_is_left_behind(name):
    total, wrong = Counter(), Counter()
    for row in facts(name):
        total[row["lang"]] += 1
        wrong[row["lang"]] += read(row["text"]).scope != row["scope"]
    assert {lang for lang, count in total.items() if count >= 10 and wrong[lang] > 0.1 * count} == set()


def test_the_two_sets_of_facts_are_large_mixed_and_apart():
    ordinary, held_out = facts("ordinary"), facts("held_out")
    assert len(ordinary) >= 220
    assert len(held_out) >= 120
    assert len({row["lang"] for row in ordinary}) >= 10
    assert not {row["text"] for row in ordinary} & {row["text"] for row in held_out}


def test_a_run_that_may_write_nowhere_is_not_routed():
    assert route(brief("I prefer tabs", (ScopeBrief(Scope("user"), writable=False),))) is None
    assert route(brief("I prefer tabs", ())) is None


@pytest.mark.parametrize(
    ("fact", "file"),
    [
        ("The user prefers dark mode", "editor/prefers-dark-mode.md"),
        ("The user prefers dark mode.", "editor/prefers-dark-mode.md"),
        ("Tests run with make check", "testing/tests-run-with-make-check.md"),
        ("Staging DB is Postgres 16", "database/staging-db-is-postgres-16.md"),
        ("I'm allergic to peanuts", "im-allergic-to-peanuts.md"),
        ("我喜欢用制表符而不是空格", "style/我喜欢用制表符而不是空格.md"),
        ("मुझे छोटे उत्तर पसंद हैं", "communication/मुझे-छोटे-उत्तर-पसंद-हैं.md"),
        ("ผมชอบกาแฟ", "ผมชอบกาแฟ.md"),
        ("con", "note-con.md"),
        ("MEMORY", "note-memory.md"),
        ("CLAUDE.md", "claude-md.md"),
        ("Agents", "note-agents.md"),
        ("../../etc/passwd", "etc-passwd.md"),
        ("🙏", "note-2e3b2b5e.md"),
    ],
)
def test_the_file_is_named_after_the_words_of_the_fact(fact, file):
    if fact == "🙏":
        assert decide(fact).file.startswith("note-")
        assert len(decide(fact).file) == len(file)
    else:
        assert decide(fact).file == file


def test_a_cut_never_parts_a_letter_from_its_marks():
    for mark_heavy in ("कि" * 100, "ก็" * 100, "e\u0323\u0302x" * 100):
        for text in (title_of(mark_heavy).rstrip("…"), slug(mark_heavy, mark_heavy)):
            rest = unicodedata.normalize("NFKC", mark_heavy)[len(text) :]
            assert not unicodedata.category(rest[0]).startswith("M")


@given(TEXT)
def test_any_fact_gets_a_path_that_the_grammar_and_the_default_policy_allow(fact):
    if not fact.strip():
        return
    decision = decide(fact)
    path = canonicalise(f"{decision.scope}/{decision.file}", [Scope("user"), Scope("project")])
    check_creatable(path)
    assert path.text == f"{decision.scope}/{decision.file}"
    assert Judge(load_policy("strict")).decide(Verb.CREATE, path) == Allow()
    assert len(path.name.encode()) <= SLUG_BYTES + len("note-.md")


@given(
    st.sampled_from(["con", "AUX", "nul", "Com1", "memory", "Claude", "AGENTS", "qwen", "gemini", "SKILL"])
)
def test_no_fact_is_filed_under_the_name_of_a_device_or_an_instruction_file(word):
    assert slug(word, word) == f"note-{word.lower()}"


def pattern_of(written):
    """What the comment of `cues.toml` says of a cue, as an expression: the oracle."""
    cue, _, stopped = written.partition("!")
    words = re.escape(folded(cue.strip("^* ")).strip())
    stops = "|".join(
        re.escape(folded(stop).strip() + " " * stop.endswith(" ")) for stop in stopped.split("|")
    )
    first = "^ " if cue.startswith("^") else ""
    if is_unspaced(cue):
        return f"{first}{words}" + (f"(?!{stops})" if stopped else "")
    before, after = first or "(?<= )" * (cue[0] != "*"), "(?= )" * (cue[-1] != "*")
    return before + words + after + (f"(?! (?:{stops}))" if stopped else "")


WRITTEN = [
    "i!o |t ",
    "^user is",
    "mon!fri|to ",
    "deploy",
    "deploy*",
    "*ing",
    "app |",
    "我!们|司",
    "^私",
    "to do",
    "to",
]
PARTS = [
    "i",
    "o",
    "t",
    "user is",
    "is",
    "mon",
    "friday",
    "to",
    "do",
    "deploying",
    "deploy",
    "app",
    "我",
    "们",
    "私",
    "x",
]


@given(st.lists(st.sampled_from(PARTS), max_size=9))
def test_cues_are_found_and_counted_where_their_marks_say(parts):
    text, table = f" {' '.join(parts)} ", cue_table(WRITTEN)
    pattern = re.compile("|".join(map(pattern_of, sorted(WRITTEN, key=len, reverse=True))))
    assert table.occurs(text) == (pattern.search(text) is not None)
    assert table.count(text) == len(pattern.findall(text))
