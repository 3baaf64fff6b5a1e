"""Filing by rules: path, name and the rule writer on a fake memory."""

import json
import re
import unicodedata
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.agent.fake_memory import BOTH_SCOPES, FakeMemory, make_brief, run_model
from kit.locations import FACTS
from muniment.agent.decision import Decision, build_cue_table, fold_words, is_unspaced
from muniment.agent.filing import RuleWriter, create_next_reply, decide_entries, read_cues
from muniment.agent.model import ModelRequest, ScopeBrief
from muniment.content import titles as subject
from muniment.content.entry import EntryType, Titles
from muniment.content.titles import build_anonymous_slug, build_slug, shorten_name
from muniment.kernel.decide import Allow, PolicyEvaluator
from muniment.kernel.names import Scope, Verb
from muniment.kernel.path import canonicalise
from muniment.names import ContextMode
from muniment.policy.grammar import check_creatable
from muniment.policy.load import load_policy

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)


@cache
def load_facts(name):
    """Return the facts of a file, and the facts that the rules put into another scope than expected."""
    rows = json.loads((FACTS / f"{name}.json").read_text(encoding="utf-8"))
    return rows, [row for row in rows if read_cues(row["text"]).scope != row["scope"]]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["held_out", "ordinary", "matters"])
def test_95_percent_of_facts_get_expected_scope(name):
    rows, wrong = load_facts(name)
    assert len(wrong) <= 0.05 * len(rows), wrong
    if name != "matters":
        total, missed = (Counter(row["lang"] for row in each) for each in (rows, wrong))
        assert not {lang for lang, count in total.items() if count >= 10 and missed[lang] > 0.1 * count}
        assert len(rows) >= {"ordinary": 220, "held_out": 120}[name]


def test_file_name_comes_from_words_of_fact():
    for fact, file_fact in (
        *((f"The user prefers dark mode{end}", "editor/prefers-dark-mode.md") for end in ("", ".")),
        ("Tests run with make check", "testing/tests-run-make-check.md"),
        *(("I'm allergic to peanuts", "allergic-peanuts.md"), ("ผมชอบกาแฟ", "ผมชอบกาแฟ.md")),
        ("我喜欢用制表符而不是空格", "style/我喜欢用制表符而不是空格.md"),
        ("मुझे छोटे उत्तर पसंद हैं", "communication/मुझे-छोटे-उत्तर-पसंद.md"),
        *(("CLAUDE.md", "claude-md.md"), ("../../etc/passwd", "etc-passwd.md")),
    ):
        assert decide_entries(make_brief(fact, BOTH_SCOPES))[0].file == file_fact
    assert re.fullmatch(r"note-[0-9a-f]{8}\.md", decide_entries(make_brief("🙏", BOTH_SCOPES))[0].file)
    for word in ("con", "AUX", "nul", "Com1", "memory", "Claude", "AGENTS", "qwen", "gemini", "SKILL"):
        assert (
            build_slug(word, word) == f"note-{word.lower()}"
        )  # Device names and names of instruction files.


MAX_FILE_CHARS = 40
"""Maximum number of characters of a file name with its number and suffix."""


def test_name_has_no_function_words_and_no_values():
    for fact, name in (
        ("We deploy on Thursdays at 10", "deploy"),
        ("The API port is 8080", "api-port"),
        ("Backups of the database are kept for 14 days in the bucket", "backups-database-kept-bucket"),
        ("Dave's phone number is 555-1234", "daves-phone-number"),
        ("My favourite editor is vim", "favourite-editor"),
        ("The lamp is green", "lamp-green"),
        ("Uncle Bob is allergic to peanuts", "uncle-bob-allergic-peanuts"),
        ("Invoice 1043 is paid", "invoice-1043"),
        ("The user prefers quince jam to marmalade", "prefers-quince-jam-marmalade"),
        ("Tenemos las quince sillas azules en la sala", "tenemos-sillas-azules-sala"),
        ("Tuesdays at 10", "tuesdays-at-10"),
        ("We moved to v2. The old server is gone", "moved"),
        ("L'heure du standup est 9h30", "heure-standup"),
        ("Die Miete beträgt 900 Euro", "miete-beträgt"),
        ("Сервер теперь слушает порт 9090", "сервер-слушает-порт"),
        ("APIのポートは8080です。", "apiのポート"),
        ("我们每周四部署", "部署"),
    ):
        assert build_slug(subject.derive_title(fact), fact) == name, fact


