"""The path grammar: text from a model becomes one canonical path, an escape, or a refusal."""

from __future__ import annotations

import os.path
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muniment.errors import BadName, PathEscape, Refused
from muniment.names import RelPath, Scope, Via
from muniment.policy.grammar import (
    BLANKS,
    CONFUSABLES,
    CanonicalPath,
    canonicalise,
    check_creatable,
    fold,
    segment_problem,
)
from muniment.testing.strategies import unsafe_paths

SCOPES = (Scope("user"), Scope("project"))

CODES = [*range(0x32400), *range(0xE0000, 0xE1000), 0xF0000, sys.maxunicode]
"""Every assigned character; the planes left out hold unassigned and private-use characters only."""


def outcome(text):
    try:
        return canonicalise(text, SCOPES).text
    except PathEscape as escape:
        told, refusal = f"escape:{escape.via}", escape
    except (BadName, Refused) as other:
        told, refusal = other.code, other
    if not str(refusal).isprintable():
        pytest.fail(f"not one line: {refusal!r}")
    return told


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("user/a.md", "user/a.md"),
        ("/user/a.md", "user/a.md"),
        ("/memories/user/a.md", "user/a.md"),
        ("/memories/project/t/n.md", "project/t/n.md"),
        ("user", "user"),
        ("/user", "user"),
        ("/memories/user", "user"),
        ("user/memories/a.md", "user/memories/a.md"),
        ("user/a..b.md", "user/a..b.md"),
        ("user/..notes.md", "user/..notes.md"),
        ("user/...md", "user/...md"),
        ("user/.git/config", "user/.git/config"),
        ("user/R&D notes.md", "user/R&D notes.md"),
        ("user/console.md", "user/console.md"),
        ("user/com10.md", "user/com10.md"),
        ("user/日本語ノート.md", "user/日本語ノート.md"),
        ("user/ジョン・スミス.md", "user/ジョン・スミス.md"),
        ("user/हिन्दी.md", "user/हिन्दी.md"),
        ("user/naïve Σ3.md", "user/naïve Σ3.md"),
        ("user/٢٠٢٤.md", "user/٢٠٢٤.md"),
        ("user/col·lecció.md", "user/col·lecció.md"),
        ("user/📝.md", "user/📝.md"),
    ],
)
def test_an_ordinary_path_has_exactly_one_canonical_form(text, canonical):
    path = canonicalise(text, SCOPES)
    assert path.text == canonical
    assert canonicalise(path.text, SCOPES) == path


@pytest.mark.threat("T-PATH-02", control="grammar_escapes")
@pytest.mark.threat("T-PATH-01", control="grammar_escapes")
@pytest.mark.parametrize(
    ("text", "via"),
    [
        ("..", Via.DOTDOT),
        ("user/..", Via.DOTDOT),
        ("user/../", Via.DOTDOT),
        ("user/sub/../a.md", Via.DOTDOT),
        ("user//../..//outside/secret.md", Via.DOTDOT),
        ("user/./../../x", Via.DOTDOT),
        ("/memories/../etc/passwd", Via.DOTDOT),
        ("/memories/user/../../x", Via.DOTDOT),
        ("user/%2e%2e/../x", Via.DOTDOT),
        ("user/\\/../x", Via.DOTDOT),
        ("/etc/passwd", Via.ABSOLUTE),
        ("/./etc/passwd", Via.ABSOLUTE),
        ("/ /x", Via.ABSOLUTE),
        ("///etc/passwd", Via.ABSOLUTE),
        ("//user/a.md", Via.ABSOLUTE),
        ("/memories//etc/passwd", Via.ABSOLUTE),
        ("/memories/other/a.md", Via.ABSOLUTE),
        ("/memories/memories/user/a.md", Via.ABSOLUTE),
        ("/memories-evil/user/a.md", Via.ABSOLUTE),
        ("/USER/a.md", Via.ABSOLUTE),
        ("/user\\a.md", Via.ABSOLUTE),
        ("//srv/share/x.md", Via.ABSOLUTE),
        ("\\\\srv\\share\\x.md", Via.ABSOLUTE),
        ("\\\\?\\C:\\x.md", Via.ABSOLUTE),
        ("/\\srv/x", Via.ABSOLUTE),
        ("C:\\x.md", Via.ABSOLUTE),
        ("c:/x.md", Via.ABSOLUTE),
        ("C:x.md", Via.ABSOLUTE),
        ("\0", Via.NUL),
        ("user/a.md\0.txt", Via.NUL),
        ("user/a\0/../../x", Via.NUL),
        ("/etc\0", Via.NUL),
    ],
)
def test_a_path_that_leads_outside_is_an_escape_and_not_just_a_bad_name(text, via):
    with pytest.raises(PathEscape) as caught:
        canonicalise(text, SCOPES)
    assert caught.value.via is via


