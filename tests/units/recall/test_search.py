"""Search: what is about a message comes first, nothing else comes, and no message or caller breaks it."""

import itertools
import os
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.recall.library import NOW, entry_of, library
from muniment.cancelling import Cancel
from muniment.errors import Cancelled
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Digest
from muniment.recall import search as subject
from muniment.recall.search import PAGE, Search

DEPLOY, STAGING, DATABASE = "project/deploy.md", "project/staging.md", "project/database.md"
EDITOR, TEA, CLUSTER, TOWER, NAMES = (
    f"user/{each}.md" for each in ("editor", "tea", "kubernetes", "塔", "names")
)
ENTRIES = {
    DEPLOY: entry_of("Deploying to production", "Tag the commit, then `make ship`. Never on Friday."),
    STAGING: entry_of("Staging environment", "Every merge goes to staging.example.org at once."),
    DATABASE: entry_of("The database", "PostgreSQL 15 on port 5433; the primary is 10.42.7.19."),
    EDITOR: entry_of("Editor theme", "Likes Gruvbox dark in every editor.", keywords=["colours"]),
    TEA: entry_of("Tea", "Drinks green tea without sugar.", "What the user drinks"),
    CLUSTER: entry_of("Cluster", "Kubernetes runs in three zones; helm charts live beside the code."),
    NAMES: entry_of("Names", "Of Snake_Case! or std::vector<int>, модуль.имя and cafe\u0301.py."),
    "user/other.md": entry_of("Other", "модульжжимя, 110.42.7.19"),
    TOWER: entry_of("東京タワー", "下周去东京塔。预算是三千元。"),
}


@pytest.fixture
def shelves(tmp_path):
    with library(tmp_path, ENTRIES) as shelves:
        yield shelves


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """A memory that no test changes."""
    with library(tmp_path_factory.mktemp("memory"), ENTRIES) as shelves:
        yield shelves


@pytest.fixture
def looked(shelves):
    """What searches of the memory look at, a list of files a page."""
    looked, catalog = [], shelves.catalog

    def rows(query, *given, **more):
        found = catalog.rows(query, *given, **more)
        if "text MATCH ?" in query:
            looked.append([rel for _, _, rel, *_ in found])
        return found

    shelves.search = Search(Mock(catalog, rows=rows), shelves.stemmer)
    return looked


def numbered(count, text, name="Note {}", folder="n"):
    return {f"user/{folder}{n:03}.md": entry_of(name.format(n), text.format(n)) for n in range(count)}


# -- what is found

FOUND = {
    DEPLOY: ["How do we deploy to production?", "DEPLOYING production"],
    STAGING: ["staging", "stagings"],
    CLUSTER: ["kubern", "zonés heml helm"],
    DATABASE: [
        *("which port has the database", "10.42.7.19", "postg"),
        # What is written as one name is enough among unknown words.
        *("ping 10.42.7.19", "is 10.42.7.19 reachable?", "10.42.7.19 zzzz yyyy"),
    ],
    EDITOR: [
        *("what colours does the editor have", "ＧＲＵＶＢＯＸ", "gruv"),  # noqa: RUF001
        # Of two words one is enough that an entry is named by, where the other stands nowhere.
        *("editor palette", "what palette for my editor?", "editor:palette", "colours palette"),
    ],
    NAMES: ["snake_case", "std::vector", "модуль.имя", "café.py"],
    TEA: ["green tea", "tea palette"],
    TOWER: ["东京塔的预算", "東京タワー"],
}
NOTHING = [
    *("", " ", "the and of to", "please help me with that", "a b c", "京", "db", "file code", "🤖🤖"),
    *("what is the weather in Lisbon", "write a poem about the sea", "明日の天気は", "오늘 날씨가"),
    *("commit to a diet of green vegetables and fish, never cook twice", "\0\x1b\x07", "\ud800\udfff"),
    *("gru", "uvbox", "helmet", "xyzzy"),  # Too short for a beginning, none, and one of another word.
    *("ping 10.42.7.20", "ping 10.42.7.1", "42.7.19.10 yyyy"),  # A part of a name.
    *("sugar palette", "tea postgresql"),  # One of two: only a text holds it; or both are held.
]


