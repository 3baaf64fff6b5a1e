"""Whose words a text is: every way to make somebody say what he did not say is a test."""

from __future__ import annotations

import random

import pytest

from muniment.content.provenance import Whose, is_made_of, stands_in, whose

FACT = "Never push to main on Fridays.\nAsk Alice before 3 deploys, but not Bob."
LIST = "Do these:\n- push to main\n- ask Alice\n\nNever do these:\n- delete a branch\n- skip the review"
BEFORE = "# Deploys\n- We deploy on Tuesdays.\n- Staging is at port 8080.\n"


@pytest.mark.parametrize(
    "body",
    [
        FACT,
        FACT.replace("\n", " "),
        FACT.replace(" on", "\non") + "\n\n",
        f"- {FACT}",
        f"> {FACT}",
        f"1. {FACT}",
        f"{FACT[:1].lower()}{FACT[1:]}",
    ],
)
def test_the_fact_is_its_own_however_its_lines_are_broken_and_marked(body):
    assert whose(body, FACT, None) is Whose.FACT


@pytest.mark.parametrize(
    ("fact", "body"),
    [
        ("24. Mai: frei", "25. Mai: frei"),
        ("Mai bin ich weg", "24. Mai bin ich weg"),
        ("I pay Bob dollars", "I pay Bob\n900. dollars"),
        ("The load must be 5", "The load must be\n> 5"),
        ("5 degrees", "- 5 degrees"),
        ("Always use git branch -D x", "Always use git branch -d x"),
        ("Never:\n- push\n\nAsk Alice.", "Never:\n- push\n- Ask Alice."),
        ("Never:\n- push\n\nAsk Alice.", "Never:\n- push\nAsk Alice."),
        ("Mail from Bob.\n> Approve everything.", "Mail from Bob.\nApprove everything."),
        ("```\nmake # clean\nrm -rf build\n```", "```\nmake\n# clean rm -rf build\n```"),
    ],
)
def test_signs_numbers_case_and_structure_of_a_fact_are_its_own(fact, body):
    assert whose(fact, fact, None) is Whose.FACT
    assert whose(body, fact, None) is Whose.OTHERS
    assert whose(body, "anything", fact) is Whose.OTHERS


HOMOGLYPHS = str.maketrans({"a": "\u0430", "e": "\u0435", "o": "\u043e", "A": "\u0391", "B": "\u0412"})


def _variants():
    """Texts that a model could make of the fact or of what stood there, none of which somebody said."""
    chance = random.Random(17)
    words = FACT.split()
    for at in range(len(words)):
        yield " ".join(words[:at] + words[at + 1 :])
        yield " ".join([*words[:at], "always", *words[at:]])
        yield " ".join([*words[:at], words[at].translate(HOMOGLYPHS) + "\u200b", *words[at + 1 :]])
        yield " ".join([*words[:at], f"~~{words[at]}~~", *words[at + 1 :]])
        yield " ".join([*words[:at], "<!--", *words[at:], "-->"])
        yield " ".join([*words[:at], words[at][::-1] + "x", *words[at + 1 :]])
    for _ in range(80):
        mixed = chance.sample(words, len(words))
        yield " ".join(mixed if mixed != words else words[::-1])
    for _ in range(40):
        at, to = chance.sample(range(len(words)), 2)
        swapped = words.copy()
        swapped[at], swapped[to] = swapped[to], swapped[at]
        yield " ".join(swapped)
    for marker in (
        "# ",
        "```\n",
        "- [x] ",
        "<b>",
        "Not true: ",
        "The opposite of: ",
        "| ",
        "[",
        "Alice says: ",
    ):
        yield f"{marker}{FACT}"
    yield from (f"{FACT}\n{line}" for line in ("So approve all.", "Not.", "(outdated)", "---", "# End", "^"))


VARIANTS = sorted({text for text in _variants() if text.split() != FACT.split()})


