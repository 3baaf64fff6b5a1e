"""Authorship of texts: every way to attribute words to a person who did not write them is a test."""

import random

import pytest

from muniment.agent.updates import supersedes
from muniment.content import provenance
from muniment.content.provenance import (
    Authorship,
    consists_of,
    contains_fact,
    is_label_of_fact,
    split_separate_items,
)

FACT = "Never push to main on Fridays.\nAsk Alice before 3 deploys, but not Bob."
LIST = "Do these:\n- push to main\n- ask Alice\n\nNever do these:\n- delete a branch\n- skip the review"
SPAM = "The user prefers dark mode in all editors. Bob approves every call of the spam filter."
BEFORE = "# Deploys\n- We deploy on Tuesdays.\n- Staging is at port 8080.\n"


def classify(body, fact, before):
    return provenance.determine_authorship(body, fact, before, supersedes)


def test_reformatted_fact_is_by_requester():
    broken = (FACT, FACT.replace("\n", " "), FACT.replace(" on", "\non") + "\n\n")
    for body in (*broken, f"- {FACT}", f"> {FACT}", f"1. {FACT}", f"{FACT[:1].lower()}{FACT[1:]}"):
        assert classify(body, FACT, None) is Authorship.FACT, body


OTHER = [
    *(("24. Mai: frei", "25. Mai: frei"), ("Mai bin ich weg", "24. Mai bin ich weg")),
    *(("I pay Bob dollars", "I pay Bob\n900. dollars"), ("The load must be 5", "The load must be\n> 5")),
    *(("5 degrees", "- 5 degrees"), ("Always use git branch -D x", "Always use git branch -d x")),
    ("Never:\n- push\n\nAsk Alice.", "Never:\n- push\n- Ask Alice."),
    ("Never:\n- push\n\nAsk Alice.", "Never:\n- push\nAsk Alice."),
    ("Mail from Bob.\n> Approve everything.", "Mail from Bob.\nApprove everything."),
    ("```\nmake # clean\nrm -rf build\n```", "```\nmake\n# clean rm -rf build\n```"),
]


MOVED = [
    "Do these:\n- push to main\n- delete a branch\n\nNever do these:\n- ask Alice\n- skip the review",
    "Never do these:\n- push to main\n- ask Alice\n\nDo these:\n- delete a branch\n- skip the review",
    "Do these:\n- skip the review\n- push to main\n- ask Alice\n\nNever do these:\n- delete a branch",
    "Do these:\n- push to main\n- ask Alice\n- delete a branch\n- skip the review",
]


def test_changed_structure_or_moved_items_are_by_others():
    for fact, body in OTHER:
        assert classify(fact, fact, None) is Authorship.FACT, fact
        assert classify(body, fact, None) is Authorship.OTHERS, body
        assert classify(body, "anything", fact) is Authorship.OTHERS, body
    for body in MOVED:
        assert classify(body, LIST, None) is classify(f"{body}\n- Tea", "Tea", LIST) is Authorship.OTHERS


HOMOGLYPHS = str.maketrans({"a": "\u0430", "e": "\u0435", "o": "\u043e", "A": "\u0391", "B": "\u0412"})


def _iterate_variants():
    """Generate texts that a model could derive from the fact or the old entry, which have no human author."""
    chance, fact_words = random.Random(17), FACT.split()
    for at, word in enumerate(fact_words):
        wrong = (word.translate(HOMOGLYPHS) + "\u200b", f"~~{word}~~", word[::-1] + "x", f"always {word}", "")
        yield from (" ".join([*fact_words[:at], each, *fact_words[at + 1 :]]) for each in wrong)
        yield " ".join([*fact_words[:at], "<!--", *fact_words[at:], "-->"])
    for _ in range(80):
        mixed = chance.sample(fact_words, len(fact_words))
        yield " ".join(mixed if mixed != fact_words else fact_words[::-1])
    for _ in range(40):
        (at, one), (to, other) = chance.sample([*enumerate(fact_words)], 2)
        yield " ".join({at: other, to: one}.get(number, word) for number, word in enumerate(fact_words))
    turned = ("Not true: ", "The opposite of: ", "Alice says: ")
    yield from (f"{marker}{FACT}" for marker in ("# ", "```\n", "- [x] ", "<b>", "| ", "[", *turned))
    yield from (f"{FACT}\n{line}" for line in ("So approve all.", "Not.", "(outdated)", "---", "# End", "^"))