def test_an_entry_about_a_message_is_found_and_where_none_is_nothing(standing, tmp_path):
    rows = [(message, [path]) for path, messages in FOUND.items() for message in messages]
    for message, found in (*rows, *((message, []) for message in NOTHING)):
        assert standing.ask(message) == found, message
    with library(tmp_path) as shelves:
        assert shelves.ask("deploy to production") == []


def test_a_word_finds_in_a_small_memory_where_every_entry_holds_it(tmp_path):
    tabs = {f"user/{name}.md": entry_of(name, f"{name} is about tabs") for name in ("alpha", "beta")}
    text = " ".join(f"quux{number}" for number in range(99))
    one = {"user/a.md": entry_of("Deploying", "goes to production")}
    for entries, message, count in (
        *((tabs, "tabs", 2), (one, "deploying to production every Saturday morning", 1)),
        (numbered(2, text), "quux", 2),  # A beginning of more words than entries.
        (numbered(40, "Text", "Staging {}"), "staging palette", 0),  # The one word of two must be rare.
    ):
        with library(tmp_path / message, entries) as shelves:
            assert len(shelves.ask(message)) == count, message
            assert message != "tabs" or shelves.ask("tabs of beta")[0] == "user/beta.md"


def test_three_characters_in_a_row_are_one_word_of_two_and_no_whole_word_is_anothers_beginning(shelves):
    shelves.put({"user/a.md": entry_of("旅行", "去东京塔"), "user/b.md": entry_of("天气", "带雨伞")})
    shelves.put("user/post.md", entry_of("Letters", "The post comes at noon."))
    assert shelves.ask("东京塔 雨伞") == []
    assert shelves.ask("post") == ["user/post.md"]
    shelves.put("user/c.md", entry_of("旅行", "去东京塔带雨伞"))
    assert shelves.ask("东京塔 雨伞")[0] == "user/c.md"


def test_the_best_comes_first_and_no_more_than_asked_for_of_the_roots_that_are_meant(shelves):
    shelves.put({f"user/r{n}.md": entry_of(f"Note {n}", "rollback " * n) for n in range(1, 9)})
    hits = shelves.hits("rollback", limit=3)
    assert [shelves.path(hit) for hit in hits] == ["user/r8.md", "user/r7.md", "user/r6.md"]
    assert hits[0].score > hits[1].score > hits[2].score > 0
    again = shelves.hits("rollback", limit=3)
    assert [(hit.key, hit.score) for hit in again] == [(hit.key, hit.score) for hit in hits]
    assert hits[0].mtime_ns == shelves.file("user/r8.md").stat().st_mtime_ns
    counts = [len(shelves.ask("rollback", scopes=scopes)) for scopes in ({"user"}, {"project"}, set())]
    assert counts == [5, 0, 0]


# -- syntax

SYNTAX = {
    "deploy production": [
        *('deploy" production', '"deploy production"', "deploy* production", "-deploy -production"),
        *("deploy AND OR NOT production", "^deploy production", "((((deploy + production"),
        *("deploy\0 production\x07", "\ud800deploy\udfff production"),
    ],
    "deploy green tea": ['deploy" OR "green tea'],
    "gre tea": ["gre* tea*"],
    "name deploy production": ["name:deploy production"],
    "name body deploy": ["{name body} : deploy"],
    "near deploy production": ["NEAR(deploy production, 2)"],
    "deploy drop table entry production": ["deploy') OR 1=1; DROP TABLE entry; -- production"],
    "rank match bm25 deploy production": ["rank MATCH 'bm25(0)' deploy production"],
}
FRAGMENTS = [*"\"*^-+():';\0\ud800\U0001f916\u0301\\塔", "deploy", "production", "東京", "tea", "kube"]
FRAGMENTS += ["{name}", "NEAR(", ", 2)", "AND", "OR", "NOT", "name:", "10.42"]


