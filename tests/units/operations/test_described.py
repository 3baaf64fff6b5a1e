"""Forget by rules: entries that people describe freely, in many languages.

An author who had not seen the code wrote `facts/forget.json`. The first half was used for tuning, the second
half stayed sealed. Before any change, both halves were scored once: 33 of 80 and 42 of 80 right entries were
previewed, the other 85 were listed as near, and nothing else was removed. Afterwards, descriptions with
inflected words, or with words for owner, origin or direction, were changed to remove nothing. Now 19 and 27
entries are previewed, and the other 114 are listed as near.
"""

from __future__ import annotations

import json

import pytest

from kit.locations import FACTS
from kit.operations.contexts import (
    assert_succeeded,
    commit_texts,
    create_context,
    get_user_root,
    make_raising_step,
    read_entries,
    run_forget,
    run_remember,
    write_files,
)
from muniment.agent.model import ModelError
from muniment.content.description import DescribedWords, SplitText
from muniment.kernel.names import Trust
from muniment.testing.scripted_models import ScriptedModel, reply_with_text

SET = json.loads((FACTS / "forget.json").read_text(encoding="utf-8"))
HALF = len(SET["facts"]) // 2
PREVIEWED = (19, 27)


@pytest.fixture
def context(tmp_path):
    with create_context(tmp_path, on_model_failure="rules") as context:
        yield context


def list_removed(result):
    return [each.file_path for each in assert_succeeded(result).removed_entries]


@pytest.mark.parametrize("half", [0, 1])
def test_description_finds_its_entry_and_nothing_else(context, half):
    facts = SET["facts"][half * HALF : (half + 1) * HALF]
    write_files(
        context,
        {f"user/fact{half * HALF + number}.md": f"{each['text']}\n" for number, each in enumerate(facts)},
    )
    before, previewed = read_entries(context), 0
    for description in (each for each in SET["descriptions"] if each["half"] == half):
        result = run_forget(context, description["text"], dry_run=True)
        right = [] if description["fact"] is None else [f"user/fact{description['fact']}.md"]
        assert list_removed(result) in ([], right), description
        assert {*right} <= {*list_removed(result), *result.near}, description
        previewed += bool(list_removed(result))
    assert previewed >= PREVIEWED[half]
    assert read_entries(context) == before


DESCRIBED = [
    ("The UPS in rack B lasts 18 minutes", "how long the UPS in rack B lasts"),
    (
        "Firma Kessler zahlt immer erst nach der zweiten Mahnung",
        "dass Kessler erst nach der zweiten Mahnung zahlt",
    ),
    ("The exam in thermodynamics is on 2027-02-09", "when the exam in thermodynamics is"),
    ("La clé du garage est chez le voisin Rémi", "chez quel voisin se trouve la clé du garage"),
    ("Los jueves cierra la biblioteca de Almagro", "qué jueves cierra la biblioteca de Almagro"),
    ("Klucz do piwnicy wisi za lodówką", "gdzie wisi klucz do piwnicy"),
    ("Пароль от складской сигнализации знает Зинаида", "кто знает пароль от складской сигнализации"),
]
NEAR = [
    ("Die Lieferungen der Schreinerei kommen dienstags", "wann die Lieferung der Schreinerei kommt"),
    ("Il treno per Orvieto parte dal binario 7", "da quale binario parte il treno per Orvieto"),
    ("备用服务器放在南京机房", "备用服务器在哪个机房"),
    ("予備の鍵は青い箱にある", "予備の鍵が青い箱にあること"),
    ("예비 열쇠는 파란 상자에 있다", "예비 열쇠가 파란 상자에 있는지"),
]
"""Descriptions with other inflections or particles: the entries are listed, and never removed."""

