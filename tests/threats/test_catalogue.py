"""The threat model is consistent: files, mitigations, dates, marks and controls match."""

from __future__ import annotations

import tomllib
from collections import Counter

import pytest
from pydantic import ValidationError

from threats.catalogue import FOLDER, Threat, load_threats, read_threat, resolve
from threats.marks import load_proofs, read_proofs
from threats.pages import COMMAND, make_pages
from threats.switches import load_controls

GOOD = tomllib.loads((FOLDER / "T-PATH-03.toml").read_text())


def test_every_mitigation_is_in_the_code():
    assert Counter(threat.group for threat in load_threats().values()) == {
        "PATH": 18, "FENCE": 12, "POL": 11, "RUN": 17, "LEAK": 17, "MEM": 28, "API": 16, "FLT": 15,
        "IDX": 5, "SUP": 3, "LOG": 5, "HUM": 5,
    }  # fmt: skip
    named = {mitigation for threat in load_threats().values() for mitigation in threat.mitigations}
    assert {mitigation for mitigation in named if resolve(mitigation) is None} == set()


def test_threats_proofs_and_controls_match():
    proved = {proof.threat for proof in load_proofs()}
    mitigated = {threat.id for threat in load_threats().values() if threat.status == "mitigated"}
    assert mitigated <= proved, 'add a mark: @pytest.mark.threat("T-…", control="…")'
    assert {threat.id for threat in load_threats().values() if threat.proofs} == proved
    assert set(load_controls()) == {proof.control for proof in load_proofs()}


def test_generated_pages_are_up_to_date():
    for path, text in make_pages().items():
        assert path.read_text() == text, f"run: {COMMAND}"


def test_invalid_threat_is_rejected():
    Threat.model_validate(GOOD)
    for changed in (
        {"id": "T-PATH-3"}, {"id": "T-OTHER-03"}, {"title": "two\nlines"}, {"stride": []},
        {"stride": ["theft"]}, {"refs": ["CVE-2020-1"]}, {"boundary": "elsewhere"}, {"asset": "money"},
        {"mitigations": []}, {"mitigations": ["os:open"]}, {"mitigations": ["muniment.kernel.root"]},
        {"status": "fixed"}, {"status": "out_of_scope"}, {"proofs": []}, {"proofs": ["faith"]},
        {"layers": []}, {"layers": ["walls"]}, {"residual": ""}, {"review": "2030-01-01"},
        {"owner": "nobody"},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            pytest.fail(f"{changed}: {Threat.model_validate({**GOOD, **changed})}")


def test_threat_file_with_another_name_is_rejected(tmp_path):
    path = tmp_path / "T-PATH-04.toml"
    path.write_text((FOLDER / "T-PATH-03.toml").read_text())
    with pytest.raises(ValueError, match=r"T-PATH-04\.toml contains T-PATH-03"):
        read_threat(path)


MARK = '@pytest.mark.threat("T-PATH-03", control="walk_checks")'


def test_marks_are_read_and_malformed_ones_rejected():
    source = f"""
import pytest
{MARK}
def test_one(): ...
@pytest.mark.parametrize("x", [1, pytest.param(2, marks={MARK[1:]})])
def test_two(x): ...
"""
    assert [(proof.threat, proof.control, proof.function) for proof in read_proofs(source, "x.py")] == [
        ("T-PATH-03", "walk_checks", "test_one"),
        ("T-PATH-03", "walk_checks", "test_two"),
    ]
    for source in (
        f"pytestmark = {MARK[1:]}",
        f"{MARK}\ndef helper(): ...",
        f"PARAMS = [pytest.param(1, marks={MARK[1:]})]",
        '@pytest.mark.threat("T-PATH-03")\ndef test_one(): ...',
        '@pytest.mark.threat("T-PATH-03", "walk_checks")\ndef test_one(): ...',
        '@pytest.mark.threat("T-PATH-03", control=NAME)\ndef test_one(): ...',
    ):
        with pytest.raises(ValueError, match=r"x\.py:\d"):
            pytest.fail(f"{source}: {list(read_proofs(source, 'x.py'))}")