def test_a_message_cannot_speak_to_the_search_in_its_syntax(standing):
    for plain, messages in SYNTAX.items():
        expected = standing.ask(plain)
        for message in messages:
            assert standing.ask(message) == expected, message
    assert standing.ask("green tea") == [TEA]


@given(message=st.text(max_size=40) | st.lists(st.sampled_from(FRAGMENTS), max_size=8).map(" ".join))
@example(message='"')
@example(message="\u19b0.\u19b1")
def test_no_message_breaks_a_search(standing, message):
    assert set(standing.ask(message, as_it_is=True)) <= set(ENTRIES)


# -- what may not be shown


def test_what_was_shown_is_left_out_until_it_is_edited_and_the_best_of_the_rest_come(shelves):
    shelves.put({f"user/r{n}.md": entry_of(f"Note {n}", "rollback " * n) for n in range(1, 2 * PAGE)})
    shown = [hit.key for hit in shelves.hits("rollback", limit=2 * PAGE - 3)]
    assert [key.rel for key in shown[:2]] == [f"r{2 * PAGE - 1}.md", f"r{2 * PAGE - 2}.md"]
    rest = [hit.key for hit in shelves.hits("rollback", exclude=shown)]
    assert [key.rel for key in rest] == ["r2.md", "r1.md"]
    assert shelves.hits("rollback", exclude=[*shown, *rest]) == ()
    for other in (rest[0]._replace(digest=Digest("0" * 64)), rest[0]._replace(rel="other.md")):
        assert [hit.key for hit in shelves.hits("rollback", exclude=[*shown, other])] == rest


def test_what_has_expired_is_held_or_unreadable_is_not_found_even_if_its_words_are_there(shelves):
    shelves.refresh()
    later, earlier = "2026-11-22T12:00:00.001Z", "2026-11-22T11:59:59.999Z"
    rows = [("expires", each) for each in (later, NOW, earlier, "")]
    for column, value in (*rows, ("held", "secrets"), ("held", ""), ("readable", 0)):
        shelves.update("user/tea.md", **{"expires": None, "held": None, "readable": 1, column: value})
        assert shelves.ask("green tea", as_it_is=True) == [TEA] * (value == later), (column, value)
    assert shelves.catalog.rows("SELECT count(*) FROM text WHERE text MATCH 'sugar'") == [(1,)]


def test_what_the_caller_refuses_stands_before_nothing_else_up_to_many_refusals(shelves):
    shelves.put(numbered(9 * PAGE, "rollback " * 5))
    shelves.put("project/long.md", entry_of("History", f"rollback {'and other things ' * 300}"))
    refused = []
    assert shelves.ask("rollback", accepts=lambda _root, rel: bool(refused.append(rel))) == []
    assert len(refused) == len(set(refused)) == 8 * PAGE
    for number in range(3 * PAGE, 9 * PAGE):
        shelves.file(f"user/n{number:03}.md").unlink()
    mine = shelves.keys["project"]
    assert shelves.ask("rollback", accepts=lambda root, _rel: root == mine) == ["project/long.md"]


def test_rows_that_move_between_pages_are_found_once(shelves):
    shelves.put(numbered(2 * PAGE, "rollback " * 9))
    numbers = itertools.count(1)

    def accepts(_root, _rel):
        if (number := next(numbers)) == PAGE:  # Meanwhile another thread finds a better one.
            shelves.put("user/first.md", entry_of("Rollback rollback", "rollback " * 99))
            shelves.refresh()
        return number % PAGE in {0, 1, 2, 3}

    found = shelves.ask("rollback", accepts=accepts, limit=9)
    assert next(numbers) > PAGE + 1
    assert len(found) == len(set(found))


# -- gate


