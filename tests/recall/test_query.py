"""What a message asks: of every kind, in any script, and of text that is made to be slow or to be syntax."""

from __future__ import annotations

import sqlite3
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muniment.recall.search import MAX_WORDS, Query, Stemmer, Word, read_query, units


@pytest.fixture(scope="module")
def stemmer():
    stemmer = Stemmer()
    yield stemmer
    stemmer.close()


@pytest.fixture(scope="module")
def table():
    """Any table with the tokenizer of the catalog's, and what stands in it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE VIRTUAL TABLE t USING fts5 (x, tokenize = 'unicode61')")
    connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab (t, instance)")
    yield connection
    connection.close()


@pytest.fixture
def asked(stemmer):
    """The words of a message, phrases with their spaces."""
    return lambda text: [word.text for word in read_query(text, stemmer).words]


# -- Q1 and Q2


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Walk me through a production deployment", ["walk", "production", "deployment"]),
        ("DEPLOY, deploys; deploying!", ["deploy"]),
        ("our café's naïve rollout", ["cafe", "naive", "rollout"]),
        ("ＡＢＣ１２３ rollout", ["abc123", "rollout"]),  # noqa: RUF001
        ("Straße", ["strasse"]),
        ("上次的部署窗口", ["上次", "次的", "的部", "部署", "署窗", "窗口"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("서버 재시작", ["서버", "재시", "시작"]),
        ("使用TypeScript重构", ["使用", "typescript", "重构"]),
        ("не трогай сервер", ["не", "трогай", "сервер"]),
    ],
)
def test_the_words_that_say_something_are_asked_for_each_once_in_order(asked, message, words):
    assert asked(message) == words


@pytest.mark.parametrize(
    "message",
    [
        "",
        " \n\t",
        "?!… -- ***",
        "Please help me with that, would you?",
        "ok thanks!",
        "Good morning, how are you?",
        "go on",
        "谢谢",
        "你好",
        "Danke",
        "merci",
        "Olá, obrigado",
        "a b c d",
        "日",
        "🎉🎉",
        "🤖 🦊🦊",
        "\u0301\u0338",
    ],
)
def test_talk_and_what_is_no_word_ask_for_nothing(stemmer, message):
    assert read_query(message, stemmer) == Query(())


@pytest.mark.parametrize("message", ["rollback🤖", "🤖rollback", "rollback🤔please", "🦊rollback🦊🦊"])
def test_an_emoji_that_is_newer_than_the_tokenizer_is_no_part_of_a_word(asked, message):
    assert asked(message) == ["rollback"]


@pytest.mark.parametrize(
    "message",
    [
        'rollback" OR "x',
        "rollback*",
        "^rollback",
        "-rollback",
        "(rollback",
        "{rollback} :",
        "rollback AND NOT OR",
        "'; rollback --",
        "\\rollback\\",
        "rollback\0",
        "\ud800rollback\udfff",
        "\x1brollback\x07",
    ],
)
def test_a_message_cannot_put_syntax_into_the_search(asked, message):
    assert asked(message) == ["rollback"]


@given(text=st.text(max_size=80) | st.text('ab-_./:@#é東の다1 🤖"*(\u0301\u0338\u19b0\ud800\0', max_size=80))
@example(text="\u19b0.\u19b1")
@example(text="abcd.\u19b1")
def test_no_message_cannot_be_read_and_every_word_is_one_to_the_tokenizer(stemmer, table, text):
    query = read_query(text, stemmer)
    assert len(query.words) <= MAX_WORDS
    assert query == read_query(text, stemmer)
    for word in query.words:
        table.execute("INSERT INTO t (x) VALUES (?)", (word.text,))
        cut = [
            term for term, _ in sorted(table.execute("SELECT term, offset FROM v"), key=lambda row: row[1])
        ]
        table.execute("DELETE FROM t")
        assert cut == word.text.split(" ")
        assert len(word.stem.split(" ")) == len(cut)
    alone = [word.stem for word in query.words if not word.is_phrase]
    assert len(set(alone)) == len(alone)


# -- Q3


@pytest.mark.parametrize("word", ["js", "qa", "file", "code", "function", "のが", "れば"])
def test_a_weak_word_is_asked_for_as_one(stemmer, word):
    assert [each.is_weak for each in read_query(f"{word} rollback", stemmer).words] == [True, False]


@pytest.mark.parametrize("word", ["sql", "фы", "é東京", "東京", "のー"])
def test_other_words_are_strong(stemmer, word):
    assert not any(each.is_weak for each in read_query(word, stemmer).words)


# -- Q4


@pytest.mark.parametrize(
    ("message", "phrases"),
    [
        ("ping 10.42.7.19", ["10 42 7 19"]),
        ("rename snake_case_name", ["snake case name"]),
        ("open src/app.py and tests/test_app.py", ["src app py", "tests test app py"]),
        ("mail ann@example.org", ["ann example org"]),
        ("see PROJ-1234", ["proj 1234"]),
        ("python 3.11", ["3 11"]),
        ("std::vector", ["std vector"]),
        ("issue#42", ["issue 42"]),
        ("up-to-date docs", []),
        ("well-known", []),
        ("e.g. this, i.e. that and/or w/o", []),
        ("end.Start", ["end start"]),
        ("東京/京都", []),
        ("...", []),
        ("a.b.c.d", []),
        ("once x.\u19b1", []),
        ("x.py " * 3, ["x py"]),
        ("/".join(f"part{number}" for number in range(16)), [" ".join(f"part{n}" for n in range(16))]),
        ("/".join(f"part{number}" for number in range(17)), []),
    ],
)
def test_what_is_written_as_one_name_is_a_phrase(stemmer, message, phrases):
    assert [word.text for word in read_query(message, stemmer).words if word.is_phrase] == phrases


def test_of_many_names_the_first_and_the_last_are_phrases(asked):
    message = " ".join(f"name_{number}" for number in range(10))
    assert [word for word in asked(message) if " " in word] == ["name 0", "name 1", "name 8", "name 9"]


def test_the_words_of_a_name_are_asked_for_as_well(asked):
    assert asked("src/app.py") == ["src app py", "src", "app", "py"]


# -- Q5


def test_of_many_words_the_first_and_the_last_are_asked_for(asked):
    words = asked(" ".join(f"word{number}" for number in range(200)))
    half = MAX_WORDS // 2
    assert words == [f"word{number}" for number in (*range(half), *range(200 - half, 200))]


@pytest.mark.parametrize("paste", ["2026-11-22 ERROR x.y: failed\n" * 40_000, "lorem " * 200_000])
def test_a_question_before_or_behind_a_long_paste_is_read(asked, paste):
    assert "rollback" in asked(f"what was our rollback?\n{paste}")
    assert "rollback" in asked(f"{paste}\nwhat was our rollback?")


def test_a_question_behind_a_paste_of_many_words_is_read(asked):
    paste = " ".join(f"frame{number}" for number in range(300))
    assert {"rollback", "nodes"} <= set(asked(f"{paste} so, rollback all nodes"))


def test_phrases_leave_room_for_words(stemmer):
    words = read_query(" ".join(f"my_name{number}" for number in range(100)), stemmer).words
    assert len(words) == MAX_WORDS
    assert sum(word.is_phrase for word in words) == 4


def test_a_pair_does_not_go_on_from_one_that_was_left_out(stemmer):
    words = read_query("".join(chr(0x4E00 + number) for number in range(200)), stemmer).words
    half = MAX_WORDS // 2
    assert [number for number, word in enumerate(words) if not word.goes_on] == [0, half]


@pytest.mark.parametrize(
    "text",
    [
        "ﬃ" * 4_000,
        "a" * 4_000,
        "a." * 2_000,
        "\ufdfa" * 4_000,
        "中" * 4_000,
        "ab-" * 1_300,
        "\u0315\u0300" * 2_000,
    ],
)
def test_a_message_cannot_be_made_to_take_long(stemmer, text):
    def cost(message):
        began = time.process_time()
        read_query(message, stemmer)
        return time.process_time() - began

    assert min(cost(text) for _ in range(3)) < 0.25
    assert min(cost(text * 250) for _ in range(3)) < 0.25


# -- units


PAIRS = tuple(
    Word(text, text, goes_on=number > 0) for number, text in enumerate(("東京", "京都", "都市", "市民"))
)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ((), 0),
        ((Word("tabs", "tab"),), 1),
        ((Word("tabs", "tab"), Word("spaces", "space")), 2),
        ((Word("10 42", "10 42"),), 2),
        (PAIRS[:1], 1),
        (PAIRS[:2], 1),
        (PAIRS[:3], 2),
        (PAIRS, 2),
        ((*PAIRS[:2], Word("tabs", "tab")), 2),
        ((*PAIRS[:2], *PAIRS[:2]), 2),
    ],
)
def test_pairs_that_share_characters_count_every_other(words, count):
    assert units(words) == count
