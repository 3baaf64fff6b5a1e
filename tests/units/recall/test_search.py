"""Search: entries about a message rank first, nothing else is found, and no message or caller breaks it."""

import itertools
import os
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.recall.library import NOW, format_entry, open_library
from muniment.cancelling import Cancel
from muniment.errors import Cancelled
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Digest
from muniment.recall import search as subject
from muniment.recall.search import PAGE, Search

DEPLOY, STAGING, DATABASE = "project/deploy.md", "project/staging.md", "project/database.md"
EDITOR, TEA, CLUSTER, TOWER, NAMES = (
    f"user/{each}.md" for each in ("editor", "tea", "kubernetes", "塔", "names")
)
ENTRIES = {
    DEPLOY: format_entry("Deploying to production", "Tag the commit, then `make ship`. Never on Friday."),
    STAGING: format_entry("Staging environment", "Every merge goes to staging.example.org at once."),
    DATABASE: format_entry("The database", "PostgreSQL 15 on port 5433; the primary is 10.42.7.19."),
    EDITOR: format_entry("Editor theme", "Likes Gruvbox dark in every editor.", keywords=["colours"]),
    TEA: format_entry("Tea", "Drinks green tea without sugar.", "What the user drinks"),
    CLUSTER: format_entry("Cluster", "Kubernetes runs in three zones; helm charts live beside the code."),
    NAMES: format_entry("Names", "Of Snake_Case! or std::vector<int>, модуль.имя and cafe\u0301.py."),
    "user/other.md": format_entry("Other", "модульжжимя, 110.42.7.19"),
    TOWER: format_entry("東京タワー", "下周去东京塔。预算是三千元。"),
}


@pytest.fixture
def entry_index(tmp_path):
    with open_library(tmp_path, ENTRIES) as entry_index:
        yield entry_index


@pytest.fixture(scope="module")
def shared_index(tmp_path_factory):
    """A memory that no test changes."""
    with open_library(tmp_path_factory.mktemp("memory"), ENTRIES) as entry_index:
        yield entry_index


@pytest.fixture
def visited_pages(entry_index):
    """The rows that searches of the memory read: a list of files per page."""
    pages, catalog = [], entry_index.catalog

    def rows(query, *args, **more):
        found = catalog.rows(query, *args, **more)
        if "text MATCH ?" in query:
            pages.append([rel for _, _, rel, *_ in found])
        return found

    entry_index.search = Search(Mock(catalog, rows=rows), entry_index.stemmer)
    return pages


def make_numbered(count, text, name="Note {}", folder="n"):
    return {f"user/{folder}{n:03}.md": format_entry(name.format(n), text.format(n)) for n in range(count)}


# -- what is found

