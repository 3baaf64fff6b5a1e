"""Text made to be expensive: every parser ends in time with the right result."""

import base64
import contextlib
from functools import reduce

import pytest

from kit.content.secret_values import fill_example
from muniment.content.admission import find_agent_instruction, load_instruction_rules
from muniment.content.gates import GATES, check_text, escape_invisible
from muniment.content.markdown import find_active_markup, find_relative_links
from muniment.content.poison import find_poison
from muniment.content.provenance import contains_fact
from muniment.content.secrets import find_secret
from muniment.content.words import build_vocabulary, find_significant_words
from muniment.errors import ContentRejected
from muniment.kernel.names import RelPath, Trust

ANSWERS = {None, *(rule.id for rule in load_instruction_rules())}
KEY = fill_example("ghp_{a62:36}", "key")


def passes_gates(text):
    with contextlib.suppress(ContentRejected):
        check_text(text, GATES)
    return len(escape_invisible(text)) >= len(text)


CHECKS = {  # Length of the text and a check of the result.
    "holds": (65_536, lambda text: not contains_fact([text], text[: len(text) // 2] + " end")),
    "addresses": (131_072, lambda text: find_agent_instruction(text, Trust.EXTERNAL) in ANSWERS),
    "harms": (16_384, lambda text: getattr(find_poison(text), "reason", "words") != ""),
    "runs": (131_072, lambda text: find_active_markup(text + "<script>") is not None),
    "secret": (131_072, lambda text: find_secret(f"{KEY}\n{text}".encode(), "a.md") is not None),
    "leads": (
        600_000,
        lambda text: not any(to[0] in "/." for to in find_relative_links(text, RelPath("a.md"))),
    ),
    "words": (
        300_000,
        lambda text: build_vocabulary(text).contains_all(find_significant_words(text[:10])) in {True, False},
    ),
    "gates": (300_000, passes_gates),
}
UNITS = """
holds: a |so |so, not |/- x|*a* |. |1.|-1 |'a|y|n|s|ing|**a|_aSPACE
addresses: a|a |ignore all |ß|ignore previous |игнорируй все |忽略所有之前|이전의모든|<PIPE|"name": "x",SPACE
addresses: --- begin |send a b c d e f g keys |when the user a b c d |user: a/|ai a b c must d e fSPACE
harms: a|a.|a a |run |never run |skip review |not |@|a@|a.a|- a/|, if |&#65;|%41|12 |_|''|requesta SPACE
harms: run fetch use the |必ず|ключ |run it from a.b.example, |"name": "x",SPACE
runs: <|<a |<a '|![|![]|[|![[|[a]:/|` `` ``` |`a` |```/|&#x3c;|<a on|<div /|](java|<a style=|/
runs: <script>`|```/<script>/```/|`<script>`SPACE
secret: a|/|ghp_|The user prefers dark mode in all editors and runs make with eight jobs.SPACE
secret: password=aaaa1B, |token=Ab1Ab1Ab1Ab1 |a:SLASHESa:|eyJaaaaaaaaaaaaaaa.eyJbbbbbbbbbbbb.
secret: -----BEGIN PRIVATE KEY-----/|0123456789abcdef0123456789abcde-us |MMMMMMMMMMMMMMMMMMMMMM.aaaaaa.|BASE64
leads: ](|[|](a|](SPACE
words: a|é |深|a\u0301|\u0301\u0323
gates: a|é|\u0301|م\u200c|م\u0651\u200cم|😀\u200d|א\u200f|葛\U000e0100
"""
"""Repeated units; `/` is a line break."""
BYTES = base64.b64encode(bytes(range(251))).decode()
SPELT = {"/": "\n", "SPACE": " ", "SLASHES": "//", "PIPE": "|", "BASE64": BYTES}
ROWS = [line.split(": ", 1) for line in UNITS.strip("\n").splitlines()]
CASES = [(*CHECKS[name], unit) for name, units in ROWS for unit in units.split("|")]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("part", range(12))
def test_hostile_text_is_processed_in_time(part):
    for size, check, unit in CASES[part::12]:
        spelt = reduce(lambda text, pair: text.replace(*pair), SPELT.items(), unit)
        assert check(spelt * (size // len(spelt))), unit
