"""Makes the tables of `threat-model/REVIEW.md` from the sources: `python -m threats.review`.

What a file promises is the first sentence of its docstring; who attacks it stands here.
"""

import ast
import runpy
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "threat-model" / "REVIEW.md"
COMMAND = "PYTHONPATH=tests python -m threats.review"
BEGIN, END = f"<!-- made by `{COMMAND}` -->\n", "<!-- end -->\n"

READING = {
    "names": ("Words and limits.", "units/policy/test_grammar.py"),
    "refusal": ("", "surface/library/test_errors.py"),
    "path": ("", "units/policy/test_grammar.py models/test_root.py attacks/test_corpus.py"),
    "syscalls": ("", "units/kernel/test_root_syscalls.py"),
    "root": ("", "units/kernel/test_root.py units/kernel/test_root_mounts.py attacks/test_races.py"),
    "change": ("", "units/store/test_judge.py attacks/test_hostile_callers.py"),
    "binding": ("", "units/kernel/test_binding.py attacks/test_replaced_roots.py"),
    "decide": ("", "models/test_verdicts.py units/policy/test_decide.py units/policy/test_automaton.py"),
    "judge": ("", "units/store/test_judge.py models/test_hostile_ports.py"),
    "_directory": ("", "units/kernel/test_writing.py"),
    "land": ("", "units/store/test_commit.py attacks/test_hostile_callers.py"),
    "write": (
        "",
        (
            "units/store/test_commit.py units/kernel/test_replay.py attacks/test_attacked_state.py "
            "models/test_hostile_ports.py"
        ),
    ),
    "commit": ("", "models/test_store.py models/test_hostile_agents.py models/test_hostile_ports.py"),
    "cancel": ("", "units/kernel/test_cancel.py"),
}
"""In this order: what is promised where the docstring does not say it, and the tests that attack it."""

code_lines = runpy.run_path(str(REPOSITORY / "benchmarks" / "structure.py"))["code_lines"]


def table():
    folder, total = REPOSITORY / "src" / "muniment" / "kernel", 0
    found = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert found == set(READING), "each file of the kernel has its place in the reading order"
    yield "| file | lines of code | promises | attacked by |\n|---|--:|---|---|\n"
    for name, (promise, tests) in READING.items():
        text = (folder / f"{name}.py").read_text()
        tree = ast.parse(text)
        count = len(code_lines(text, tree))
        total += count
        said = promise or " ".join(ast.get_docstring(tree).split("\n\n")[0].split())
        links = ", ".join(f"[{each.split('/')[-1]}](../tests/{each})" for each in tests.split())
        yield f"| [{name}](../src/muniment/kernel/{name}.py) | {count} | {said} | {links} |\n"
    yield f"| | **{total}** | | |\n"


def page(text):
    """The page, with its table as the sources are now."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "".join(table()) + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