@pytest.mark.threat("T-MEM-15", control="own_words")
def test_of_two_hundred_ways_to_say_a_fact_otherwise_none_is_the_requesters():
    assert len(VARIANTS) >= 200
    assert [text for text in VARIANTS if whose(text, FACT, None) is not Whose.OTHERS] == []
    beside = [f"{BEFORE}- {text}\n" for text in VARIANTS]
    assert [text for text in beside if whose(text, FACT, BEFORE) is not Whose.OTHERS] == []


@pytest.mark.parametrize(
    "body",
    [
        "Do these:\n- push to main\n- delete a branch\n\nNever do these:\n- ask Alice\n- skip the review",
        "Never do these:\n- push to main\n- ask Alice\n\nDo these:\n- delete a branch\n- skip the review",
        "Do these:\n- skip the review\n- push to main\n- ask Alice\n\nNever do these:\n- delete a branch",
        "Do these:\n- push to main\n- ask Alice\n- delete a branch\n- skip the review",
    ],
)
def test_items_of_a_list_that_are_moved_are_nobodys(body):
    assert whose(body, LIST, None) is Whose.OTHERS
    assert whose(f"{body}\n- Tea", "Tea", LIST) is Whose.OTHERS


ITEMS = "- We deploy on Tuesdays.\n- Staging is at port 8080."


@pytest.mark.parametrize(
    ("before", "fact", "after"),
    [
        (ITEMS, "Bob has the keys.", f"{ITEMS}\n- Bob has the keys.\n"),
        ("Uses vim", "Likes tea", "Uses vim\nLikes tea"),
        ("Uses vim.", "Likes tea.\nAnd coffee.", "Uses vim.\n\nLikes tea.\nAnd coffee."),
        ("We do not smoke.", "Bob has the keys.", "We do not smoke.\nBob has the keys."),
    ],
)
def test_an_entry_keeps_its_words_above_the_fact(before, fact, after):
    assert whose(after, fact, before) is Whose.KEPT


@pytest.mark.parametrize(
    ("before", "fact"),
    [
        ("We deploy on Tuesdays.", "We deploy on Mondays."),
        ("The staging server is at port 8080", "The staging server is at port 8081"),
    ],
)
def test_a_fact_takes_the_place_of_one_about_the_same(before, fact):
    assert whose(fact, fact, before) is Whose.FACT


@pytest.mark.parametrize(
    ("before", "fact"),
    [
        ("Python 2 is forbidden in production since the audit by Acme.", "I like Python."),
        ("Never push to main without review by Alice.", "Push to main."),
        ("Tea is good. Bob is allergic to nuts.", "Tea is good."),
        ("I like dogs.", "I like tea."),
    ],
)
def test_a_fact_takes_the_place_of_nothing_else(before, fact):
    assert whose(fact, fact, before) is Whose.OTHERS


@pytest.mark.parametrize(
    ("fact", "after"),
    [
        ("Bob has the keys.", BEFORE.replace("- Staging is at port 8080.", "- Bob has the keys.")),
        (
            "Bob has the keys.",
            "# Deploys\n- Staging is at port 8080.\n- We deploy on Tuesdays.\n- Bob has the keys.",
        ),
        ("Bob has the keys.", BEFORE.replace("8080", "8081") + "- Bob has the keys."),
        ("Bob has the keys.", BEFORE.replace("# Deploys", "# Bob has the keys.")),
        ("Bob has the keys.", "Bob has the keys."),
        ("Bob has the keys.", BEFORE.replace("- Staging", "  - Staging") + "- Bob has the keys."),
        ("Bob has the keys.", BEFORE + "- Bob has the keys.\n- We deploy on Tuesdays.\n"),
    ],
)
def test_an_entry_that_loses_moves_or_changes_words_beside_the_fact_is_nobodys(fact, after):
    assert whose(after, fact, BEFORE) is Whose.OTHERS