@pytest.mark.threat("T-PATH-10", control="grammar_characters")
@pytest.mark.threat("T-PATH-02", control="grammar_decodes")
@pytest.mark.parametrize(
    "text",
    [
        *["", "/", "//", "/memories", "/memories/", "/memories//", " ", ".", "./user/a.md", "~", "user:a.md"],
        *[
            "user/",
            "user//",
            "user//a.md",
            "user/./a.md",
            "/user/",
            "user\\a.md",
            "user/..\\x",
            "\\x",
            "..\\x",
        ],
        *[
            "user/a\nb.md",
            "user/a\rb.md",
            "user/a\x7fb.md",
            "user/a\x85b.md",
            "user/a\u2028b.md",
            "user/a\u2029b.md",
        ],
        *[
            "user/a\u200b.md",
            "user/a\xadb.md",
            "user/\u202ea.md",
            "user/\ue000.md",
            "user/\U000f0000.md",
            "user/\ud800",
        ],
        *["user/..\udc2fx", "user/\udc2e\udc2e/x", "user/\u0378.md", "user/\ufdd0.md", "user/\U0001ffff"],
        *[
            "user/a\xa0b.md",
            "user/a\u1680b.md",
            "user/a\u3000b.md",
            "user/e\u0301.md",
            "user/ﬁle.md",
            "user/\uff2d.md",
        ],
        *[
            "user/\uff0e\uff0e/x",
            "user/\u2024\u2024/x",
            "user/\u2025/x",
            "user/\u2026",
            "user/..\u2044x",
            "user/..\u2215x",
        ],
        *[
            "user/..\u29f8x",
            "user/\u29f5x",
            "user/..\uff0fx",
            "user/。。",
            "user/a\u3164b.md",
            "user/a\u115fb",
            "user/\uffa0",
        ],
        *["user/❤\ufe0f.md", "user/\U000e0100a.md", "user/\u2800.md", "user/\u034f.md", "user/\u180b.md"],
        *["user/ a.md", "user/a.md ", "user/a.md.", "user/a /b.md", "user/...", "user/.../a.md"],
        *[
            "user/CON",
            "user/con.md",
            "user/Prn.txt.md",
            "user/aux/x.md",
            "user/NUL.md",
            "user/nul .md",
            "user/COM0",
        ],
        *[
            "user/com1.md",
            "user/LPT9.md",
            "user/COM¹.md",
            "user/lpt³",
            "user/CONIN$",
            "user/conout$.md",
            "aux/a.md",
        ],
        *[
            "user/..%2fx",
            "user/%2e%2e/x",
            "user/%00a.md",
            "user/&#46;&#46;/x",
            "${HOME}/x",
            "~root/x",
            "user/$(id).md",
        ],
        *[
            "user/a*b.md",
            "user/a?b.md",
            'user/"a".md',
            "user/<a>.md",
            "user/a|b.md",
            "user/[x](y).md",
            "user/`a`.md",
        ],
        *["user/{a,b}.md", "user/a!.md", "user/a^b.md", "user/a:b.md", "user/a.md::$DATA"],
    ],
)
def test_what_is_outside_the_grammar_but_leads_nowhere_is_a_bad_name(text):
    assert outcome(text) == "bad_name"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user/" + "a" * 255, "user/" + "a" * 255),
        ("user/" + "a" * 256, "bad_name"),
        ("user/" + "é" * 127, "user/" + "é" * 127),
        ("user/" + "é" * 128, "bad_name"),
        ("user" + "/d" * 8, "user" + "/d" * 8),
        ("user" + "/d" * 9, "bad_name"),
        ("user/" + "/".join(["b" * 254] * 4), "user/" + "/".join(["b" * 254] * 4)),
        ("/memories/user/" + "/".join(["b" * 254] * 4), "user/" + "/".join(["b" * 254] * 4)),
        ("user/" + "/".join(["b" * 254] * 3 + ["b" * 255]), "bad_name"),
        ("user/" + "/".join(["é" * 127] * 5), "bad_name"),
    ],
)
def test_lengths_and_depth_are_bounded_in_bytes_at_exactly_the_limit(text, expected):
    assert outcome(text) == expected


