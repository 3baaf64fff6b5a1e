"""Expressions that are compiled late: they find what the compiled expression finds."""

import re
import tomllib
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muniment.content.expressions import compile_when_used
from muniment.content.patterns import WordExpression, compile_pattern
from muniment.content.secret_clauses import compile_endings, compile_names

TABLES = [
    tomllib.loads(files("muniment.content").joinpath(f"{name}.toml").read_text("utf-8"))
    for name in ("secret_clauses", "secret_notes")
]
WORDS = sorted(
    {
        word
        for tables in TABLES
        for kind, table in tables.items()
        if kind != "public"
        for words in table.values()
        for word in words.split(", ")
    }
)
OTHER_FORMS = {
    "k": "\u212a",
    "s": "\u017f",
    "ß": "\u1e9e",
    "\u03c3": "\u03c2",
    "\u00b5": "\u03bc",
    "å": "\u212b",
}
"""Letters that are equal if the case does not count. Source: CaseFolding.txt of Unicode 15."""


def change_case(word, way):
    if way == "other forms":
        return "".join(OTHER_FORMS.get(char, char) for char in word)
    return {"lower": str.lower, "upper": str.upper, "title": str.title}[way](word)


def create_expressions(words):
    """Return the two kinds of expressions for words, each compiled late and at once."""
    for create in (compile_names, compile_endings):
        yield create(words), create(words).compile()


@pytest.mark.parametrize("way", ["lower", "upper", "title", "other forms"])
def test_late_expression_finds_every_word_of_tables(way):
    """Each word of the tables of secrets is found in every case, after other words and before a space."""
    missed = []
    for word in WORDS:
        text = f"the {change_case(word.strip('*').replace(' ', '-'), way)} ".encode()
        for late, compiled in create_expressions([word]):
            if (late.search(text) is None) != (compiled.search(text) is None):
                missed.append(word)
    assert (len(WORDS) > 800, missed) == (True, [])


(COMMANDS,) = (
    rule
    for rule in tomllib.loads(files("muniment.content").joinpath("secrets.toml").read_text("utf-8"))["rule"]
    if "words" in rule
)


def split_alternatives(pattern):
    """Split an expression at each `|` outside of brackets."""
    parts, depth, in_class = [""], 0, False
    for token in re.findall(r"\\.|.", pattern):
        in_class = token == "[" or (in_class and token != "]")
        depth += 0 if in_class else {"(": 1, ")": -1}.get(token, 0)
        if token == "|" and not (depth or in_class):
            parts.append("")
        else:
            parts[-1] += token
    return parts


@pytest.mark.parametrize("number", range(len(split_alternatives(COMMANDS["pattern"]))))
def test_every_match_of_commands_contains_a_word(number):
    """Each alternative of the pattern, with texts that hypothesis generates from it."""
    alternative = re.compile(split_alternatives(COMMANDS["pattern"])[number], re.ASCII)
    compiled = []

    @settings(max_examples=20)
    @given(st.from_regex(alternative, fullmatch=True, alphabet=st.characters(codec="ascii")))
    def check(text):
        compiled.clear()
        source = compile_pattern(b"x")
        WordExpression(lambda: compiled.append(1) or source, COMMANDS["words"]).search(text.encode())
        assert compiled == [1]

    check()


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), st.data())
def test_late_expression_finds_what_the_compiled_one_finds(words, data):
    letters = st.text("".join(words) + " -kK\u212asS\u017f0.ß\u0301", max_size=12)
    chosen = [data.draw(letters | st.sampled_from(words)) for _ in range(3)]
    text = "".join(change_case(part, data.draw(st.sampled_from(["lower", "upper"]))) for part in chosen)
    encoded = text.encode()
    for late, compiled in create_expressions(words):
        assert [found.span() for found in late.finditer(encoded)] == [
            found.span() for found in compiled.finditer(encoded)
        ]
        assert late.sub(b"_", encoded) == compiled.sub(b"_", encoded)


def test_late_expression_is_compiled_if_needed():
    compiled = []

    def create():
        source = compile_pattern(b"token [0-9]+")
        return WordExpression(lambda: compiled.append(1) or source, ["token"])

    for texts in [b"a TOKEN 5"], [b"x" * 4_097], [b"x"] * 21:
        compiled.clear()
        late = create()
        for text in texts[:-1]:
            assert (late.search(text), compiled) == (None, [])
        late.search(texts[-1])
        assert compiled == [1]
        late.search(b"a token 5")
        assert compiled == [1], "it is compiled once"


def test_late_python_expression_behaves_as_a_compiled_one():
    late, compiled = compile_when_used(r"(a+)b", re.IGNORECASE), re.compile(r"(a+)b", re.IGNORECASE)
    for text in "xAAb ab", "", "ba":
        assert late.findall(text) == compiled.findall(text)
        assert late.sub("_", text) == compiled.sub("_", text)
        assert (late.fullmatch(text) is None) == (compiled.fullmatch(text) is None)
    invalid = compile_when_used("(")
    with pytest.raises(re.error):
        invalid.search("")
