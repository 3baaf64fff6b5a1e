"""What an entry must hold of a fact, and what a model may not make of it."""

import time

import pytest

from muniment.content.provenance import holds

DEPLOY = "We do not deploy on Fridays after 16:30, says Anna; ask Ben."

HELD = [
    (DEPLOY, DEPLOY),
    (DEPLOY, f"- {DEPLOY}"),
    (DEPLOY, "We do not deploy on Fridays\nafter 16:30, says **Anna**: ask Ben"),
    (DEPLOY, f"Notes on releases.\n\n{DEPLOY}\n\nNever ship unsigned builds."),
    ("The user prefers dark mode", "Prefers dark mode."),
    ("The user prefers dark mode", "The user likes tea\nThe user prefers dark mode"),
    ("I prefer dark mode", "The user prefers dark mode."),
    ("The tests need 3.5 GB and -4 degrees", "Tests needed 3.5 GB, and -4 degrees"),
    ("- Tea is green\n- Coffee is black", "Coffee is black."),
    ("Ich trinke keinen Kaffee", "Ich trinke keinen Kaffee!"),
    ("私はコーヒーを飲まない", "- 私はコーヒーを飲まない。"),
    ("\U0001f600", "\U0001f600"),
]

NOT_HELD = [
    ("My blood type is A", "My blood type is"),
    ("Use git branch -D", "Use git branch -d"),
    ("use curl -k", "use curl k"),
    ("Deploy on Fridays", "~~Deploy on Fridays~~"),
    ("Deploy on Fridays", "<!-- Deploy on Fridays -->"),
    ("deploy at night", "\0\0\0\0\0 Never deploy at night. zz zz zz zz zz zz zz."),
    (DEPLOY, "We do not deploy on Fridays after 15:30, says Anna; ask Ben."),
    (DEPLOY, "We do deploy on Fridays after 16:30, says Anna; ask Ben."),
    (DEPLOY, "We do not deploy on Fridays after 16:30, says Ben; ask Anna."),
    (DEPLOY, "We do not deploy on Fridays after 16:30, says Anne; ask Ben."),
    (DEPLOY, "We do not deploy on Fridays after 16:30, says Anna."),
    (DEPLOY, "created user/deploy.md (120 bytes)"),
    (DEPLOY, ""),
    ("We deploy on Fridays", "We do not deploy on Fridays"),
    ("We deploy on Fridays", "It is false that we deploy on Fridays."),
    ("We deploy on Fridays", "We deploy on Fridays, never."),
    ("We deploy on Fridays", "Fridays: we deploy on"),
    ("We deploy on Fridays", "We really deploy on Fridays"),
    ("I like tea", "Ben likes tea"),
    ("I like tea", "Ben and Ann\nlike tea"),
    ("It costs 5 €", "It costs 5 $"),
    ("It costs 5", "It costs 50"),
    ("The offset is -5", "The offset is 5"),
    ("Version 3.11 is used", "Version 3.1 is used"),
    ("He writes C++", "He writes C"),
    ("Moved from Berlin to Paris", "Moved to Berlin from Paris"),
    ("Tea or coffee", "Tea and coffee"),
    ("Call me Sam, not Samuel", "Samuel is my name."),
    ("It is safe", "It is unsafe"),
    ("Ich trinke keinen Kaffee", "Ich trinke Kaffee"),
    ("私はコーヒーを飲まない", "私はコーヒーを飲む"),
    ("\U0001f600", "\U0001f601"),
    ("Allowed:\n- A\nForbidden:\n- B", "Allowed: B. Forbidden: A."),
]


@pytest.mark.parametrize(("fact", "text"), HELD)
def test_what_still_says_the_fact_holds_it(fact, text):
    others = ["Tea is green."] if fact.startswith("- Tea") else []
    assert holds([text, *others], fact)


@pytest.mark.parametrize(("fact", "text"), NOT_HELD)
def test_what_says_something_else_does_not_hold_it(fact, text):
    assert not holds([text], fact)


def test_a_list_is_held_only_if_every_item_is():
    fact = "- Tea is green\n- Coffee is black"

    assert not holds(["Tea is green."], fact)


@pytest.mark.sweep(7)
@pytest.mark.parametrize(
    "piece",
    ["a ", "so ", "so, not ", "\n- x", "*a* ", ". ", "1.", "-1 ", "'a", "y", "n", "s", "ing", "**a", "_a "],
)
def test_a_hostile_text_costs_no_more_than_its_length(piece):
    text = piece * (65_536 // len(piece))
    started = time.process_time()
    holds([text], text[: len(text) // 2] + " end")

    assert time.process_time() - started < 5