def test_rows_with_a_rare_word_are_looked_at_first_in_a_large_memory(shelves, looked, monkeypatch):
    monkeypatch.setattr(subject, "_GATE_FROM", 0)
    shelves.put(numbered(150, "said once", folder="other/n") | numbered(9, "server settings and paths"))
    shelves.put("project/rare.md", entry_of("Zeppelin", "settings of the zeppelin server"))
    assert shelves.ask("zeppelin server settings") == shelves.ask("zeppelin") == ["project/rare.md"]
    assert shelves.ask("zeppelin", accepts=lambda _root, _rel: False) == []
    assert looked == [["rare.md"]] * 3
    looked.clear()
    shelves.put("user/z.md", entry_of("Airships", "One was called dornier."))
    found = shelves.ask("dornier server settings paths", limit=3)
    assert [path[:6] for path in found] == ["user/n"] * 3
    assert set(looked[0]) <= {"z.md"}
    assert {rel for page in looked[1:] for rel in page} >= {f"n{number:03}.md" for number in range(9)}
    looked.clear()
    shelves.put(numbered(6, "the server has ports", "Ports", folder="p"))
    assert len(shelves.ask("settings and ports of the server")) == 5  # The rarest is the gate.
    assert [sorted(page) for page in looked] == [["database.md", *(f"p{n:03}.md" for n in range(6))]]


def test_a_small_memory_has_no_gate_weak_words_look_at_no_row_and_no_page_too_many(shelves, looked):
    assert shelves.ask("file code db") == []
    assert looked == []
    shelves.put(numbered(3 * PAGE, "server settings"))
    shelves.put("user/z.md", entry_of("Airships", "The dornier has settings."))
    assert shelves.ask("dornier server settings")[0] == "user/z.md"
    assert "z.md" in looked[0]
    assert [len(shelves.ask("settings", limit=limit)) for limit in (5, PAGE + 1)] == [5, PAGE + 1]
    assert [len(page) for page in looked] == [PAGE] * 4


# -- silence is decided once for a message


def test_where_one_entry_is_about_a_message_those_that_hold_less_follow_it(shelves):
    shelves.put(numbered(4, "settings"))
    assert shelves.ask("dornier settings of servers") == []
    shelves.put("user/one.md", entry_of("One", "printers"))
    shelves.put("user/both.md", entry_of("Both", "settings of printers"))
    found = shelves.ask("dornier printers settings")
    assert found[:2] == ["user/both.md", "user/one.md"]
    assert len(found) == 5
    assert shelves.ask("dornier printers settings", limit=1) == ["user/both.md"]
    shelves.put("user/a.md", entry_of("Zeppelin", "One flew over the harbour."))
    shelves.put("user/b.md", entry_of("Cameras", "What he photographed is in the attic."))
    asked = "which of the zeppelins over the harbour our uncle photographed from the tower in winter"
    assert shelves.ask(f"Remind me {asked}") == ["user/a.md", "user/b.md"]


def test_common_words_alone_tell_no_subject_and_an_irregular_verb_is_one_word(shelves):
    message = "which two of the trees begin to grow after a year"
    shelves.put("user/a.md", entry_of("Rota", "Begins after two hours; half a year; then it grows."))
    assert shelves.ask(message) == []
    assert shelves.ask(f"{message} rota") == ["user/a.md"]
    for said, asked in (("sells honey", "sold honey"), ("teaches Latin", "taught Latin")):
        shelves.put({"user/a.md": entry_of("A", said), "user/b.md": entry_of("B", f"{said.split()[1]} only")})
        assert shelves.ask(asked)[0] == shelves.ask(said)[0] == "user/a.md"


def test_weak_words_rank_what_others_find_among_more_than_a_page(shelves):
    shelves.put(numbered(2 * PAGE, "settings of the server", "Server"))
    shelves.put("user/js.md", entry_of("Server", f"settings of the server in js, {'and so on ' * 99}"))
    assert shelves.ask("server settings")[0] != "user/js.md"
    assert shelves.ask("js server settings")[0] == "user/js.md"