MISTAKABLE = [
    ("Christina birthday is on 5 May", "Christian birthday"),
    ("Stefanie birthday party is on 5 May", "where is Stefan's birthday party"),
    ("Simone phone is 5551", "Simon's phone"),
    ("Julia address is Main Street 5", "Julian's address"),
    ("Justina address is Main Street 5", "Justin's address"),
    ("Евгения телефон 5551", "Евгений телефон"),
    ("Kristina fødselsdag er 5. maj", "Kristian fødselsdag"),
    ("Anna pays Ben 5 euros", "Ben pays Anna and whom"),
    ("東京からの出張は金曜日", "東京への出張"),
    ("她的电话号码是五五五一", "我的电话号码"),
    ("我的电话号码是五五五一", "他的电话号码"),
    ("билет из Москвы в пятницу", "билет в Москву"),
    ("부산에서 서울로 기차", "서울에서 부산으로 기차"),
    ("The plane posted at 9", "planet poster"),
    ("Plane Besuche", "Planer Besuch"),
    ("The flight from Rome is at 9", "flights to Rome"),
    ("El vuelo desde Roma es a las 9", "vuelos a Roma"),
    ("El vuelo a Roma es a las 9", "vuelo de Roma"),
    ("Der Brief von Anna liegt im Fach", "wo der Brief an Anna liegt"),
    ("Le frère de sa mère est Paul", "qui est le frère de ma mère"),
    ("Her brother has a car", "my brothers cars"),
    ("generation counsels named", "general counsel names"),
    ("The test server password hint is x", "the testing servers password hint"),
    ("Coffee order with sugar", "without sugar coffee orders"),
    ("Roma'dan uçuş saat 9", "uçuşlar Roma'ya"),
    ("Ben owes Anna 50 euros", "what Anna owes Ben"),
    ("Ben owes Anna 50 euros", "what does Anna owe Ben"),
]
"""Facts, and descriptions of another person, owner, direction or thing."""

UNDESCRIBED = [
    *("how long the UPS in rack C lasts", "how long the UPS in rack B lasts under full load"),
    *(
        "dass Kessler nicht erst nach der zweiten Mahnung zahlt",
        "dass Kessler erst nach der dritten Mahnung zahlt",
    ),
    *(
        "when the exam in thermodynamics 2 is",
        "who the key",
        "where it is",
        "das mit dem",
        "who pays",
        "gdzie jest",
    ),
    *(
        "wann die Schreinerei keine Lieferungen bekommt",
        "the libraries of Almagro on Mondays",
        "予備の鍵を捨てない",
    ),
]
"""Descriptions without a matching entry: another thing, the opposite, or no content."""


def test_description_in_other_words_removes_its_one_entry(context):
    write_files(context, {f"user/said{number}.md": f"{fact}\n" for number, (fact, _) in enumerate(DESCRIBED)})
    for number, (_, description) in enumerate(DESCRIBED):
        result = run_forget(context, description, dry_run=True)
        assert list_removed(result) == [f"user/said{number}.md"], description
        assert list_removed(run_forget(context, description, digest=result.digest)) == [
            f"user/said{number}.md"
        ]
    assert read_entries(context) == {}


@pytest.mark.threat("T-MEM-08", control="described_words")
def test_description_without_matching_entry_removes_nothing(context):
    write_files(context, {f"user/said{number}.md": f"{fact}\n" for number, (fact, _) in enumerate(DESCRIBED)})
    before = read_entries(context)
    for description in UNDESCRIBED:
        result = run_forget(context, description)
        assert result.removed_entries == (), description
        assert result.error is None or result.error.code == "invalid_content", description
    assert read_entries(context) == before


def test_inflected_description_only_lists_its_entry(context):
    for number, (fact, description) in enumerate(NEAR):
        write_files(context, {f"user/near{number}.md": f"{fact}\n"})
        result = run_forget(context, description)
        assert (list_removed(result), result.near[:1]) == ([], (f"user/near{number}.md",)), description


@pytest.mark.threat("T-MEM-08", control="described_words")
def test_description_of_other_person_removes_nothing(tmp_path):
    for number, (fact, description) in enumerate(MISTAKABLE):
        with create_context(tmp_path / str(number), on_model_failure="rules") as context:
            write_files(context, {"user/a.md": f"{fact}\n"})
            assert list_removed(run_forget(context, description)) == [], description
            assert read_entries(context) == {"user/a.md": f"{fact}\n".encode()}


def test_description_of_several_entries_lists_them_as_near(context):
    write_files(
        context, {f"user/{name}.md": f"The printer on floor {name} jams on Mondays\n" for name in ("3", "4")}
    )
    result = run_forget(context, "when the printer jams on Mondays")
    assert (list_removed(result), {*result.near}) == ([], {"user/3.md", "user/4.md"})
    assert list_removed(run_forget(context, "that printers on floor 4 jam on Mondays")) == []
    assert list_removed(run_forget(context, "that the printer on floor 4 jams on Mondays")) == ["user/4.md"]


