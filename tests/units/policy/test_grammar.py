"""The path grammar: text from a model becomes one canonical path, an escape, or an error."""

import os.path
import traceback
import unicodedata
from dataclasses import FrozenInstanceError, replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.catching import catch_error
from kit.strategies.hostile_paths import unsafe_paths
from muniment.errors import BadName, PathEscape, Refused
from muniment.kernel import normal_forms
from muniment.kernel import path as subject
from muniment.kernel.decide import fold_single
from muniment.kernel.names import RelPath, Scope, Via
from muniment.policy.grammar import check_creatable

SCOPES = (Scope("user"), Scope("project"))


def canonicalize(text):
    try:
        return subject.canonicalise(text, SCOPES).text
    except PathEscape as escape:
        code, refusal = f"escape:{escape.via}", escape
    except (BadName, Refused) as other:
        code, refusal = other.code, other
    if not str(refusal).isprintable():
        pytest.fail(f"not one line: {refusal!r}")
    return code


ORDINARY = """user/a.md|project/t/n.md|user|user/memories/a.md|user/a..b.md|user/..notes.md|user/...md|
user/.git/config|user/R&D notes.md|user/console.md|user/com10.md|user/日本語ノート.md|user/ジョン・スミス.md|
user/हिन्दी.md|user/naïve Σ3.md|user/٢٠٢٤.md|user/col·lecció.md|user/📝.md"""


def test_ordinary_path_has_one_canonical_form_and_its_parts():
    for text in ORDINARY.replace("\n", "").split("|"):
        spellings = {subject.canonicalise(f"{root}{text}", SCOPES) for root in ("", "/", "/memories/")}
        assert [path.text for path in spellings] == [text]
    path = subject.canonicalise("/memories/user/a/b.md", SCOPES)
    assert (path.scope, path.rel, path.text, path.name) == ("user", "a/b.md", "user/a/b.md", "b.md")
    assert path.segments == ("user", "a", "b.md")
    above = [path.parent, path.parent.parent, path.parent.parent.parent]
    assert [each.text for each in above] == ["user/a", "user", "user"]
    assert subject.canonicalise("user", SCOPES).name == "user"


UPWARDS = r""".. user/.. user/../ user/sub/../a.md user//../..//outside/secret.md user/./../../x
/memories/../etc/passwd /memories/user/../../x user/%2e%2e/../x user/\/../x"""
ABSOLUTE = r"""/etc/passwd /./etc/passwd ///etc/passwd //user/a.md /memories//etc/passwd /memories/other/a.md
/memories/memories/user/a.md /memories-evil/user/a.md /USER/a.md /user\a.md //srv/share/x.md C:x.md
\\srv\share\x.md \\?\C:\x.md /\srv/x C:\x.md c:/x.md"""
ESCAPES = {
    Via.DOTDOT: UPWARDS.split(),
    Via.ABSOLUTE: ["/ /x", *ABSOLUTE.split()],
    Via.NUL: ["\0", "user/a.md\0.txt", "user/a\0/../../x", "/etc\0"],
}


@pytest.mark.threat("T-PATH-02", control="grammar_escapes")
@pytest.mark.threat("T-PATH-01", control="grammar_escapes")
def test_path_that_leads_outside_is_an_escape():
    for via, texts in ESCAPES.items():
        for text in texts:
            assert (canonicalize(text), text) == (f"escape:{via}", text)