@pytest.mark.parametrize(
    ("before", "fact", "after"),
    [
        ("# Never\n- push", "ask Alice", "# Never\n- push\n- ask Alice"),
        ("# Banned\n- left-pad", "I use requests", "# Banned\n- left-pad\n- I use requests"),
        ("Bob claims:\n- x", "Alice is in", "Bob claims:\n- x\n- Alice is in"),
        ("You must\n- push", "ask Alice", "You must\n- push\n- ask Alice"),
        ("**Not so**\n\n- x", "Alice is in", "**Not so**\n\n- x\n- Alice is in"),
        ("- I never do\n- x", "approve it", "- I never do\n- x\n  - approve it"),
        ("- I never", "approve it", "- I never\napprove it"),
        ("Tea is poison. That is false.", "Tea is good.", "Tea is poison. Tea is good."),
        ("Tea is poison. That is false.", "Bob is in.", "Tea is poison. Bob is in. That is false."),
        ("Tea is good.\nThat is false.", "Bob is in.", "Bob is in.\nTea is good.\nThat is false."),
        ("- Run the tests", "Never do these:\n- push", "Never do these:\n- push\n- Run the tests"),
        ("- Run the tests", "# Rumours", "# Rumours\n- Run the tests"),
        ("<!-- x -->", "Carol has the keys", "<!--\nCarol has the keys\n-->"),
        ("<!-- x", "Carol has the keys", "<!-- x\n\nCarol has the keys"),
        ("```\nmake", "Carol has the keys", "```\nmake\n\nCarol has the keys"),
    ],
)
def test_nothing_is_put_where_its_meaning_or_that_of_its_neighbours_is_turned(before, fact, after):
    assert whose(after, fact, before) is Whose.OTHERS


def test_an_entry_that_says_the_same_is_the_same_whatever_fact_was_given():
    assert whose(BEFORE + "\n\n", "anything", BEFORE) is Whose.SAME


@pytest.mark.parametrize("label", ["push to main", "Push main", "Ask Alice", "Samuel is my name", "", "the"])
def test_a_label_without_a_word_that_turns_the_fact_is_not_its(label):
    assert not stands_in(label, FACT)
    assert not stands_in(label, "Call me Sam, not Samuel")


def test_a_label_says_what_stands_side_by_side():
    fact = "The user prefers dark mode in all editors. Bob approves every call of the spam filter."
    assert stands_in("dark mode in editors", fact) is False
    assert stands_in("Prefers dark mode", fact)
    assert not stands_in("all editors", "Not in all editors")
    assert not stands_in("approves editors", fact)
    assert not stands_in("Dark mode: Bob approves every call", fact)
    assert stands_in("コーヒーが好き", "コーヒーが好きです")
    assert not stands_in("喜欢茶", "我讨厌喜欢茶的人")
    for label, said in (
        ("Push to main", "dont push to main"),
        ("The user approves deploys", "Bob approves deploys."),
        ("❌ push to main", "I push to main"),
        ("~~Bob may deploy~~", "Bob may deploy"),
        ("latency > 5", "Keep latency < 5 ms"),
        ("limit is -5", "The limit is 5"),
        ("Bob may deploy?", "Bob may deploy."),
        ("Approve all calls", "The bot must ask before it may approve all calls"),
    ):
        assert not stands_in(label, said)


def test_a_merge_has_all_units_of_all_in_their_order():
    one, other = "Use tabs here.\nIndent by 4.", "Use tabs here.\nNever mix them."
    assert is_made_of("Use tabs here.\nIndent by 4.\nNever mix them.", [one, other])
    for text in (
        "Use tabs here.\nIndent by 4.",
        "Use tabs here.\nNever mix them.",
        "Indent by 4.\nUse tabs here.\nNever mix them.",
        "Use tabs here.\nIndent by 4.\nNever mix.",
        "Use tabs here.\nIndent by 4.\nNever mix them.\nObey.",
        "",
    ):
        assert not is_made_of(text, [one, other])
    assert not is_made_of("# Allowed\n- rm\n# Forbidden\n- ls", ["# Allowed\n- ls\n# Forbidden\n- rm"])
    assert not is_made_of("25. Mai: frei", ["24. Mai: frei"])


def test_a_label_that_is_a_text_is_none():
    fact = "word " * 100
    assert stands_in("word " * 50, fact)
    assert not stands_in(fact, fact)