def test_name_keeps_words_that_deny():
    for fact, name in (
        ("We don't use ORMs", "dont-use-orms"),
        ("Do not commit to main directly", "not-commit-main-directly"),
        ("I no longer prefer dark mode", "no-longer-prefer-dark-mode"),
        ("We deploy on Mondays, not on Fridays", "deploy"),
        ("Ich esse kein Fleisch mehr", "esse-kein-fleisch-mehr"),
        ("Я не пью кофе вечером", "не-пью-кофе-вечером"),
    ):
        assert build_slug(subject.derive_title(fact), fact) == name, fact


def test_foreign_name_keeps_its_words_if_they_fit():
    for name, shortened in (
        ("2026-01-15 standup", "2026-01-15-standup"),
        ("How to release", "how-to-release"),
        ("How to release the mobile app to the stores", "release-mobile-app-stores"),
        ("memory", "note-memory"),
    ):
        assert shorten_name(name, "text") == shortened


def test_title_contains_no_scheme_or_emphasis():
    for fact, title in (
        ("The docs are at https://www.docs.example.com/x_y", "The docs are at docs.example.com/x_y"),
        ("**Never** push to `main`, see ftp://a.b", "Never push to main, see a.b"),
        ("Use snake_case_names and 2 * 3 * 4, __always__", "Use snake_case_names and 2 * 3 * 4, always"),
        ("http:// is no address", "http:// is no address"),
    ):
        assert subject.derive_titles(fact) == Titles(title, title), fact


def test_cut_title_keeps_letter_with_combining_marks():
    for mark_heavy in ("कि" * 100, "ก็" * 100, "e\u0323\u0302x" * 100):
        for text in (subject.derive_title(mark_heavy).rstrip("…"), build_slug(mark_heavy, mark_heavy)):
            rest = unicodedata.normalize("NFKC", mark_heavy)[len(text) :]
            assert not unicodedata.category(rest[0]).startswith("M")


@given(TEXT.filter(str.strip))
def test_any_fact_is_saved_verbatim_then_already_known(fact):
    decision, *_ = decide_entries(make_brief(fact, BOTH_SCOPES))
    path = canonicalise(f"{decision.scope}/{decision.file}", [Scope("user"), Scope("project")])
    check_creatable(path)
    assert path.text == f"{decision.scope}/{decision.file}"
    assert PolicyEvaluator(load_policy("strict")).decide(Verb.CREATE, path) == Allow()
    assert len(path.name) <= MAX_FILE_CHARS - len("-9999")
    assert len(path.name.split("-")) <= subject.MAX_NAME_WORDS + len(["note"])
    memory = FakeMemory()
    assert remember(memory, fact).text.startswith("Saved to ")
    (text,) = memory.files.values()
    assert text.endswith(f"---\n{fact.strip()}\n")
    if len(fact.strip().splitlines()) == 1 and any(char.isalnum() for char in fact):
        assert remember(memory, fact).text.startswith(KNOWN)


def build_pattern(cue_text):
    """Translate a cue, as documented in `cues.toml`, into a pattern; it is the oracle."""
    cue, _, exceptions = cue_text.partition("!")
    phrase = re.escape(fold_words(cue.strip("^* ")).strip())
    each = (re.escape(fold_words(stop).strip() + " " * stop.endswith(" ")) for stop in exceptions.split("|"))
    stops = "|".join(each)
    first = "^ " if cue.startswith("^") else ""
    if is_unspaced(cue):
        return f"{first}{phrase}" + (f"(?!{stops})" if exceptions else "")
    before, after = first or "(?<= )" * (cue[0] != "*"), "(?= )" * (cue[-1] != "*")
    return before + phrase + after + (f"(?! (?:{stops}))" if exceptions else "")


WRITTEN = ["i!o |t ", "^user is", "mon!fri|to ", "deploy", "deploy*", "*ing", "app |", "我!们|司", "^私"]
WRITTEN += ["to do", "to"]
PARTS = [*"iot我们私x", "user is", "is", "mon", "friday", "to", "do", "deploying", "deploy", "app"]


