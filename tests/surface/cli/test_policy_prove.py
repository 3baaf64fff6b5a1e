"""`muniment policy prove`: sentences are proved, or refuted by a path; anything else proves nothing."""

from __future__ import annotations

import pytest

from muniment.cli import policy as command
from muniment.lab.proofs import Prover

READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\n'
DENY = '[[deny]]\nid = "d"\nverbs = ["read"]\npaths = ["x", "secret/"]\n'
HOSTILE = "a\x1b[2J\n\u202eWIDER\x07.md"

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def sentences(tmp_path):
    def sentences(body, schema="muniment-invariants/1"):
        path = tmp_path / "invariants.toml"
        path.write_text(f'schema = "{schema}"\n{body}')
        return str(path)

    return sentences


NEVER = '[[never]]\nid = "no-x"\nverbs = ["read"]\npaths = ["x"]\nwhy = """because\n\\u001bso"""\n'
APART = (
    '[[apart]]\nid = "apart"\none = { verbs = ["read"], paths = ["/user/*"] }\n'
    'other = { verbs = ["read"], paths = ["/user/a/*"] }\n'
)


def test_sentences_are_proved_or_refuted_by_a_path_and_the_exit_code_says_which(own, sentences, said):
    path = own(READ + DENY)
    assert command.prove(sentences(NEVER), [path], as_json=False) == 0
    assert said() == [f"proved    {path}: never[no-x]"]
    path = own(READ)
    assert command.prove(sentences(NEVER + APART), [path], as_json=False) == 1
    never, why, apart = said()
    assert never == f"broken    {path}: never[no-x]: grants read user/x"
    assert why == "          because so"
    assert " and read user/a/" in apart


def test_what_is_proved_is_one_document(own, sentences, said):
    path = own(READ)
    assert command.prove(sentences(NEVER), [path], as_json=True) == 1
    found = said(as_json=True)
    assert found["status"] == "not proved"
    assert found["findings"][path] == [
        {
            "id": "no-x",
            "kind": "never",
            "why": "because\n\x1bso",
            "status": "broken",
            "witnesses": [{"act": "read", "path": "user/x"}],
            "reason": "",
        }
    ]
    assert command.prove(sentences(NEVER), [own(READ + DENY)], as_json=True) == 0
    assert said(as_json=True)["status"] == "proved"


def test_what_nobody_can_prove_is_not_proved(own, sentences, said, monkeypatch):
    monkeypatch.setattr("muniment.lab.proofs.Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    assert command.prove(sentences(NEVER), [own(READ + DENY)], as_json=False) == 1
    assert said()[0].startswith("undecided ")


@pytest.mark.parametrize(
    ("code", "body", "schema"),
    [
        ("E102", "= 3", "muniment-invariants/1"),
        ("E150", "", "muniment-policy/1"),
        ("E150", '"\\u001b\\nE999" = 1\n', "muniment-invariants/1"),
        ("E203", NEVER.replace('["x"]', '["x["]'), "muniment-invariants/1"),
    ],
)
def test_sentences_that_cannot_be_understood_prove_nothing(own, sentences, said, code, body, schema):
    path, asked = own(READ), sentences(body, schema)
    assert command.prove(asked, [path], as_json=False) == 1
    (line,) = said()
    assert line.startswith(f"not proved: {code} ")
    assert line.isprintable()
    assert command.prove(asked, [path], as_json=True) == 1
    assert said(as_json=True)["error"]["message"].startswith(f"{code} ")


def test_nothing_is_proved_without_sentences_or_without_a_policy(own, sentences, said, tmp_path):
    for asked in (tmp_path / "nothing.toml", tmp_path):
        assert command.prove(str(asked), [own(READ)], as_json=False) == 1
        assert "E100" in said()[0]
    assert command.prove(sentences(NEVER), ["nobody"], as_json=False) == 1
    assert "E120" in said()[0]


def test_an_unprintable_name_of_a_file_of_sentences_forges_no_line(own, said, tmp_path):
    hostile = tmp_path / HOSTILE
    hostile.write_text("= 3")
    for asked in (str(hostile), str(tmp_path / f"no{HOSTILE}")):
        assert command.prove(asked, [own(READ)], as_json=False) == 1
        (line,) = said()
        assert line.isprintable()