BAD = r"""/|//|/memories|/memories/|/memories//| |.|./user/a.md|~|user:a.md|user/|user//|user//a.md|
user/./a.md|/user/|user\a.md|user/..\x|\x|user/ a.md|user/a.md |user/a.md.|user/a /b.md|user/...|
user/CON|user/con.md|user/Prn.txt.md|user/nul .md|user/COM0|user/LPT9.md|user/COM¹.md|user/lpt³|
user/CONIN$|user/conout$.md|aux/a.md|user/..%2fx|user/%2e%2e/x|user/&#46;&#46;/x|${HOME}/x|~root/x|
user/$(id).md|user/a*b.md|user/a?b.md|user/"a".md|user/<a>.md|user/[x](y).md|user/`a`.md|user/{a,b}.md|
user/a!.md|user/a^b.md|user/a.md::$DATA|user/ﬁle.md|user/。。"""
BAD_BELOW_USER = """a\rb.md|a\nb.md|a\x85b.md|a\u2028b.md|a\u200b.md|\u202ea.md|\U000f0000.md|\ud800|
..\udc2fx|\udc2e\udc2e/x|\u0378.md|\ufdd0.md|a\xa0b.md|a\u3000b.md|e\u0301.md|\uff2d.md|\uff0e\uff0e/x|
\u2024\u2024/x|\u2025/x|\u2026|..\u2044x|..\u2215x|..\u29f8x|\u29f5x|a\u3164b.md|\uffa0|❤\ufe0f.md|
\U000e0100a.md|\u2800.md|\u034f.md"""


@pytest.mark.threat("T-PATH-10", control="grammar_characters")
@pytest.mark.threat("T-PATH-02", control="grammar_decodes")
def test_invalid_path_inside_the_root_is_a_bad_name():
    below = [f"user/{name}" for name in ("a|b.md", *BAD_BELOW_USER.replace("|\n", "|").split("|"))]
    texts = ["", *BAD.replace("|\n", "|").split("|"), *below]
    assert [text for text in texts if canonicalize(text) != "bad_name"] == []


def construct(scope, rel):
    """Return the result of the constructor for the same parts."""
    try:
        return subject.CanonicalPath(scope, rel).text
    except PathEscape as escape:
        return f"escape:{escape.via}"
    except BadName as bad:
        return bad.code


@pytest.mark.threat("T-PATH-01", control="checked_paths")
@given(st.text(st.characters(exclude_categories=()), max_size=30) | unsafe_paths())
@example("user/con.md")
@example("user/a/Lpt1 .txt")
def test_constructed_path_is_always_canonical(text):
    scope, _, rel = text.partition("/")
    result = construct(scope, rel)
    if result == f"{scope}/{rel}" and rel:
        # One by one, because most code checks the whole path at once.
        assert subject.canonicalise(text, (scope,)).rel == rel
        assert list(map(subject.find_segment_problem, (scope, *rel.split("/")))) == [None] * (
            text.count("/") + 1
        )
    rel = rel[:900]  # A path above the limit of bytes is a bad name, also if it leads outside.
    for outwards in ("..", f"../{rel}", f"{rel}/../..", f"/{rel}", f"{rel}\0", f"a/{'../' * 9}x"):
        assert construct("user", outwards).startswith("escape:"), outwards
        assert construct(outwards, "a.md").startswith("escape:"), outwards


def test_path_parts_are_checked_like_the_text():
    parts = {("a/b", "c"): "bad_name", ("", "a.md"): "escape:absolute", ("", ""): "bad_name"}
    parts |= {("user", "a/"): "bad_name", ("user/", ""): "bad_name", ("user", ""): "user"}
    assert {pair: construct(*pair) for pair in parts} == parts
    top = subject.CanonicalPath("user", "a")
    assert (top.child("b.md").text, top.parent.child("b.md").text) == ("user/a/b.md", "user/b.md")
    names = {**dict.fromkeys(("", ".", "b/c"), BadName), **dict.fromkeys(("..", "b/../../c"), PathEscape)}
    for name, directory in product(names, (top, top.parent)):
        catch_error(names[name], directory.child, name)
    deepest = subject.CanonicalPath("user", "/".join("d" * 8))
    catch_error(BadName, deepest.child, "e")
    catch_error(BadName, subject.CanonicalPath("user", "a/" + "é" * 127).child, "b" * 800)


class ChangingText(str):
    """Text that looks harmless and changes when it is read again."""

    __slots__ = ()

    def encode(self, *_):
        return b"../../outside/secret.md"

    def __format__(self, _):
        return "../../outside/secret.md"


