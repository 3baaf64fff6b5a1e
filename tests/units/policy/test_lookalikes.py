"""Names that look like reserved names or instruction files of other agents, and honest names."""

import json
import tomllib
from importlib.resources import files

import pytest

from kit.locations import FACTS
from muniment.content.titles import RESERVED_STEMS
from muniment.kernel.path import find_segment_problem
from muniment.policy.grammar import load_tables
from muniment.policy.load import load_policy
from muniment.sandbox.tools.workbench import Workbench

NAMES = load_tables()["names"]
SWAPS = json.loads((FACTS / "lookalikes.json").read_text())


STRICT = load_policy("strict")


def call_write(path):
    bench = Workbench(STRICT, ("user", "project"), {}, must_read=False)
    return bench.call("write_file", {"path": path, "content": "x\n"})


def iterate_lookalikes(name):
    """Yield the name with one character swapped or widened, or with white space added."""
    for at, char in enumerate(name):
        wide = chr(ord(char) + 0xFEE0) if char.isalpha() else ""
        yield from (name[:at] + other + name[at + 1 :] for other in SWAPS.get(char, "") + wide)
        yield from (name[:at] + space + name[at:] for space in " \u00a0\u2009\u3000\u200b")
    yield from (name.replace("m", "rn"), name.replace("M", "rn").lower(), name.replace("W", "VV"))


@pytest.mark.threat("T-PATH-15", control="lookalike_names")
def test_lookalike_of_a_reserved_name_is_never_created():
    others = {other for name in NAMES for other in {*iterate_lookalikes(name)} - {name}}
    paths = [f"user/{each}" if each.lower().endswith(".md") else f"user/{each}/a.md" for each in others]
    assert len(paths) >= 800
    assert [path for path in paths if call_write(path).verdict == "allow"] == []


@pytest.mark.threat("T-PATH-16", control="instruction_files")
def test_instruction_file_of_another_agent_is_never_written():
    for name in NAMES:
        for path in (f"user/{name}", f"project/t/{name.lower()}"):
            if path.endswith(".md"):
                assert (call_write(path).verdict, call_write(path).code) == ("deny", "refused"), path


def test_policies_and_titles_contain_every_reserved_name():
    for policy in ("strict", "ceiling"):
        rules = tomllib.loads(files("muniment.policies").joinpath(f"{policy}.toml").read_text())["deny"]
        patterns = [pattern.strip("/*") for rule in rules for pattern in rule["paths"]]
        assert set(NAMES) <= {pattern.removeprefix("index") or "index" for pattern in patterns}, policy
    stems = {name.removesuffix(".md").lower() for name in NAMES if "." not in name.removesuffix(".md")}
    assert stems - {"pinned"} <= RESERVED_STEMS
    chars = "".join(load_tables()["confusables"].values())  # A duplicate would be a line without effect.
    assert len(set(chars)) == len(chars) > 300


HONEST = """memories.md память.md индекс.md μνήμη.md agents-of-change.md warped.md mémoire.md index-funds.md
pins.md クロード.md skills.md Индия.md"""


def test_honest_name_is_accepted():
    for name in HONEST.split():
        assert (find_segment_problem(name), call_write(f"user/{name}").verdict) == (None, "allow"), name
