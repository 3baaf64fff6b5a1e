"""Secrets generated from a seed: rules, disguises and texts that are not secrets."""

import base64
import re
import tomllib
from importlib.resources import files

import pytest

from kit.content.secret_values import fill_example
from kit.locations import TESTS
from muniment.content.secrets import SecretFinding, find_secret, redact_secrets

RULES = tomllib.loads(files("muniment.content").joinpath("secrets.toml").read_text())["rule"]
CUT = [rule["id"] for rule in RULES if not rule.get("context")]
EXACT = [each for each in CUT if not each.endswith("private-key")]  # Private keys are on separate lines.
NOTES = (TESTS / "kit" / "content" / "engineering_notes.txt").read_text().splitlines()


def find(text):
    return find_secret(text.encode(), "topic/a.md")


@pytest.mark.threat("T-LEAK-01", control="secret_rules")
@pytest.mark.parametrize("seeds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_generated_secrets_are_found_by_their_rule(seeds):
    assert len({rule["id"] for rule in RULES}) == len(RULES) >= 20
    for rule in RULES:
        assert min(len(rule["positive"]), len(rule["negative"])) >= 5
        tries, others = (
            [fill_example(each, seed) for each in rule[sign] for seed in range(seeds)]
            for sign in ("positive", "negative")
        )
        found = [one.rule for one in map(find, tries) if one is not None]
        assert len(found) >= 0.95 * len(tries), rule["id"]
        # An example next to a name such as `token` may match the rule for that name.
        assert found.count(rule["id"]) >= 0.7 * len(tries), rule["id"]
        assert [text for text in others if find(text) is not None] == []


@pytest.mark.sweep(4)
@pytest.mark.parametrize("part", range(8))
def test_found_secret_can_be_redacted(part):
    for example in (example for rule in RULES[part::8] for example in rule["positive"]):
        clean = redact_secrets(f"before\n{fill_example(example, 7)}\nafter\n")
        assert find(clean) is None, clean
        assert re.fullmatch(r"(?s)before\n.*\(redacted .*(after\n|\))", clean), clean


def test_token_with_unusual_checksum_or_alphabet_is_found():
    """Find tokens with one changed character, too."""
    for prefix in ("ghp", "gho", "ghs", "npm", "hf"):
        texts = [fill_example(f"the deploy key is {prefix}_{{a62:36}}", seed) for seed in range(8)]
        assert [text for text in texts if find(text) is None] == []


def test_engineering_notes_cause_few_false_alarms():
    lines = [fill_example(line, seed) for seed in range(2) for line in NOTES]
    alarms = [line for line in lines if find(line) is not None]
    assert len(lines) >= 240
    assert len(alarms) <= 0.01 * len(lines), alarms
    assert find("\n".join(fill_example(line, 3) for line in NOTES)) is None
    assert find("Staging is http://staging.acme.dev:8080\n- Ada.Lovelace@acme.dev looks after it") is None
    assert find("It is postgres://app:8080\nxK9vQ2mRt7Lw@db.internal") is not None


def make_token(seed, rule="github-token"):
    """Return a bare secret of the rule."""
    return fill_example(next(one for one in RULES if one["id"] == rule)["positive"][0], seed)


def to_full_width(text):
    """Replace visible ASCII by its full-width forms."""
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)


DISGUISES = {
    "on a separate line": lambda secret: f"first\n{secret}\nlast",
    "between words": lambda secret: f"it is {secret}, keep it",
    "cut over two lines": lambda secret: f"a {secret[:11]}\n{secret[11:]}\nb",
    "cut over many lines": lambda secret: "\n".join(secret[at : at + 7] for at in range(0, len(secret), 7)),
    "cut and indented": lambda secret: f"a\n    {secret[:20]}\n    {secret[20:]}\n",
    "cut in a quotation": lambda secret: f"> {secret[:20]}\n> {secret[20:]}\n",
    "cut with a backslash": lambda secret: f"{secret[:20]}\\\n{secret[20:]}",
    "cut as two strings": lambda secret: f'"{secret[:20]}"\n"{secret[20:]}"',
    "cut by CR LF": lambda secret: f"{secret[:20]}\r\n{secret[20:]}\r\n",
    "with escaped underscores": lambda secret: secret.replace("_", "\\_"),
    "in full-width letters": to_full_width,
    "after an escape in a URL": lambda secret: f"https://a.example/?q=token%3D{secret}",
    "after an escape in a string": lambda secret: f'{{"env": "A\\u003d{secret}"}}',
    "after an escaped line feed": lambda secret: f'{{"log": "it is:\\n{secret}"}}',
    "in base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "in base64 after other bytes": lambda secret: base64.b64encode(b"x" + secret.encode()).decode(),
    "in base64 inside a word": lambda secret: "ab/" + base64.b64encode(secret.encode()).decode(),
    "in url-safe base64": lambda secret: base64.urlsafe_b64encode(f"??>{secret}".encode()).decode(),
    "in base64 over lines": lambda secret: base64.encodebytes(f"{secret:>90}".encode()).decode(),
    "as an escaped name": lambda secret: f'---\nname: "\\x{ord(secret[0]):02x}{secret[1:]}"\n---\n',
    "as a folded name": lambda secret: f'---\nname: "{secret[:9]}\\\n  {secret[9:]}"\n---\n',
    "as an unknown value": lambda secret: f'---\nx: {{y: "\\u{ord(secret[0]):04x}{secret[1:]}"}}\n---\n',
}


@pytest.mark.threat("T-LEAK-02", control="secret_views")
def test_disguised_secret_is_found_but_not_redacted():
    for name, disguise in DISGUISES.items():
        for seed in range(4):
            text = disguise(make_token(seed))
            assert find(text) is not None, (name, text)
    for name in ("cut over two lines", "in base64", "in full-width letters", "as an escaped name"):
        text = DISGUISES[name](make_token(8))
        assert redact_secrets(text) == text


@pytest.mark.sweep(4)
@pytest.mark.parametrize("rule", EXACT)
def test_exact_secret_cut_by_line_break_is_found(rule):
    secret = make_token(1, rule)
    for at in range(1, len(secret)):
        assert find(f"it is:\n{secret[:at]}\n{secret[at:]}\nb") is not None, at


def test_finding_names_rule_and_line_of_secret():
    for text, line in ("{}", 1), ("a\nb\n{}", 3), ("a\r\n\r\n{}\r\n", 3), ("---\nname: a\n---\n\n{}", 5):
        for secret in (make_token(4), f"{make_token(4)[:9]}\n{make_token(4)[9:]}"):
            assert find(text.format(secret)) == SecretFinding("github-token", line), text
    assert find_secret(b"harmless", f"tokens/{make_token(1)}.md") == SecretFinding("github-token", 0)
    assert find_secret(b"\xff\xfe " + make_token(5).encode() + b"\x00", "a.md") is not None


def test_nested_and_repeated_secrets_are_all_redacted():
    text = f"https://x:{make_token(1)}@git.acme.dev/a.git password={make_token(2)} "
    text += f"{make_token(3)} ü {make_token(4)}"
    clean = redact_secrets(text)
    assert (find(clean), " ü (redacted github-token)" in clean) == (None, True)
    assert not any(make_token(seed) in clean for seed in range(1, 5))