# -- neighbours

QUESTION = "What does Ruth paint, was it sunsets in watercolour?"


def conversation(shelves, *lines):
    """Entries that were written one after the other, a second apart."""
    for number, line in enumerate(lines):
        shelves.put(f"user/talk/{number}.md", entry_of(f"Turn {number}", line))
        os.utime(shelves.file(f"user/talk/{number}.md"), ns=(0, (1_000_000 + number) * 1_000_000_000))


def test_what_was_said_beside_the_best_entry_comes_before_what_holds_as_much(shelves):
    nothing, lines = ["Nothing new"] * 9, ["Do you paint in watercolour?", "Ruth: lakes, mostly", "Fine"]
    conversation(shelves, "Ruth, hello", *nothing, *lines, *nothing, "Ruth, goodbye")
    assert shelves.ask(QUESTION)[:2] == ["user/talk/10.md", "user/talk/11.md"]
    os.utime(shelves.file("user/talk/11.md"), ns=(0, 1_000 * 1_000_000_000))
    shelves.refresh(sweep=True)
    assert shelves.ask(QUESTION)[1] != "user/talk/11.md"  # It was written days before.


def test_a_neighbour_that_holds_no_word_or_may_not_be_shown_does_not_come(shelves):
    conversation(shelves, "Ok", "Do you paint in watercolour?", "The user said yes")
    assert shelves.ask(f"{QUESTION} asks the user") == ["user/talk/1.md"]
    conversation(shelves, "Ruth is here", "Do you paint in watercolour?", "Ruth: lakes")
    assert len(shelves.ask(QUESTION)) == 3
    refused = shelves.ask(QUESTION, accepts=lambda _root, rel: rel != "talk/2.md")
    assert refused == ["user/talk/1.md", "user/talk/0.md"]
    shelves.update("user/talk/2.md", expires=NOW)
    assert shelves.ask(QUESTION, as_it_is=True) == refused


# -- the newer first

OLD, NEW = "We deploy the billing service on Tuesdays", "We now deploy the billing service on Mondays"
WHEN, DAYS = "When do we deploy the billing service?", ("user/old.md", "user/new.md")
PAIRS = [
    (OLD, NEW, WHEN),
    (
        OLD,
        "We no longer deploy billing on Tuesdays: the service is deployed on Mondays",
        "deploy billing service",
    ),
    ("The office is in Berlin", "The office moved to Munich", "where is the office?"),
    ("Staging runs on Postgres 15", "Staging runs on Postgres 16", "which Postgres does staging run?"),
    ("例会は毎週火曜日の午前です", "例会は毎週金曜日の午前です", "例会はいつですか"),
]


def two(shelves, old, new, *, seconds=60, old_line="", new_line="", paths=DAYS):
    """Two entries, the second written so much later, with lines of provenance."""
    for at, path, text, line in ((0, paths[0], old, old_line), (seconds, paths[1], new, new_line)):
        front = f"---\nmuniment: {line}\n---\n\n" if line else ""
        shelves.put(path, f"{front}{text}\n")
        os.utime(shelves.file(path), ns=(0, (1_000_000 + at) * 1_000_000_000))
    shelves.refresh(sweep=True)


def order(shelves, asked):
    """Those of the two that are found, best first."""
    found = shelves.ask(asked, as_it_is=True)
    return [path for path in found if path.rpartition("/")[2] in {"old.md", "new.md"}]


@pytest.mark.parametrize(("old", "new", "asked"), PAIRS)
def test_of_two_that_are_about_the_same_the_newer_comes_first_whichever_ranks_better(
    shelves, old, new, asked
):
    for paths in (DAYS, ("user/new.md", "user/old.md")):
        two(shelves, old, new, paths=paths)
        assert order(shelves, asked) == [*reversed(paths)]
    shelves.put(numbered(40, "the garden needs water"))  # Whatever else there is.
    assert order(shelves, asked) == ["user/old.md", "user/new.md"]