@given(st.lists(st.sampled_from(PARTS), max_size=9))
def test_cue_table_matches_reference_pattern(parts):
    text, table = f" {' '.join(parts)} ", build_cue_table(WRITTEN)
    pattern = re.compile("|".join(map(build_pattern, sorted(WRITTEN, key=len, reverse=True))))
    assert table.occurs(text) == (pattern.search(text) is not None)
    assert table.count_matches(text) == len(pattern.findall(text))


FACT = "Staging DB is Postgres 16"
FIRST = "project/database/staging.md"
DIGEST = build_anonymous_slug(FACT).removeprefix("note-")


class ReviewDecision:
    """Model that has decided and leaves the filing to the code under test."""

    name = "decided"

    def __init__(self, **more):
        fields = {"scope": Scope("project"), "type": EntryType.PROJECT, "file": "database/staging.md"}
        self.decision = Decision(**{**fields, "title": "Staging", "text": FACT, **more})

    def respond(self, request):
        return create_next_reply([self.decision], request)


def file_fact(files=(), stops=(), **more):
    return run_model(ReviewDecision(**more), make_brief(FACT), FakeMemory(dict(files), dict(stops)))


def test_unusable_path_falls_back_to_other_name():
    with_digest = f"project/database/staging-{DIGEST}.md"
    # The entry is related, so it is not tried.
    assert file_fact({FIRST: "Something else.\n"}).written_paths == [with_digest]
    not_read = {FIRST: ("error", "not_read")}
    assert file_fact(stops=not_read).written_paths == [FIRST, with_digest]
    done = file_fact({with_digest: "Else.\n"}, not_read)
    assert done.written_paths == [FIRST, f"project/database/{build_anonymous_slug(FACT)}-2.md"]
    assert file_fact(stops={FIRST: ("error", "not_a_file")}).written_paths == [FIRST, "project/staging.md"]
    done = file_fact(stops={"project/a*b/c.md": ("deny", "bad_name")}, file="a*b/c.md")
    assert done.written_paths == ["project/a*b/c.md", f"project/{build_anonymous_slug(FACT)}.md"]


def test_denied_scope_or_two_failed_names_end_filing():
    done = file_fact(stops={"project/c.md": ("deny", "refused")}, file="c.md")
    assert done.written_paths == ["project/c.md"]
    assert done.text == "Not saved: the write failed with refused."
    not_read = ("error", "not_read")
    done = file_fact(stops={FIRST: not_read, f"project/database/staging-{DIGEST}.md": not_read})
    assert (len(done.written_paths), done.turns) == (2, 3)
    assert done.text.startswith("Not saved: ")
    reply = create_next_reply([ReviewDecision().decision], ModelRequest(make_brief(FACT), (), (), 1.0))
    assert (reply.calls, reply.text) == ((), "Not saved: no turn is left for a write.")


DARK = "The user prefers dark mode in all editors"
KNOWN = "Already known: "


def remember(memory, fact, **more):
    return run_model(RuleWriter(), make_brief(fact, **more), memory)


def remember_with_files(files, fact=DARK, **more):
    """Return the final text of a run on a memory with these files."""
    return remember(FakeMemory(dict(files)), fact, **more).text


def test_new_fact_is_written_verbatim_after_front_matter():
    memory = FakeMemory()
    done = remember(memory, DARK)
    path = "user/editor/prefers-dark-mode-all-editors.md"
    front = f"---\nname: Prefers dark mode in all editors\ndescription: {DARK}\ntype: user\n---\n"
    assert memory.files == {path: f"{front}{DARK}\n"}
    assert (done.text, done.turns) == (f"Saved to {path}: Prefers dark mode in all editors", 2)
    assert RuleWriter().name == "rules"


def test_same_fact_in_other_spelling_is_already_known():
    memory = FakeMemory()
    remember(memory, DARK)
    before = dict(memory.files)
    wide = "The user prefers \uff44\uff41\uff52\uff4b mode in all editors"
    spaced = "the user  prefers\n dark mode in all editors"
    for variant in (DARK, DARK + ".", DARK.upper() + "!!", spaced, wide, DARK + " …"):
        assert remember(memory, variant).text == f"{KNOWN}user/editor/prefers-dark-mode-all-editors.md"
        assert memory.files == before


