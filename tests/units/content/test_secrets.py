"""Secrets, made from a seed: what the rules find, in which disguises, and what they leave alone."""

from __future__ import annotations

import base64
import tomllib
from importlib.resources import files
from time import process_time

import pytest

from kit.content.secret_values import filled
from kit.where import TESTS
from muniment.content.secrets import FoundSecret, find_secret, redacted

RULES = tomllib.loads(files("muniment.content").joinpath("secrets.toml").read_text())["rule"]
IDS = [rule["id"] for rule in RULES]
EXACT = [rule for rule in RULES if not rule.get("context")]
NOTES = (TESTS / "kit" / "content" / "engineering_notes.txt").read_text().splitlines()
SEEDS = range(20)


def find(text):
    return find_secret(text.encode(), "topic/a.md")


def test_the_pack_has_about_thirty_rules_with_five_examples_of_either_kind():
    assert len(set(IDS)) == len(RULES) >= 20
    for rule in RULES:
        assert min(len(rule["positive"]), len(rule["negative"])) >= 5, rule["id"]
        assert rule["description"]


@pytest.mark.sweep(4)
@pytest.mark.threat("T-LEAK-01", control="secret_rules")
@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_generated_secrets_of_every_kind_are_found(rule):
    tries = [filled(example, seed) for example in rule["positive"] for seed in SEEDS]
    found = [find(text) for text in tries]
    assert sum(one is not None for one in found) >= 0.95 * len(tries)
    # An example that stands beside a name such as `token` may be told by that name's rule.
    assert sum(one is not None and one.rule == rule["id"] for one in found) >= 0.7 * len(tries)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_what_only_looks_a_little_like_a_secret_is_none(rule):
    for example in rule["negative"]:
        for seed in SEEDS:
            text = filled(example, seed)
            assert find(text) is None, text


@pytest.mark.parametrize("prefix", ["ghp", "gho", "ghs", "npm", "hf"])
def test_a_token_whose_checksum_or_alphabet_is_not_the_usual_one_is_found(prefix):
    """One character changed, and the rest would have been remembered."""
    for seed in SEEDS:
        text = filled(f"the deploy key is {prefix}_{{a62:36}}", seed)
        assert find(text) is not None, text


def test_engineering_notes_raise_hardly_any_alarm():
    lines = [filled(line, seed) for seed in range(5) for line in NOTES]
    alarms = [line for line in lines if find(line) is not None]
    assert len(lines) >= 600
    assert len(alarms) <= 0.01 * len(lines), alarms


def test_notes_that_stand_together_raise_no_alarm_where_lines_meet():
    assert find("\n".join(filled(line, 3) for line in NOTES)) is None


def token(seed, rule="github-token"):
    """A bare secret of the rule."""
    return filled(next(one for one in RULES if one["id"] == rule)["positive"][0], seed)


def squared(text):
    """Full-width forms of all that is ASCII and visible."""
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)


DISGUISES = {
    "on a line of its own": lambda secret: f"first\n{secret}\nlast",
    "beside words": lambda secret: f"it is {secret}, keep it",
    "in quotes": lambda secret: f'"{secret}"',
    "in a code span": lambda secret: f"`{secret}`",
    "in a fence": lambda secret: f"```\n{secret}\n```",
    "cut over two lines": lambda secret: f"a {secret[:11]}\n{secret[11:]}\nb",
    "cut in its prefix": lambda secret: f"a {secret[:2]}\n{secret[2:]}\nb",
    "cut over many lines": lambda secret: "\n".join(secret[at : at + 7] for at in range(0, len(secret), 7)),
    "cut and indented": lambda secret: f"a\n    {secret[:20]}\n    {secret[20:]}\n",
    "cut in a quotation": lambda secret: f"> {secret[:20]}\n> {secret[20:]}\n",
    "cut in a list": lambda secret: f"- {secret[:20]}\n- {secret[20:]}\n",
    "cut with a backslash": lambda secret: f"{secret[:20]}\\\n{secret[20:]}",
    "cut as two strings": lambda secret: f'"{secret[:20]}"\n"{secret[20:]}"',
    "cut by CR LF": lambda secret: f"{secret[:20]}\r\n{secret[20:]}\r\n",
    "with escaped underscores": lambda secret: secret.replace("_", "\\_"),
    "in full-width letters": squared,
    "behind an escape of an address": lambda secret: f"https://a.example/?q=token%3D{secret}",
    "behind an escape of a string": lambda secret: f'{{"env": "A\\u003d{secret}"}}',
    "behind an escaped line feed": lambda secret: f'{{"log": "it is:\\n{secret}"}}',
    "in base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "in base64 behind other bytes": lambda secret: base64.b64encode(b"x" + secret.encode()).decode(),
    "in base64 inside a word": lambda secret: "ab/" + base64.b64encode(secret.encode()).decode(),
    "in url-safe base64": lambda secret: base64.urlsafe_b64encode(f"??>{secret}".encode()).decode(),
    "in base64 over lines": lambda secret: base64.encodebytes(f"{secret:>90}".encode()).decode(),
    "as an escaped name": lambda secret: f'---\nname: "\\x{ord(secret[0]):02x}{secret[1:]}"\n---\n',
    "as a folded name": lambda secret: f'---\nname: "{secret[:9]}\\\n  {secret[9:]}"\n---\n',
    "as a value of an unknown key": lambda secret: (
        f'---\nx: {{y: "\\u{ord(secret[0]):04x}{secret[1:]}"}}\n---\n'
    ),
}