FOUND = {
    DEPLOY: ["How do we deploy to production?", "DEPLOYING production"],
    STAGING: ["staging", "stagings"],
    CLUSTER: ["kubern", "zonés heml helm"],
    DATABASE: [
        *("which port has the database", "10.42.7.19", "postg"),
        # One written name is enough among unknown words.
        *("ping 10.42.7.19", "is 10.42.7.19 reachable?", "10.42.7.19 zzzz yyyy"),
    ],
    EDITOR: [
        *("what colours does the editor have", "ＧＲＵＶＢＯＸ", "gruv"),  # noqa: RUF001
        # One of two words that names an entry is enough if the other word occurs nowhere.
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
    # Too short for a prefix, not a prefix, and a prefix of another word.
    *("gru", "uvbox", "helmet", "xyzzy"),
    *("ping 10.42.7.20", "ping 10.42.7.1", "42.7.19.10 yyyy"),  # A part of a name.
    *("sugar palette", "tea postgresql"),  # One of two: only a text contains it; or both occur.
]


def test_matching_entry_is_found_and_other_messages_find_nothing(shared_index, tmp_path):
    rows = [(message, [path]) for path, messages in FOUND.items() for message in messages]
    for message, found in (*rows, *((message, []) for message in NOTHING)):
        assert shared_index.search_paths(message) == found, message
    with open_library(tmp_path) as entry_index:
        assert entry_index.search_paths("deploy to production") == []


def test_word_of_every_entry_still_finds_in_a_small_memory(tmp_path):
    tabs = {f"user/{name}.md": format_entry(name, f"{name} is about tabs") for name in ("alpha", "beta")}
    text = " ".join(f"quux{number}" for number in range(99))
    one = {"user/a.md": format_entry("Deploying", "goes to production")}
    for entries, message, count in (
        *((tabs, "tabs", 2), (one, "deploying to production every Saturday morning", 1)),
        (make_numbered(2, text), "quux", 2),  # A prefix of more words than entries.
        (make_numbered(40, "Text", "Staging {}"), "staging palette", 0),  # The only word of two must be rare.
    ):
        with open_library(tmp_path / message, entries) as entry_index:
            assert len(entry_index.search_paths(message)) == count, message
            assert message != "tabs" or entry_index.search_paths("tabs of beta")[0] == "user/beta.md"


def test_three_characters_are_one_word_and_no_prefix(entry_index):
    entry_index.write_files(
        {"user/a.md": format_entry("旅行", "去东京塔"), "user/b.md": format_entry("天气", "带雨伞")}
    )
    entry_index.write_files("user/post.md", format_entry("Letters", "The post comes at noon."))
    assert entry_index.search_paths("东京塔 雨伞") == []
    assert entry_index.search_paths("post") == ["user/post.md"]
    entry_index.write_files("user/c.md", format_entry("旅行", "去东京塔带雨伞"))
    assert entry_index.search_paths("东京塔 雨伞")[0] == "user/c.md"


def test_results_are_ranked_limited_and_restricted_to_scopes(entry_index):
    entry_index.write_files(
        {f"user/r{n}.md": format_entry(f"Note {n}", "rollback " * n) for n in range(1, 9)}
    )
    hits = entry_index.search_hits("rollback", limit=3)
    assert [entry_index.get_path(hit) for hit in hits] == ["user/r8.md", "user/r7.md", "user/r6.md"]
    assert hits[0].score > hits[1].score > hits[2].score > 0
    repeated = entry_index.search_hits("rollback", limit=3)
    assert [(hit.key, hit.score) for hit in repeated] == [(hit.key, hit.score) for hit in hits]
    assert hits[0].mtime_ns == entry_index.get_file_path("user/r8.md").stat().st_mtime_ns
    counts = [
        len(entry_index.search_paths("rollback", scopes=scopes)) for scopes in ({"user"}, {"project"}, set())
    ]
    assert counts == [5, 0, 0]


# -- query syntax

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


def test_message_cannot_use_query_syntax(shared_index):
    for plain, messages in SYNTAX.items():
        expected = shared_index.search_paths(plain)
        for message in messages:
            assert shared_index.search_paths(message) == expected, message
    assert shared_index.search_paths("green tea") == [TEA]


@given(message=st.text(max_size=40) | st.lists(st.sampled_from(FRAGMENTS), max_size=8).map(" ".join))
@example(message='"')
@example(message="\u19b0.\u19b1")
def test_no_message_breaks_a_search(shared_index, message):
    assert set(shared_index.search_paths(message, skip_refresh=True)) <= set(ENTRIES)


# -- entries that are not shown


def test_excluded_entries_are_left_out_until_edited(entry_index):
    entry_index.write_files(
        {f"user/r{n}.md": format_entry(f"Note {n}", "rollback " * n) for n in range(1, 2 * PAGE)}
    )
    excluded = [hit.key for hit in entry_index.search_hits("rollback", limit=2 * PAGE - 3)]
    assert [key.rel for key in excluded[:2]] == [f"r{2 * PAGE - 1}.md", f"r{2 * PAGE - 2}.md"]
    rest = [hit.key for hit in entry_index.search_hits("rollback", exclude=excluded)]
    assert [key.rel for key in rest] == ["r2.md", "r1.md"]
    assert entry_index.search_hits("rollback", exclude=[*excluded, *rest]) == ()
    for other in (rest[0]._replace(digest=Digest("0" * 64)), rest[0]._replace(rel="other.md")):
        assert [hit.key for hit in entry_index.search_hits("rollback", exclude=[*excluded, other])] == rest


def test_expired_withheld_and_unreadable_entries_are_not_found(entry_index):
    entry_index.refresh()
    later, earlier = "2026-11-22T12:00:00.001Z", "2026-11-22T11:59:59.999Z"
    rows = [("expires", each) for each in (later, NOW, earlier, "")]
    for column, value in (*rows, ("held", "secrets"), ("held", ""), ("readable", 0)):
        entry_index.update("user/tea.md", **{"expires": None, "held": None, "readable": 1, column: value})
        assert entry_index.search_paths("green tea", skip_refresh=True) == [TEA] * (value == later), (
            column,
            value,
        )
    assert entry_index.catalog.rows("SELECT count(*) FROM text WHERE text MATCH 'sugar'") == [(1,)]


def test_rejected_entries_do_not_hide_others_up_to_a_limit(entry_index):
    entry_index.write_files(make_numbered(9 * PAGE, "rollback " * 5))
    entry_index.write_files(
        "project/long.md", format_entry("History", f"rollback {'and other things ' * 300}")
    )
    refused = []
    assert entry_index.search_paths("rollback", accepts=lambda _root, rel: bool(refused.append(rel))) == []
    assert len(refused) == len(set(refused)) == 8 * PAGE
    for number in range(3 * PAGE, 9 * PAGE):
        entry_index.get_file_path(f"user/n{number:03}.md").unlink()
    project_key = entry_index.keys["project"]
    assert entry_index.search_paths("rollback", accepts=lambda root, _rel: root == project_key) == [
        "project/long.md"
    ]


def test_rows_that_move_between_pages_are_found_once(entry_index):
    entry_index.write_files(make_numbered(2 * PAGE, "rollback " * 9))
    numbers = itertools.count(1)

    def accepts(_root, _rel):
        if (number := next(numbers)) == PAGE:  # Meanwhile another thread adds a better one.
            entry_index.write_files("user/first.md", format_entry("Rollback rollback", "rollback " * 99))
            entry_index.refresh()
        return number % PAGE in {0, 1, 2, 3}

    found = entry_index.search_paths("rollback", accepts=accepts, limit=9)
    assert next(numbers) > PAGE + 1
    assert len(found) == len(set(found))


# -- gate


def test_rare_words_are_searched_first_in_a_large_memory(entry_index, visited_pages, monkeypatch):
    monkeypatch.setattr(subject, "_MIN_GATED_ENTRIES", 0)
    entry_index.write_files(
        make_numbered(150, "said once", folder="other/n") | make_numbered(9, "server settings and paths")
    )
    entry_index.write_files("project/rare.md", format_entry("Zeppelin", "settings of the zeppelin server"))
    assert (
        entry_index.search_paths("zeppelin server settings")
        == entry_index.search_paths("zeppelin")
        == ["project/rare.md"]
    )
    assert entry_index.search_paths("zeppelin", accepts=lambda _root, _rel: False) == []
    assert visited_pages == [["rare.md"]] * 3
    visited_pages.clear()
    entry_index.write_files("user/z.md", format_entry("Airships", "One was called dornier."))
    found = entry_index.search_paths("dornier server settings paths", limit=3)
    assert [path[:6] for path in found] == ["user/n"] * 3
    assert set(visited_pages[0]) <= {"z.md"}
    assert {rel for page in visited_pages[1:] for rel in page} >= {f"n{number:03}.md" for number in range(9)}
    visited_pages.clear()
    entry_index.write_files(make_numbered(6, "the server has ports", "Ports", folder="p"))
    assert (
        len(entry_index.search_paths("settings and ports of the server")) == 5
    )  # The rarest word is the gate.
    assert [sorted(page) for page in visited_pages] == [["database.md", *(f"p{n:03}.md" for n in range(6))]]


def test_small_memory_has_no_gate_and_reads_few_pages(entry_index, visited_pages):
    assert entry_index.search_paths("file code db") == []
    assert visited_pages == []
    entry_index.write_files(make_numbered(3 * PAGE, "server settings"))
    entry_index.write_files("user/z.md", format_entry("Airships", "The dornier has settings."))
    assert entry_index.search_paths("dornier server settings")[0] == "user/z.md"
    assert "z.md" in visited_pages[0]
    assert [len(entry_index.search_paths("settings", limit=limit)) for limit in (5, PAGE + 1)] == [
        5,
        PAGE + 1,
    ]
    assert [len(page) for page in visited_pages] == [PAGE] * 4


# -- the decision that nothing matches is made once per message


def test_weaker_matches_follow_one_clear_match(entry_index):
    entry_index.write_files(make_numbered(4, "settings"))
    assert entry_index.search_paths("dornier settings of servers") == []
    entry_index.write_files("user/one.md", format_entry("One", "printers"))
    entry_index.write_files("user/both.md", format_entry("Both", "settings of printers"))
    found = entry_index.search_paths("dornier printers settings")
    assert found[:2] == ["user/both.md", "user/one.md"]
    assert len(found) == 5
    assert entry_index.search_paths("dornier printers settings", limit=1) == ["user/both.md"]
    entry_index.write_files("user/a.md", format_entry("Zeppelin", "One flew over the harbour."))
    entry_index.write_files("user/b.md", format_entry("Cameras", "What he photographed is in the attic."))
    question = "which of the zeppelins over the harbour our uncle photographed from the tower in winter"
    assert entry_index.search_paths(f"Remind me {question}") == ["user/a.md", "user/b.md"]


def test_common_words_match_nothing_and_irregular_verbs_match(entry_index):
    message = "which two of the trees begin to grow after a year"
    entry_index.write_files(
        "user/a.md", format_entry("Rota", "Begins after two hours; half a year; then it grows.")
    )
    assert entry_index.search_paths(message) == []
    assert entry_index.search_paths(f"{message} rota") == ["user/a.md"]
    for stored, query in (("sells honey", "sold honey"), ("teaches Latin", "taught Latin")):
        entry_index.write_files(
            {
                "user/a.md": format_entry("A", stored),
                "user/b.md": format_entry("B", f"{stored.split()[1]} only"),
            }
        )
        assert entry_index.search_paths(query)[0] == entry_index.search_paths(stored)[0] == "user/a.md"


def test_weak_words_affect_the_ranking_of_large_results(entry_index):
    entry_index.write_files(make_numbered(2 * PAGE, "settings of the server", "Server"))
    entry_index.write_files(
        "user/js.md", format_entry("Server", f"settings of the server in js, {'and so on ' * 99}")
    )
    assert entry_index.search_paths("server settings")[0] != "user/js.md"
    assert entry_index.search_paths("js server settings")[0] == "user/js.md"


# -- neighbours

QUESTION = "What does Ruth paint, was it sunsets in watercolour?"


def write_conversation(entry_index, *lines):
    """Write entries one second apart."""
    for number, line in enumerate(lines):
        entry_index.write_files(f"user/talk/{number}.md", format_entry(f"Turn {number}", line))
        os.utime(
            entry_index.get_file_path(f"user/talk/{number}.md"), ns=(0, (1_000_000 + number) * 1_000_000_000)
        )


def test_neighbour_of_the_best_entry_ranks_above_equal_matches(entry_index):
    nothing, lines = ["Nothing new"] * 9, ["Do you paint in watercolour?", "Ruth: lakes, mostly", "Fine"]
    write_conversation(entry_index, "Ruth, hello", *nothing, *lines, *nothing, "Ruth, goodbye")
    assert entry_index.search_paths(QUESTION)[:2] == ["user/talk/10.md", "user/talk/11.md"]
    os.utime(entry_index.get_file_path("user/talk/11.md"), ns=(0, 1_000 * 1_000_000_000))
    entry_index.refresh(sweep=True)
    assert entry_index.search_paths(QUESTION)[1] != "user/talk/11.md"  # It was written days before.


def test_neighbour_without_a_match_is_not_found(entry_index):
    write_conversation(entry_index, "Ok", "Do you paint in watercolour?", "The user said yes")
    assert entry_index.search_paths(f"{QUESTION} asks the user") == ["user/talk/1.md"]
    write_conversation(entry_index, "Ruth is here", "Do you paint in watercolour?", "Ruth: lakes")
    assert len(entry_index.search_paths(QUESTION)) == 3
    refused = entry_index.search_paths(QUESTION, accepts=lambda _root, rel: rel != "talk/2.md")
    assert refused == ["user/talk/1.md", "user/talk/0.md"]
    entry_index.update("user/talk/2.md", expires=NOW)
    assert entry_index.search_paths(QUESTION, skip_refresh=True) == refused


# -- the newer entry first

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


def put_two(entry_index, old, new, *, seconds=60, old_line="", new_line="", paths=DAYS):
    """Write two entries, the second one `seconds` later, with provenance lines."""
    for at, path, text, line in ((0, paths[0], old, old_line), (seconds, paths[1], new, new_line)):
        front = f"---\nmuniment: {line}\n---\n\n" if line else ""
        entry_index.write_files(path, f"{front}{text}\n")
        os.utime(entry_index.get_file_path(path), ns=(0, (1_000_000 + at) * 1_000_000_000))
    entry_index.refresh(sweep=True)


def find_order(entry_index, question):
    """Return those of the two that are found, best first."""
    found = entry_index.search_paths(question, skip_refresh=True)
    return [path for path in found if path.rpartition("/")[2] in {"old.md", "new.md"}]


@pytest.mark.parametrize(("old", "new", "question"), PAIRS)
def test_newer_of_two_similar_entries_ranks_first(entry_index, old, new, question):
    for paths in (DAYS, ("user/new.md", "user/old.md")):
        put_two(entry_index, old, new, paths=paths)
        assert find_order(entry_index, question) == [*reversed(paths)]
    entry_index.write_files(make_numbered(40, "the garden needs water"))  # Also among other entries.
    assert find_order(entry_index, question) == ["user/old.md", "user/new.md"]


def test_later_entry_with_a_weaker_match_ranks_second(entry_index):
    for old, new, question in (
        ("The editor font size is 14", "The editor font is Fira Code", "editor font size?"),
        (
            "Deploys billing on Tuesdays",
            "The deploy key of billing is in the vault of Ann",
            "deploy billing Tuesdays",
        ),
        ("Prefers dark mode in all editors", "The office has a dark cellar with wine", "dark editors"),
    ):
        put_two(entry_index, old, new)
        assert find_order(entry_index, question)[0] == "user/old.md", question


def test_entry_that_references_another_ranks_right_before_it(entry_index):
    named = '{"id": "01JDOLD"}'
    for line in ('{"see": "01JDOLD"}', '{"see": ["x", "01JDOLD"]}', '{"supersedes": "01JDOLD"}'):
        for seconds in (60, -60):  # Times change when files are copied.
            put_two(
                entry_index,
                OLD,
                "Billing goes out on Mondays",
                seconds=seconds,
                old_line=named,
                new_line=line,
            )
            assert find_order(entry_index, WHEN) == ["user/new.md", "user/old.md"]
    put_two(
        entry_index, OLD, NEW, old_line='{"id": "01JDOLD", "see": "01JDNEW"}', new_line='{"id": "01JDNEW"}'
    )
    assert find_order(entry_index, WHEN) == ["user/old.md", "user/new.md"]
    digest = entry_index.read_key("user/old.md").digest
    put_two(
        entry_index, OLD, "Billing goes out on Mondays", new_line=f'{{"supersedes": "{digest}"}}', old_line=""
    )
    digest = entry_index.read_key("user/old.md").digest
    put_two(entry_index, OLD, "Billing goes out on Mondays", new_line=f'{{"supersedes": "{digest}"}}')
    assert find_order(entry_index, WHEN) == ["user/new.md", "user/old.md"]


@pytest.mark.threat("T-MEM-05", control="newer_of_less_trust")
def test_less_trusted_newer_entry_does_not_outrank_the_older(entry_index):
    line = '{"id": "01JDOLD"}'
    for new in (NEW, "Billing goes out on Mondays"):
        put_two(entry_index, f"{OLD}, deploy it, deploy", new, old_line=line, new_line='{"see": "01JDOLD"}')
        assert find_order(entry_index, WHEN) == ["user/new.md", "user/old.md"]
        entry_index.update("user/new.md", trust="external")
        assert find_order(entry_index, WHEN) == ["user/old.md", "user/new.md"]
    put_two(entry_index, OLD, OLD, paths=("user/old.md", "project/new.md"))
    first, *_ = find_order(entry_index, WHEN)
    put_two(entry_index, OLD, OLD, seconds=-60, paths=("user/old.md", "project/new.md"))
    assert find_order(entry_index, WHEN)[0] == first


def test_invalid_provenance_line_references_nothing(entry_index):
    odd = [
        '{"see": 7}',
        '{"see": [[1], null]}',
        '{"id": {"a": 1}, "see": "a b"}',
        '{"see": "' + "x" * 70 + '"}',
    ]
    for line in odd:
        put_two(entry_index, OLD, "Billing goes out on Mondays", old_line=line, new_line=line)
        assert find_order(entry_index, WHEN) == ["user/old.md", "user/new.md"]
    put_two(
        entry_index,
        OLD,
        NEW,
        new_line='{"see": ' + str([f"a{n}" for n in range(5_000)]).replace("'", '"') + "}",
    )
    assert len(entry_index.catalog.rows("SELECT max(length(sees)) FROM entry")) == 1


# -- deadlines


def test_search_ends_at_its_deadline_even_while_running(entry_index):
    entry_index.write_files(make_numbered(2 * PAGE, "rollback"))
    entry_index.refresh()
    with Cancel() as cancel:
        accepts, patience = Mock(side_effect=lambda *_: cancel.set()), Deadline(float("inf"), cancel)
        for _ in range(2):
            with pytest.raises(Cancelled):
                entry_index.search_hits("rollback", accepts=accepts, deadline=patience, skip_refresh=True)
    assert accepts.call_count == PAGE