def test_names_that_differ_in_gender_do_not_match():
    pairs = [("Martina pays", "Martin pays"), ("Paule zahlt", "Paul zahlt"), ("Dario paga", "Daria paga")]
    for description, text in pairs:
        assert not DescribedWords.from_text(f"that {description}").is_contained_in(
            SplitText.from_text(f"Today {text}")
        ), description


def test_names_in_sentence_are_not_function_words():
    assert set(DescribedWords.from_text("where Ben and Kim live").words) >= {"ben", "kim"}
    assert set(DescribedWords.from_text("wo der Hut von Per liegt").words) == {"hut", "per"}


def test_one_letter_difference_prevents_match(context):
    write_files(context, {"user/b.md": "rack B is in room 4\n"})
    assert list_removed(run_forget(context, "rack C room 4")) == []
    assert list_removed(run_forget(context, "rack B room")) == ["user/b.md"]


def test_description_takes_one_item_of_a_list(context):
    items = "- The ferry to Naxos leaves at seven\n- The bakery in Naxos shuts on Sundays\n"
    write_files(context, {"user/list.md": items})
    (removed_entry,) = assert_succeeded(run_forget(context, "when the ferry to Naxos leaves")).removed_entries
    assert "ferry" in removed_entry.text
    assert read_entries(context) == {"user/list.md": b"- The bakery in Naxos shuts on Sundays\n"}
    assert list_removed(run_forget(context, "how the bakery is in Naxos and when the ferry leaves")) == []


def test_entry_that_denies_description_is_kept(context):
    write_files(context, {"user/a.md": "Anneke eats no mussels on Fridays\n"})
    assert list_removed(run_forget(context, "that Anneke eats a mussel on Fridays")) == []
    assert list_removed(run_forget(context, "that Anneke eats no mussels on Fridays")) == ["user/a.md"]


def test_described_entry_of_higher_trust_is_kept(context):
    commit_texts(context, {"user/a.md": "The UPS in rack B lasts 18 minutes\n"}, trust=Trust.OWNER)
    assert list_removed(run_forget(context, "how long the UPS in rack B lasts", trust=Trust.AGENT)) == []
    assert {*read_entries(context)} == {"user/a.md"}


# -- failed models ---------------------------------------------------------------------------------------

AWAY = (
    make_raising_step(ModelError("no connection to models.example")),
    make_raising_step(RuntimeError("boom")),
)
BAD = ("", "c1", '{"remove": ["c9"]}', '{"remove": ["c1"', '{"keep": ["c1"]}', "I have removed it.")


def test_forget_falls_back_to_rules_if_the_model_fails(context):
    for number, step in enumerate([*AWAY, *map(reply_with_text, BAD)]):
        write_files(context, {"user/ups.md": "The UPS in rack B lasts 18 minutes\n", "user/tea.md": "tea\n"})
        result = assert_succeeded(
            run_forget(context, "how long the UPS in rack B lasts", ScriptedModel([step]))
        )
        assert (list_removed(result), result.decided_by) == (["user/ups.md"], "rules"), number
        assert result.notes[0].startswith("the model scripted failed: "), number
        assert "muniment doctor" in result.notes[0]
        assert {*read_entries(context)} == {"user/tea.md"}


def test_forget_names_the_model_if_failures_are_errors(tmp_path):
    with create_context(tmp_path) as context:
        write_files(context, {"user/ups.md": "The UPS in rack B lasts 18 minutes\n"})
        error = run_forget(context, "the UPS in rack B", ScriptedModel([AWAY[0]])).error
        assert (error.code, error.reason) == (
            "forget_failed",
            "the model scripted failed: no connection to models.example",
        )
        assert (get_user_root(context) / "ups.md").exists()


def test_fallback_removes_no_more_than_rules_alone(context, tmp_path):
    with create_context(tmp_path / "alone", on_model_failure="rules") as alone:
        for target in (context, alone):
            for number, (fact, _) in enumerate(DESCRIBED):
                assert_succeeded(run_remember(target, fact))
                write_files(target, {f"project/{number}.md": f"{fact}, says the log\n"})
        for description in [
            *UNDESCRIBED,
            *(description for _, description in DESCRIBED),
            "UPS",
            "exam thermodynamics",
            "the",
        ]:
            by_fallback = run_forget(context, description, ScriptedModel([AWAY[0]]), dry_run=True)
            assert get_removed_or_code(by_fallback) == get_removed_or_code(
                run_forget(alone, description, dry_run=True)
            ), description


def get_removed_or_code(result):
    return [each.file_path for each in result.removed_entries] if result.error is None else result.error.code