@pytest.mark.parametrize("text", ["user/" + "a" * 5_000_000, "../" * 2_000_000, "\0" * 5_000_000])
def test_megabytes_of_path_are_a_bad_name_with_a_short_message(text):
    with pytest.raises(BadName) as caught:
        canonicalise(text, SCOPES)
    assert len(str(caught.value)) < 3_000


@pytest.mark.threat("T-PATH-01", control="grammar_names")
@given(
    st.text(alphabet=st.characters(codec=None), max_size=60)
    | st.text("./\\usermoCcN:\0\ud800\u202e md~%", max_size=30)
    | unsafe_paths()
)
@example("user/\udcff\u202e")
def test_any_text_is_either_one_canonical_path_or_told_off_in_one_line(text):
    told = outcome(text)
    if told in {"bad_name", "refused"} or told.startswith("escape:"):
        return
    path = canonicalise(text, SCOPES)
    assert path.scope in SCOPES
    assert unicodedata.normalize("NFKC", path.text) == path.text
    assert os.path.normpath(path.text) == path.text
    assert path.text.isprintable()
    assert text in {path.text, f"/{path.text}", f"/memories/{path.text}"}
    path.text.encode()


@pytest.mark.threat("T-PATH-10", control="grammar_characters")
def test_exactly_the_documented_characters_can_stand_in_a_name():
    bad_categories = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
    for code in CODES:
        char = chr(code)
        fine = (
            (unicodedata.category(char) not in bad_categories or char == " ")
            and char not in '\\:*?"<>|[](){}%#!$~^`/'
            and char not in CONFUSABLES
            and char not in BLANKS
            and unicodedata.normalize("NFKC", f"-{char}-") == f"-{char}-"
        )
        assert (segment_problem(f"-{char}-") is None) == fine, f"U+{code:04X}"


def test_no_letter_or_digit_is_refused_for_looking_like_a_slash_or_dot():
    assert {unicodedata.category(char)[0] for char in CONFUSABLES} == {"M", "P", "S"}


@pytest.mark.parametrize("name", ["a.md", "a...md", ".x.md", "日.md", "..x.md", "a.MD.md"])
def test_markdown_names_can_be_created(name):
    check_creatable(CanonicalPath(Scope("user"), RelPath(f"t/{name}")))


def test_a_canonical_path_knows_its_parts():
    path = canonicalise("/memories/user/a/b.md", SCOPES)
    assert (path.scope, path.rel, path.text, path.name) == ("user", "a/b.md", "user/a/b.md", "b.md")
    assert path.segments == ("user", "a", "b.md")
    assert [path.parent.text, path.parent.parent.text, path.parent.parent.parent.text] == [
        "user/a",
        "user",
        "user",
    ]
    assert canonicalise("user", SCOPES).name == "user"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Pinned", "pinned"),
        ("ﬁle", "FILE"),
        ("straße", "STRASSE"),
        ("\u017f", "S"),
        ("K", "\u212a"),
        ("Σ", "ς"),
        ("É", "e\u0301"),
        ("\uff21", "a"),
        ("\u1e96", "H\u0331"),
    ],
)
def test_spellings_that_a_file_system_may_take_for_one_name_fold_alike(a, b):
    assert fold(a) == fold(b)


@pytest.mark.slow
def test_folding_makes_no_character_into_a_wildcard_or_separator():
    for code in CODES:
        char = chr(code)
        if segment_problem(f"-{char}-") is None:
            assert not set("*?/\n") & set(fold(char)), f"U+{code:04X}"