@pytest.mark.threat("T-LEAK-02", control="secret_views")
@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
def test_a_secret_is_found_in_every_disguise_that_is_undone(disguise):
    for seed in range(10):
        assert find(disguise(token(seed))) is not None, disguise(token(seed))


@pytest.mark.sweep(10)
@pytest.mark.parametrize("rule", EXACT, ids=[rule["id"] for rule in EXACT])
def test_a_secret_of_an_exact_form_is_found_when_it_is_cut_by_a_line_break(rule):
    if rule["id"].endswith("private-key"):
        return  # they have lines of their own
    secret = token(1, rule["id"])
    for at in range(1, len(secret)):
        assert find(f"it is:\n{secret[:at]}\n{secret[at:]}\nb") is not None, at


@pytest.mark.threat("T-LEAK-01", control="secret_rules")
def test_a_secret_in_the_path_is_found():
    assert find_secret(b"harmless", f"tokens/{token(1)}.md") == FoundSecret("github-token", 0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{}", 1),
        ("a\nb\n{}", 3),
        ("a\r\n\r\n{}\r\n", 3),
        ("---\nname: a\n---\n\n{}", 5),
    ],
)
def test_the_line_is_told_and_the_value_is_not(text, line):
    found = find(text.format(token(4)))
    assert found == FoundSecret("github-token", line)
    cut = find(text.format(f"{token(4)[:9]}\n{token(4)[9:]}"))
    assert cut == FoundSecret("github-token", line)


def test_bytes_that_are_no_text_hide_no_secret_beside_them():
    assert find_secret(b"\xff\xfe " + token(5).encode() + b"\x00", "a.md") is not None


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_what_stands_in_the_text_can_be_taken_out_of_it(rule):
    for example in rule["positive"]:
        text = f"before\n{filled(example, 7)}\nafter\n"
        clean = redacted(text)
        assert find(clean) is None, clean
        assert "(redacted " in clean
        assert clean.startswith("before\n")
        assert clean.endswith(("after\n", ")"))


@pytest.mark.parametrize(
    "name", ["cut over two lines", "in base64", "in full-width letters", "as an escaped name"]
)
def test_what_shows_only_in_another_view_stays_and_is_found_still(name):
    text = DISGUISES[name](token(8))
    assert redacted(text) == text
    assert find(text) is not None


def test_several_secrets_and_those_inside_others_are_all_taken_out():
    text = f"https://x:{token(1)}@git.acme.dev/a.git password={token(2)} {token(3)} ü {token(4)}"
    clean = redacted(text)
    assert find(clean) is None
    assert " ü (redacted github-token)" in clean
    assert not any(token(seed) in clean for seed in range(1, 5))


HOSTILE = {
    "words": "The user prefers dark mode in all editors and runs make with eight jobs. ",
    "one letter": "a",
    "line breaks": "\n",
    "prefixes": "ghp_",
    "names of secrets": "password=aaaa1B, ",
    "placeholders": "token=Ab1Ab1Ab1Ab1 ",
    "addresses": "a://a:",
    "token parts": "eyJaaaaaaaaaaaaaaa.eyJbbbbbbbbbbbb.",
    "openings of keys": "-----BEGIN PRIVATE KEY-----\n",
    "hexadecimal": "0123456789abcdef0123456789abcde-us ",
    "identifiers": "M" * 25 + "." + "a" * 6 + ".",
    "base64": base64.b64encode(bytes(range(251))).decode(),
}


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_twice_the_text_costs_no_more_than_about_twice_the_time(unit):
    def cost(size):
        text = (unit * (size // len(unit) + 1))[:size].encode()
        find_secret(text, "a.md")
        times = []
        for _ in range(3):
            began = process_time()
            find_secret(text, "a.md")
            times.append(process_time() - began)
        return min(times)

    assert cost(65_536) < 5 * cost(32_768) + 0.05