def test_path_object_never_leads_outside():
    path, outwards = subject.CanonicalPath("user", "a.md"), "../secret.md"
    for parts in (
        (ChangingText("user"), "a.md"),
        ("user", ChangingText("a.md")),
        ("user", b"a.md"),
        ("user", None),
    ):
        catch_error(TypeError, subject.CanonicalPath, *parts)
    assert type(subject.canonicalise(ChangingText("user/a.md"), SCOPES).rel) is str
    catch_error(TypeError, subject.CanonicalPath("user", "").child, ChangingText("a.md"))
    catch_error(TypeError, type, "Another", (subject.CanonicalPath,), {"__init__": lambda *_: None})
    catch_error(FrozenInstanceError, setattr, path, "rel", outwards)
    catch_error(PathEscape, replace, path, rel=outwards)
    path.__init__("user", outwards)  # It changes nothing.
    catch_error(TypeError, path.__setstate__, ["user", outwards])
    assert path == subject.CanonicalPath("user", "a.md")
    refused = catch_error(PathEscape, subject.CanonicalPath, "user", outwards)
    seen = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(refused.__traceback__)]
    assert not [each for each in seen if isinstance(each, subject.CanonicalPath) and hasattr(each, "rel")]


def test_length_and_depth_limits_are_exact_in_bytes():
    longest = "/".join(["b" * 254] * 4)
    for fits in ("a" * 255, "é" * 127, "/".join("d" * 8), "/".join("é" * 8), longest):
        assert canonicalize(f"user/{fits}") == canonicalize(f"/memories/user/{fits}") == f"user/{fits}"
    deep = "/".join("d" * 9), "/".join("é" * 9)
    for over in ("a" * 256, "é" * 128, *deep, f"{longest}b", "/".join(["é" * 127] * 5)):
        assert canonicalize(f"user/{over}") == "bad_name"
    for text in ("user/" + "a" * 5_000_000, "../" * 2_000_000, "\0" * 5_000_000):
        with pytest.raises(BadName) as caught:
            subject.canonicalise(text, SCOPES)
        assert len(str(caught.value)) < 3_000


@pytest.mark.threat("T-PATH-01", control="grammar_names")
@given(
    st.text(alphabet=st.characters(codec=None), max_size=60)
    | st.text("./\\usermoCcN:\0\ud800\u202e md~%", max_size=30)
    | unsafe_paths()
)
@example("user/\udcff\u202e")
def test_any_text_becomes_one_canonical_path_or_one_line_error(text):
    result = canonicalize(text)
    if result in {"bad_name", "refused"} or result.startswith("escape:"):
        return
    path = subject.canonicalise(text, SCOPES)
    assert path.scope in SCOPES
    assert unicodedata.normalize("NFKC", path.text) == path.text
    assert os.path.normpath(path.text) == path.text
    assert path.text.isprintable()
    assert text in {path.text, f"/{path.text}", f"/memories/{path.text}"}
    assert subject.fold(path.text) == "".join(map(subject.fold, path.text))  # As the prover reads it.
    path.text.encode()


def test_harmless_name_is_accepted():
    for name in ("a.md", "a...md", ".x.md", "日.md", "..x.md", "a.MD.md"):
        check_creatable(subject.CanonicalPath(Scope("user"), RelPath(f"t/{name}")))
    assert {unicodedata.category(char)[0] for char in subject.CONFUSABLES} == {"M", "P", "S"}  # No letters.


BAD_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("first", [*range(0, 0x32400, 0x4000), 0xE0000, 0xF0000, 0x10FFFF])
def test_exactly_the_documented_characters_are_allowed(first):
    """Covers all assigned characters; the other planes contain only unassigned and private-use ones."""
    step = 4 if first == 0 else 1  # All of ASCII, which is most common, and a sample of the rest.
    for code in {*range(128), *range(first, min(first + 0x4000, 0x110000), step)}:
        char = chr(code)
        fine = (
            (unicodedata.category(char) not in BAD_CATEGORIES or char == " ")
            and char not in '\\:*?"<>|[](){}%#!$~^`/'
            and char not in subject.CONFUSABLES
            and char not in subject.BLANKS
            and unicodedata.normalize("NFKC", f"-{char}-") == f"-{char}-"
        )
        assert (subject.find_segment_problem(f"-{char}-") is None) == fine, f"U+{code:04X}"
        for form in (subject.fold(char), fold_single(char)) if fine else ():
            assert char in ". " or not set("/. *?\n") & set(form), f"U+{code:04X}"
            assert all(map(subject.is_canonical_character, form)), f"U+{code:04X}"


