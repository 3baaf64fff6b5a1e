"""The threat model holds together: files, mitigations, dates, marks and controls name each other."""

from __future__ import annotations

import tomllib

import pytest
from pydantic import ValidationError

from threats.catalogue import FOLDER, GROUPS, Threat, read_threat, resolved, threats
from threats.marks import proofs, proofs_in
from threats.switches import controls

GOOD = tomllib.loads((FOLDER / "T-PATH-03.toml").read_text())

PROVED = {proof.threat for proof in proofs()}


def test_every_file_is_the_threat_that_it_is_called():
    files = sorted(FOLDER.iterdir())
    assert [path.name for path in files] == [f"{read_threat(path).id}.toml" for path in files]


def test_the_threats_are_all_there():
    counted = {group: sum(threat.group == group for threat in threats().values()) for group in GROUPS}
    assert counted == {
        "PATH": 16,
        "FENCE": 11,
        "POL": 11,
        "RUN": 14,
        "LEAK": 14,
        "MEM": 19,
        "API": 10,
        "IDX": 5,
        "SUP": 3,
        "LOG": 3,
        "HUM": 4,
    }


def test_every_mitigation_is_in_the_code():
    named = {mitigation for threat in threats().values() for mitigation in threat.mitigations}
    assert {mitigation for mitigation in named if resolved(mitigation) is None} == set()


def test_every_mark_names_a_threat_and_a_control():
    assert {proof.threat for proof in proofs()} <= set(threats())
    assert {proof.control for proof in proofs()} <= set(controls())


def test_every_control_has_a_proof_that_needs_it():
    assert set(controls()) == {proof.control for proof in proofs()}


def test_every_mitigated_threat_has_a_proof():
    mitigated = {threat.id for threat in threats().values() if threat.status == "mitigated"}
    assert mitigated - PROVED == set(), 'mark one: @pytest.mark.threat("T-…", control="…")'


def test_a_threat_says_how_it_is_proved_if_and_only_if_it_is():
    assert {threat.id for threat in threats().values() if threat.proofs} == PROVED


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "T-PATH-3"},
        {"id": "T-OTHER-03"},
        {"title": "two\nlines"},
        {"stride": []},
        {"stride": ["theft"]},
        {"refs": ["CVE-2020-1"]},
        {"boundary": "elsewhere"},
        {"asset": "money"},
        {"mitigations": []},
        {"mitigations": ["os:open"]},
        {"mitigations": ["muniment.confine.root"]},
        {"status": "fixed"},
        {"status": "out_of_scope"},
        {"proofs": []},
        {"proofs": ["faith"]},
        {"layers": []},
        {"layers": ["walls"]},
        {"residual": ""},
        {"review": "2030-01-01"},
        {"owner": "nobody"},
    ],
    ids=str,
)
def test_a_file_that_says_something_else_is_no_threat(changed):
    Threat.model_validate(GOOD)
    with pytest.raises(ValidationError):
        Threat.model_validate({**GOOD, **changed})


def test_a_file_with_another_name_is_refused(tmp_path):
    path = tmp_path / "T-PATH-04.toml"
    path.write_text((FOLDER / "T-PATH-03.toml").read_text())
    with pytest.raises(ValueError, match=r"T-PATH-04\.toml holds T-PATH-03"):
        read_threat(path)


MARK = '@pytest.mark.threat("T-PATH-03", control="walk_checks")'


def test_marks_are_found_on_functions_and_parameters():
    source = f"""
import pytest
{MARK}
def test_one(): ...
@pytest.mark.parametrize("x", [1, pytest.param(2, marks={MARK[1:]})])
def test_two(x): ...
"""
    assert [(proof.threat, proof.control, proof.function) for proof in proofs_in(source, "x.py")] == [
        ("T-PATH-03", "walk_checks", "test_one"),
        ("T-PATH-03", "walk_checks", "test_two"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        f"pytestmark = {MARK[1:]}",
        f"{MARK}\ndef helper(): ...",
        f"PARAMS = [pytest.param(1, marks={MARK[1:]})]",
        '@pytest.mark.threat("T-PATH-03")\ndef test_one(): ...',
        '@pytest.mark.threat("T-PATH-03", "walk_checks")\ndef test_one(): ...',
        '@pytest.mark.threat("T-PATH-03", control=NAME)\ndef test_one(): ...',
    ],
)
def test_a_mark_of_another_form_or_place_is_told(source):
    with pytest.raises(ValueError, match=r"x\.py:\d"):
        list(proofs_in(source, "x.py"))