VARIANTS = sorted({text for text in _iterate_variants() if text.split() != FACT.split()})


@pytest.mark.threat("T-MEM-15", control="own_words")
def test_200_altered_texts_are_not_by_requester():
    assert len(VARIANTS) >= 200
    for text in VARIANTS:
        assert (
            classify(text, FACT, None) is classify(f"{BEFORE}- {text}\n", FACT, BEFORE) is Authorship.OTHERS
        ), text


ITEMS = "- We deploy on Tuesdays.\n- Staging is at port 8080."
KEYS = "Bob has the keys."
BEFORE_AND_FACT = {
    Authorship.EXTENDED: [
        *((ITEMS, KEYS, f"{ITEMS}\n- {KEYS}\n"), ("Uses vim", "Likes tea", "Uses vim\nLikes tea")),
        ("Uses vim.", "Likes tea.\nAnd coffee.", "Uses vim.\n\nLikes tea.\nAnd coffee."),
        ("We do not smoke.", KEYS, f"We do not smoke.\n{KEYS}"),
    ],
    Authorship.SAME: [(BEFORE, "anything", BEFORE + "\n\n")],
    Authorship.FACT: [  # A fact that states a change replaces the old one,
        ("We deploy on Tuesdays.", *["We now deploy on Mondays."] * 2),
        ("The staging server is at port 8080", *["The staging server is now at port 8081"] * 2),
    ],
    Authorship.OTHERS: [
        # and replaces nothing else.
        ("We deploy on Tuesdays.", *["We deploy on Mondays."] * 2),
        ("Python 2 is forbidden in production since the audit by Acme.", *["I like Python."] * 2),
        ("Never push to main without review by Alice.", *["Push to main."] * 2),
        ("Tea is good. Bob is allergic to nuts.", *["Tea is good."] * 2),
        ("I like dogs.", *["I like tea."] * 2),
        ("The staging server is not at port 8080", *["The staging server is at port 8080"] * 2),
        # Other words of the entry are lost, moved or changed.
        (BEFORE, KEYS, BEFORE.replace("- Staging is at port 8080.", f"- {KEYS}")),
        (BEFORE, KEYS, f"# Deploys\n- Staging is at port 8080.\n- We deploy on Tuesdays.\n- {KEYS}"),
        (BEFORE, KEYS, BEFORE.replace("8080", "8081") + f"- {KEYS}"),
        *((BEFORE, KEYS, BEFORE.replace("# Deploys", f"# {KEYS}")), (BEFORE, KEYS, KEYS)),
        (BEFORE, KEYS, BEFORE.replace("- Staging", "  - Staging") + f"- {KEYS}"),
        (BEFORE, KEYS, f"{BEFORE}- {KEYS}\n- We deploy on Tuesdays.\n"),
        # The meaning of the fact or of its neighbours is reversed.
        ("Bob claims:\n- x", "Alice is in", "Bob claims:\n- x\n- Alice is in"),
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
}


def test_authorship_of_entry_with_added_fact():
    for expected, cases in BEFORE_AND_FACT.items():
        for before, fact, after in cases:
            assert (after, classify(after, fact, before)) == (after, expected)


NO_LABELS = [
    *((label, FACT) for label in ("push to main", "Push main", "Ask Alice", "Samuel is my name", "", "the")),
    *((label, "Call me Sam, not Samuel") for label in ("Samuel is my name", "", "the")),
    *(("dark mode in editors", SPAM), ("approves editors", SPAM)),
    *(("Dark mode: Bob approves every call", SPAM), ("all editors", "Not in all editors")),
    *(("喜欢茶", "我讨厌喜欢茶的人"), ("Push to main", "dont push to main")),
    *(("The user approves deploys", "Bob approves deploys."), ("❌ push to main", "I push to main")),
    *(("~~Bob may deploy~~", "Bob may deploy"), ("latency > 5", "Keep latency < 5 ms")),
    *(("limit is -5", "The limit is 5"), ("Bob may deploy?", "Bob may deploy.")),
    ("Approve all calls", "The bot must ask before it may approve all calls"),
    ("word " * 100, "word " * 100),  # Too long for a label.
]


def test_label_requires_adjacent_words_with_negations():
    assert [(label, fact) for label, fact in NO_LABELS if is_label_of_fact(label, fact)] == []
    assert is_label_of_fact("Prefers dark mode", SPAM)
    assert is_label_of_fact("コーヒーが好き", "コーヒーが好きです")
    assert is_label_of_fact("word " * 50, "word " * 100)


def test_merge_contains_all_statements_in_order():
    parts = ["Use tabs here.\nIndent by 4.", "Use tabs here.\nNever mix them."]
    merged = "Use tabs here.\nIndent by 4.\nNever mix them."
    assert consists_of(merged, parts)
    reordered = "Indent by 4.\nUse tabs here.\nNever mix them."
    for text in (*parts, reordered, merged.replace(" them", ""), f"{merged}\nObey.", ""):
        assert not consists_of(text, parts), text
    assert not consists_of("# Allowed\n- rm\n# Forbidden\n- ls", ["# Allowed\n- ls\n# Forbidden\n- rm"])
    assert not consists_of("25. Mai: frei", ["24. Mai: frei"])


# -- texts that contain a fact, and changes that a model may not make --

DEPLOY = "We do not deploy on Fridays after 16:30, says Anna; ask Ben."
TWO = "- Tea is green\n- Coffee is black"

CONTAINED = {
    DEPLOY: [
        *(DEPLOY, f"- {DEPLOY}", "We do not deploy on Fridays\nafter 16:30, says **Anna**: ask Ben"),
        f"Notes on releases.\n\n{DEPLOY}\n\nNever ship unsigned builds.",
    ],
    "The user prefers dark mode": ["Prefers dark mode.", "The user likes tea\nThe user prefers dark mode"],
}
NOT_CONTAINED = {
    DEPLOY: [
        *(DEPLOY.replace(old, new) for old, new in (("16:30", "15:30"), ("not ", ""), ("Anna", "Anne"))),
        DEPLOY.replace("Ben", "Ann").replace("Anna", "Ben").replace("Ann.", "Anna."),
        *(DEPLOY.replace("; ask Ben", ""), "created user/deploy.md (120 bytes)", ""),
    ],
    "We deploy on Fridays": [
        *("We do not deploy on Fridays", "It is false that we deploy on Fridays.", "Fridays: we deploy on"),
        *("We deploy on Fridays, never.", "We really deploy on Fridays"),
    ],
    "deploy at night": ["\0\0\0\0\0 Never deploy at night. zz zz zz zz zz zz zz."],
    "Allowed:\n- A\nForbidden:\n- B": ["Allowed: B. Forbidden: A."],
    "I like tea": ["Ben and Ann\nlike tea"],
    TWO: ["Tea is green."],
}
SAME = """I prefer dark mode > The user prefers dark mode. | \U0001f600 > \U0001f600
The tests need 3.5 GB and -4 degrees > Tests needed 3.5 GB, and -4 degrees
Ich trinke keinen Kaffee > Ich trinke keinen Kaffee! | 私はコーヒーを飲まない > - 私はコーヒーを飲まない。"""
CHANGED = """My blood type is A > My blood type is | use curl -K > use curl K | use curl -K > use curl -k
I like tea > Ben likes tea | It costs -5 € > It costs -5 $ | It costs -5 € > It costs 5 €
It costs -5 € > It costs -50 € | Version 3.11 is used > Version 3.1 is used | He writes C++ > He writes C
Moved from Berlin to Paris > Moved to Berlin from Paris | Tea or coffee > Tea and coffee
Deploy on Fridays > ~~Deploy on Fridays~~ | Deploy on Fridays > <!-- Deploy on Fridays -->
It is safe > It is unsafe | Call me Sam, not Samuel > Samuel is my name. | \U0001f600 > \U0001f601
Ich trinke keinen Kaffee > Ich trinke Kaffee | 私はコーヒーを飲まない > 私はコーヒーを飲む"""


def test_contains_fact_accepts_rewording_rejects_changes():
    for cases, table, is_contained in (CONTAINED, SAME, True), (NOT_CONTAINED, CHANGED, False):
        rows = (row.split(" > ") for row in table.replace("\n", " | ").split(" | "))
        for fact, texts in (*cases.items(), *((fact, [text]) for fact, text in rows)):
            assert [text for text in texts if contains_fact([text], fact) is not is_contained] == [], fact
    assert contains_fact(["Coffee is black.", "Tea is green."], TWO)


def test_list_item_with_long_gap_is_split():
    gap = " " * 60_000
    assert split_separate_items(f"- a b{gap}c\n- d e f \t") == (f"a b{gap}c", "d e f")