SPELLINGS = (
    "Pinned pinned|ﬁle FILE|straße STRASSE|\u017f S|K \u212a|Σ ς \u03f9|É e\u0301|\uff21 a|\u1e96 H\u0331"
)


def test_equal_names_fold_equally_and_other_folds_are_rejected():
    """The prover reads names letter by letter and depends on this."""
    for spellings in SPELLINGS.split("|"):
        assert len({*map(subject.fold, spellings.split())}) == 1, spellings
    for name in ("H\u0331.md", "T\u0308.md", "W\u030a.md", "a/H\u0331/b.md"):
        with pytest.raises(BadName, match="change when case is ignored"):
            subject.canonicalise(f"user/{name}", SCOPES)
        assert canonicalize(f"user/{subject.fold(name)}") == f"user/{subject.fold(name)}"


# -- normal forms: long runs of marks are cut before they are normalized --

MARKS = "\u0301\u0316\u0327\u0344\u0345\u05b0\u0f71\u0f73\u0f75\u0f81\u3099\uff9e\uff9f\U0001d165"
TEXTS = st.text(st.sampled_from(f"ae \n-{MARKS}"), max_size=120) | st.text(max_size=40)
REAL = unicodedata.normalize


def has_short_runs(text):
    """Return whether the decomposed text has no run of marks above the limit."""
    combining = "".join("x" if unicodedata.combining(part) else " " for part in REAL("NFKD", text))
    return max(map(len, combining.split(" "))) <= 2 * normal_forms.MAX_MARKS  # Some marks decompose into two.


def test_endless_run_of_marks_is_cut_before_normalization(monkeypatch):
    seen = []
    monkeypatch.setattr(unicodedata, "normalize", lambda form, text: seen.append(text) or REAL(form, text))
    for marks in ("\u0301\u0316", "\u0301", "\u0f73\u0316", "\uff9e\u0316", "\u0344\u0316"):
        seen.clear()
        text = f"e{marks * 4_000} \u00e9"
        normalized = normal_forms.normalise("NFKC", text)
        assert [has_short_runs(each) for each in seen] == [True]
        assert normalized == normal_forms.normalise(
            "NFKC", f"e{(marks * 4_000)[: normal_forms.MAX_MARKS]} \u00e9"
        )
        assert not normal_forms.is_normalised("NFKC", text)


@given(text=TEXTS)
def test_text_without_long_runs_is_normalized_like_unicode(text):
    for form in ("NFKC", "NFKD"):
        if normal_forms.find_overlong_run(text) is None:
            assert normal_forms.normalise(form, text) == REAL(form, text)
            assert normal_forms.is_normalised(form, text) == unicodedata.is_normalized(form, text)
        assert has_short_runs(normal_forms.normalise(form, text))


def test_overlong_run_is_found_at_any_position():
    fits, over = "\u0301" * normal_forms.MAX_MARKS, "\u0316" * (normal_forms.MAX_MARKS + 1)
    assert normal_forms.find_overlong_run(f"a{fits} {fits}-{fits}") is None
    assert normal_forms.find_overlong_run(f"a{fits} {'-' * 40}{over}b") == 1 + normal_forms.MAX_MARKS + 41
    assert normal_forms.find_overlong_run(over) == 0
    assert normal_forms.find_overlong_run("-" * 100) is None
    assert subject.canonicalise(f"user/q{over[1:]}.md", ("user",)).name == f"q{over[1:]}.md"
    with pytest.raises(BadName, match="more than 30 combining marks"):
        subject.canonicalise(f"user/q{over}.md", ("user",))