def test_a_later_entry_about_something_else_or_that_holds_less_stays_behind(shelves):
    for old, new, asked in (
        ("The editor font size is 14", "The editor font is Fira Code", "editor font size?"),
        (
            "Deploys billing on Tuesdays",
            "The deploy key of billing is in the vault of Ann",
            "deploy billing Tuesdays",
        ),
        ("Prefers dark mode in all editors", "The office has a dark cellar with wine", "dark editors"),
    ):
        two(shelves, old, new)
        assert order(shelves, asked)[0] == "user/old.md", asked


def test_an_entry_that_names_another_comes_right_before_it_and_hides_it_not(shelves):
    named = '{"id": "01JDOLD"}'
    for line in ('{"see": "01JDOLD"}', '{"see": ["x", "01JDOLD"]}', '{"supersedes": "01JDOLD"}'):
        for seconds in (60, -60):  # Times change when files are copied.
            two(shelves, OLD, "Billing goes out on Mondays", seconds=seconds, old_line=named, new_line=line)
            assert order(shelves, WHEN) == ["user/new.md", "user/old.md"]
    two(shelves, OLD, NEW, old_line='{"id": "01JDOLD", "see": "01JDNEW"}', new_line='{"id": "01JDNEW"}')
    assert order(shelves, WHEN) == ["user/old.md", "user/new.md"]
    digest = shelves.key("user/old.md").digest
    two(shelves, OLD, "Billing goes out on Mondays", new_line=f'{{"supersedes": "{digest}"}}', old_line="")
    digest = shelves.key("user/old.md").digest
    two(shelves, OLD, "Billing goes out on Mondays", new_line=f'{{"supersedes": "{digest}"}}')
    assert order(shelves, WHEN) == ["user/new.md", "user/old.md"]


@pytest.mark.threat("T-MEM-05", control="newer_of_less_trust")
def test_what_a_stranger_or_another_scope_writes_later_goes_before_nothing_that_is_trusted_more(shelves):
    line = '{"id": "01JDOLD"}'
    for new in (NEW, "Billing goes out on Mondays"):
        two(shelves, f"{OLD}, deploy it, deploy", new, old_line=line, new_line='{"see": "01JDOLD"}')
        assert order(shelves, WHEN) == ["user/new.md", "user/old.md"]
        shelves.update("user/new.md", trust="external")
        assert order(shelves, WHEN) == ["user/old.md", "user/new.md"]
    two(shelves, OLD, OLD, paths=("user/old.md", "project/new.md"))
    first, *_ = order(shelves, WHEN)
    two(shelves, OLD, OLD, seconds=-60, paths=("user/old.md", "project/new.md"))
    assert order(shelves, WHEN)[0] == first


def test_a_provenance_line_that_is_none_names_nothing(shelves):
    odd = [
        '{"see": 7}',
        '{"see": [[1], null]}',
        '{"id": {"a": 1}, "see": "a b"}',
        '{"see": "' + "x" * 70 + '"}',
    ]
    for line in odd:
        two(shelves, OLD, "Billing goes out on Mondays", old_line=line, new_line=line)
        assert order(shelves, WHEN) == ["user/old.md", "user/new.md"]
    two(shelves, OLD, NEW, new_line='{"see": ' + str([f"a{n}" for n in range(5_000)]).replace("'", '"') + "}")
    assert len(shelves.catalog.rows("SELECT max(length(sees)) FROM entry")) == 1


# -- endings


def test_a_search_ends_with_its_patience_also_while_it_runs(shelves):
    shelves.put(numbered(2 * PAGE, "rollback"))
    shelves.refresh()
    with Cancel() as cancel:
        accepts, patience = Mock(side_effect=lambda *_: cancel.set()), Patience(float("inf"), cancel)
        for _ in range(2):
            with pytest.raises(Cancelled):
                shelves.hits("rollback", accepts=accepts, patience=patience, as_it_is=True)
    assert accepts.call_count == PAGE
