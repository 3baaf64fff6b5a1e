"""Generate the tables of `threat-model/REVIEW.md` from the sources: `python -m threats.review`.

The guarantee of a file is the first sentence of its docstring; the tests that attack it are listed here. The
reasons of error handlers are in `handlers.toml`.
"""

import ast
import runpy
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "threat-model" / "REVIEW.md"
COMMAND = "PYTHONPATH=tests python -m threats.review"
BEGIN, END = f"<!-- made by `{COMMAND}` -->\n", "<!-- end -->\n"
BEGIN_PATH = f"<!-- path of a commit, made by `{COMMAND}` -->\n"
BEGIN_HANDLERS = f"<!-- handlers, made by `{COMMAND}` -->\n"
REASONS = Path(__file__).with_name("handlers.toml")
MAX_REASON_WORDS = 24
"""The maximal number of words of one reason."""

READING_ORDER = {
    "names": ("Words and limits.", "units/policy/test_grammar.py"),
    "refusal": ("", "surface/library/test_errors.py"),
    "normal_forms": ("", "units/policy/test_grammar.py"),
    "path": ("", "units/policy/test_grammar.py models/test_root.py attacks/test_corpus.py"),
    "syscalls": ("", "units/kernel/test_root_syscalls.py"),
    "walk": ("", "units/kernel/test_root.py units/kernel/test_root_mounts.py attacks/test_races.py"),
    "root": ("", "units/kernel/test_root.py units/kernel/test_root_mounts.py attacks/test_races.py"),
    "listing": ("", "units/kernel/test_root.py"),
    "change": ("", "units/store/test_judge.py attacks/test_hostile_callers.py"),
    "binding": ("", "units/kernel/test_binding.py attacks/test_replaced_roots.py"),
    "decide": ("", "models/test_verdicts.py units/policy/test_decide.py units/policy/test_automaton.py"),
    "judge": ("", "units/store/test_judge.py models/test_hostile_ports.py"),
    "_directory": ("", "units/kernel/test_writing.py"),
    "apply": ("", "units/store/test_commit.py attacks/test_hostile_callers.py"),
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
"""In this order: a guarantee that replaces the docstring, and the tests that attack it."""

COMMIT_PATH = [
    "store/commit.py:commit",
    "kernel/commit.py:transaction",
    "kernel/judge.py:check_paths",
    "kernel/apply.py:lock_roots",
    "kernel/commit.py:CommitTransaction.recover",
    "kernel/write.py:recover",
    "store/commit.py:_assign_final_names",
    "kernel/commit.py:CommitTransaction.resolve",
    "kernel/judge.py:read_current",
    "kernel/judge.py:drop_conflicting",
    "store/commit.py:_create_draft",
    "kernel/commit.py:CommitTransaction.judge",
    "kernel/judge.py:judge",
    "store/commit.py:_require_review",
    "kernel/commit.py:CommitTransaction.write",
    "kernel/write.py:CommitWriter.apply",
    "store/journal.py:LedgerJournal.begin",
    "kernel/apply.py:apply_changes",
    "kernel/apply.py:_apply_files",
    "kernel/_directory.py:Directory.stage",
    "kernel/_directory.py:Directory.publish_new",
    "kernel/_directory.py:Directory.replace",
    "kernel/_directory.py:Directory.sync",
    "store/commit.py:_update_derived",
    "store/journal.py:LedgerJournal.finish",
]
"""The functions that a commit calls, in order; `tests/test_commit_path.py` traces one."""

STRUCTURE = runpy.run_path(str(REPOSITORY / "benchmarks" / "structure.py"))
code_lines, LIMITS = STRUCTURE["code_lines"], STRUCTURE["PARTS"]


def make_table():
    folder = REPOSITORY / "src" / "muniment" / "kernel"
    found = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert found == set(READING_ORDER), "READING_ORDER must list every file of the kernel"
    yield "| file | lines of code | promises | attacked by |\n|---|--:|---|---|\n"
    for name, (promise, tests) in READING_ORDER.items():
        text = (folder / f"{name}.py").read_text()
        tree = ast.parse(text)
        count = len(code_lines(text, tree))
        summary = promise or " ".join(ast.get_docstring(tree).split("\n\n")[0].split())
        links = ", ".join(f"[{each.split('/')[-1]}](../tests/{each})" for each in tests.split())
        yield f"| [{name}](../src/muniment/kernel/{name}.py) | {count} | {summary} | {links} |\n"
    for part, limit in LIMITS.items():
        path = f"src/muniment/{part.replace('.', '/')}"
        count = dict(STRUCTURE["measured"](REPOSITORY / path))["code lines"]
        yield f"| [{part}](../{path}), total | **{count}** | at most {limit} | |\n"


def functions(text):
    """Return the function nodes of a file by qualified name, of classes one level deep."""
    found = {}
    for node in ast.parse(text).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {f"{prefix}{each.name}": each for each in inside if isinstance(each, ast.FunctionDef)}
    return found


def make_commit_path():
    """Yield a line for each function on the path of a commit, with the first sentence of its docstring."""
    for number, stop in enumerate(COMMIT_PATH, 1):
        path, name = stop.split(":")
        found = functions((REPOSITORY / "src" / "muniment" / path).read_text())[name]
        summary = " ".join(ast.get_docstring(found).split("\n\n")[0].split())
        yield f"{number}. [{path}](../src/muniment/{path}) `{name}`: {summary}\n"


def count_caught(text):
    """Count the errors that each function of a file catches or suppresses, by its qualified name."""
    found = defaultdict(Counter)

    def visit(node, name):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = (*name, node.name)
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
            found[".".join(name)][", ".join(map(ast.unparse, kinds)) or "everything"] += 1
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
            found[".".join(name)][f"suppress({', '.join(map(ast.unparse, node.args))})"] += 1
        for each in ast.iter_child_nodes(node):
            visit(each, name)

    visit(ast.parse(text), ())
    return found


STORAGE_FILES = (
    "kernel/*.py",
    "store/*.py",
    "fleet/copy_files.py",
    "fleet/postgres.py",
    "transfer/backup.py",
)


def count_handlers():
    """Count the errors that each function of the storage code handles, by location."""
    package = REPOSITORY / "src" / "muniment"
    paths = [path for folder in STORAGE_FILES for path in sorted(package.glob(folder))]
    return {
        f"{'.'.join(path.relative_to(package).with_suffix('').parts)}.{name}": errors
        for path in paths
        for name, errors in count_caught(path.read_text()).items()
    }


def make_key(error, count):
    """Return the key of a reason; equal errors of one function share one key with their count."""
    return error if count == 1 else f"{error} ({count} times)"


def make_handler_table(found, reasons):
    """Yield the lines of the table; fail if a handler has no reason or a reason has no handler."""
    handler_keys = {
        (location, make_key(*each)) for location, errors in found.items() for each in errors.items()
    }
    reason_by_handler = {
        (location, key): reason for location, texts in reasons.items() for key, reason in texts.items()
    }
    assert not handler_keys - reason_by_handler.keys(), (
        f"handlers without a reason in {REASONS.name}: {handler_keys - reason_by_handler.keys()}"
    )
    assert not reason_by_handler.keys() - handler_keys, (
        f"reasons without a handler: {reason_by_handler.keys() - handler_keys}"
    )
    yield "| location | catches | effect, and why the rule is kept |\n|---|---|---|\n"
    for location, errors in found.items():
        rows = defaultdict(list)
        for each in errors.items():
            reason = reason_by_handler[location, make_key(*each)]
            assert reason.endswith("."), f"not a sentence: {reason}"
            assert len(reason.split()) <= MAX_REASON_WORDS, f"too long: {reason}"
            rows[reason].append(f"`{make_key(*each)}`")
        yield from (f"| `{location}` | {', '.join(keys)} | {reason} |\n" for reason, keys in rows.items())


def make_page(text):
    """Return the page with current tables."""
    reasons = tomllib.loads(REASONS.read_text())
    handled = make_handler_table(count_handlers(), reasons)
    for begin, lines in ((BEGIN, make_table()), (BEGIN_PATH, make_commit_path()), (BEGIN_HANDLERS, handled)):
        before, rest = text.split(begin)
        text = before + begin + "".join(lines) + END + rest.split(END, 1)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