def test_fact_with_changed_meaning_is_new_entry():
    pairs = ("My name is Ana", "My name is Anna"), ("I like C++", "I like C"), ("房间 3 很大", "房间 4 很大")
    for first, second in (
        *((DARK, DARK.replace(*change)) for change in (("dark", "light"), ("all", "some"))),
        *(
            ("Postgres 16 runs in staging", "Postgres 15 runs in staging"),
            ("We don't use ORMs", "We use ORMs"),
        ),
        *(("Build 14 takes minutes", "Build 41 takes minutes"), *pairs),
    ):
        memory = FakeMemory()
        remember(memory, first)
        before = dict(memory.files)
        assert remember(memory, second).text.startswith("Saved to ")
        assert len(memory.files) == 2
        assert before.items() <= memory.files.items()
    for mark in ("?", "\uff1f", "\u061f", "\u037e", ";", " ?!", "?."):
        assert remember_with_files({"user/looks.md": f"{DARK}{mark}\n"}).startswith("Saved to "), mark
        assert remember_with_files({"user/looks.md": f"{DARK}.\n"}, DARK + mark).startswith("Saved to "), mark


def test_fact_equal_to_body_or_list_item_is_known():
    items = (f"- {DARK}\n", f"- Likes tea\n* {DARK}.\n", f"\n1. Likes tea\n\n2) {DARK.upper()}\n")
    for body in (*items, "The user prefers dark mode\nin all editors.\n"):
        assert (
            remember_with_files({"user/looks.md": f"---\nname: Looks\n---\n{body}"})
            == f"{KNOWN}user/looks.md"
        ), body


def test_fact_quoted_in_other_context_is_not_known():
    for body in (
        *(f"{before}\n\n- {DARK}\n" for before in ("Never do any of this:", "# Outdated")),
        *(f"- {no}\n- {DARK}\n" for no in ("Never do any of this:", "**Never do any of this\uff1a**")),
        *(f"- {DARK}\n{after}except at night\n" for after in ("", "  ")),
        *(f"- {DARK}\n\nNone of this is so.\n", f"- No longer\n  - {DARK}\n", f"- [ ] {DARK}\n"),
        *(f"> {DARK}\n", f"```\n- {DARK}\n```\n", f"It is wrong that\n\n{DARK}\n"),
        *(f"{DARK}\n\nThis is what he said once.\n", f"# {DARK}\n\nIs that so?\n"),
        "filler\n" * 900 + f"- {DARK}\n" + "filler\n" * 30,  # Only a part of this is displayed.
        f"---\nname: Lies\ndescription: {DARK}\n{DARK}\n---\nSomething else.\n",
    ):
        assert remember_with_files({"user/looks.md": body}).startswith("Saved to "), body
    assert remember_with_files({"user/MEMORY.md": f"{DARK}\n", "user/index/abc.md": f"{DARK}\n"}).startswith(
        "Saved to "
    )


def test_fact_is_known_only_in_writable_scopes():
    files = {"project/looks.md": f"{DARK}\n"}
    scopes = (ScopeBrief(Scope("user"), writable=True), ScopeBrief(Scope("project"), writable=False))
    assert remember_with_files(files) == f"{KNOWN}project/looks.md"
    assert remember_with_files(files, scopes=scopes).startswith("Saved to user/")
    for read_only_scopes in ((), tuple(ScopeBrief(each.name, writable=False) for each in BOTH_SCOPES)):
        done = remember(FakeMemory(), DARK, scopes=read_only_scopes)
        assert (done.text, done.calls) == ("Not saved: this run has no writable scope.", [])


def test_clean_run_writes_without_reading():
    done = remember(FakeMemory({"user/looks.md": f"{DARK}\n"}), DARK, context=ContextMode.CLEAN)
    assert ([call.tool for call in done.calls], done.turns) == (["write_file"], 2)


def test_longest_facts_are_saved():
    for fact in ("x" * 65_536, "word " * 13_000, "深色" * 10_000, "- \n" * 20_000 + "x", "a\n" * 30_000):
        memory = FakeMemory()
        assert remember(memory, fact).text.startswith("Saved to ")
        assert next(iter(memory.files.values())).endswith(f"---\n{fact.strip()}\n")
