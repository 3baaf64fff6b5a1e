"""What an entry must hold of a fact, and what a model may not make of it."""

import pytest

from muniment.content.provenance import holds

DEPLOY = "We do not deploy on Fridays after 16:30, says Anna; ask Ben."
TWO = "- Tea is green\n- Coffee is black"

HELD = {
    DEPLOY: [
        DEPLOY,
        f"- {DEPLOY}",
        "We do not deploy on Fridays\nafter 16:30, says **Anna**: ask Ben",
        f"Notes on releases.\n\n{DEPLOY}\n\nNever ship unsigned builds.",
    ],
    "The user prefers dark mode": ["Prefers dark mode.", "The user likes tea\nThe user prefers dark mode"],
    "I prefer dark mode": ["The user prefers dark mode."],
    "The tests need 3.5 GB and -4 degrees": ["Tests needed 3.5 GB, and -4 degrees"],
    "Ich trinke keinen Kaffee": ["Ich trinke keinen Kaffee!"],
    "私はコーヒーを飲まない": ["- 私はコーヒーを飲まない。"],
    "\U0001f600": ["\U0001f600"],
}
NOT_HELD = {
    DEPLOY: [
        DEPLOY.replace("16:30", "15:30"),
        DEPLOY.replace("not ", ""),
        DEPLOY.replace("Ben", "Ann").replace("Anna", "Ben").replace("Ann.", "Anna."),
        DEPLOY.replace("Anna", "Anne"),
        DEPLOY.replace("; ask Ben", ""),
        "created user/deploy.md (120 bytes)",
        "",
    ],
    "We deploy on Fridays": [
        "We do not deploy on Fridays",
        "It is false that we deploy on Fridays.",
        "We deploy on Fridays, never.",
        "Fridays: we deploy on",
        "We really deploy on Fridays",
    ],
    "Deploy on Fridays": ["~~Deploy on Fridays~~", "<!-- Deploy on Fridays -->"],
    "deploy at night": ["\0\0\0\0\0 Never deploy at night. zz zz zz zz zz zz zz."],
    "My blood type is A": ["My blood type is"],
    "Use git branch -D": ["Use git branch -d"],
    "use curl -k": ["use curl k"],
    "I like tea": ["Ben likes tea", "Ben and Ann\nlike tea"],
    "It costs 5 €": ["It costs 5 $"],
    "It costs 5": ["It costs 50"],
    "The offset is -5": ["The offset is 5"],
    "Version 3.11 is used": ["Version 3.1 is used"],
    "He writes C++": ["He writes C"],
    "Moved from Berlin to Paris": ["Moved to Berlin from Paris"],
    "Tea or coffee": ["Tea and coffee"],
    "Call me Sam, not Samuel": ["Samuel is my name."],
    "It is safe": ["It is unsafe"],
    "Ich trinke keinen Kaffee": ["Ich trinke Kaffee"],
    "私はコーヒーを飲まない": ["私はコーヒーを飲む"],
    "\U0001f600": ["\U0001f601"],
    "Allowed:\n- A\nForbidden:\n- B": ["Allowed: B. Forbidden: A."],
    TWO: ["Tea is green."],
}


def test_what_still_says_the_fact_holds_it_and_what_says_something_else_does_not():
    for fact, texts in HELD.items():
        assert [text for text in texts if not holds([text], fact)] == [], fact
    for fact, texts in NOT_HELD.items():
        assert [text for text in texts if holds([text], fact)] == [], fact
    assert holds(["Coffee is black.", "Tea is green."], TWO)


@pytest.mark.sweep(3)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "piece",
    ["a ", "so ", "so, not ", "\n- x", "*a* ", ". ", "1.", "-1 ", "'a", "y", "n", "s", "ing", "**a", "_a "],
)
def test_a_hostile_text_comes_to_its_end(piece):
    text = piece * (65_536 // len(piece))
    assert not holds([text], text[: len(text) // 2] + " end")
