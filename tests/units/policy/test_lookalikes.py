"""Names that are taken for ours or for instruction files of other agents, and honest names beside them."""

from __future__ import annotations

import json
import tomllib
from functools import cache, partial
from importlib.resources import files

import pytest

from kit.where import FACTS
from muniment.agent.decision import RESERVED_STEMS
from muniment.policy.grammar import segment_problem, tables
from muniment.policy.load import load_policy
from muniment.tools.workbench import Workbench

NAMES = tables()["names"]
SWAPS = json.loads((FACTS / "lookalikes.json").read_text())


strict = cache(partial(load_policy, "strict"))


def written(path):
    bench = Workbench(strict(), ("user", "project"), {}, must_read=False)
    return bench.call("write_file", {"path": path, "content": "x\n"})


def lookalikes(name):
    """One character of a name swapped, widened, or white space beside it."""
    for at, char in enumerate(name):
        for other in SWAPS.get(char, ""):
            yield name[:at] + other + name[at + 1 :]
        if char.isalpha():
            yield name[:at] + chr(ord(char) + 0xFEE0) + name[at + 1 :]
        for space in " \u00a0\u2009\u3000\u200b":
            yield name[:at] + space + name[at:]
    yield name.replace("m", "rn")
    yield name.replace("M", "rn").lower()
    yield name.replace("W", "VV")


@pytest.mark.threat("T-PATH-15", control="lookalike_names")
def test_nothing_is_created_beside_ours_that_looks_like_it():
    tried, made = 0, []
    for name in NAMES:
        for other in {*lookalikes(name)} - {name}:
            path = f"user/{other}" if other.lower().endswith(".md") else f"user/{other}/a.md"
            tried += 1
            if written(path).verdict == "allow":
                made.append(path)
    assert tried >= 800
    assert made == []


@pytest.mark.threat("T-PATH-16", control="instruction_files")
def test_no_instruction_file_of_another_agent_is_written_in_any_case_of_letters():
    for name in NAMES:
        for path in (f"user/{name}", f"project/t/{name.lower()}"):
            if path.endswith(".md"):
                assert (written(path).verdict, written(path).code) == ("deny", "refused"), path


def test_the_policies_and_the_titles_know_every_name_of_the_table():
    for policy in ("strict", "ceiling"):
        rules = tomllib.loads(files("muniment.policies").joinpath(f"{policy}.toml").read_text())["deny"]
        denied = {
            pattern.strip("/*").removeprefix("index") or "index"
            for rule in rules
            for pattern in rule["paths"]
        }
        assert set(NAMES) <= denied, policy
    stems = {name.removesuffix(".md").lower() for name in NAMES if "." not in name.removesuffix(".md")}
    assert stems - {"pinned"} <= RESERVED_STEMS


HONEST = """
memories.md память.md индекс.md μνήμη.md agents-of-change.md warped.md mémoire.md index-funds.md pins.md
クロード.md skills.md Индия.md
"""


@pytest.mark.parametrize("name", HONEST.split())
def test_an_honest_name_is_let_in(name):
    assert segment_problem(name) is None
    assert written(f"user/{name}").verdict == "allow"


def test_every_character_of_the_table_may_stand_in_a_name():
    """One that the grammar refuses would be a line of the table that is never read."""
    chars = "".join(tables()["confusables"].values())
    assert len(chars) > 300
    assert len(set(chars)) == len(chars)
