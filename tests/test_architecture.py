"""What may import what, who opens files, and what a worker holds. Read from the source, not from promises."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import time
import tokenize
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import muniment
from muniment.confine.pool import Zygote, import_directories
from muniment.tools.calls import TOOLS, VERBS

PACKAGE = Path(muniment.__file__).parent
REPOSITORY = PACKAGE.parent.parent
SOURCES = {
    ".".join(("muniment", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}
ORDER = (
    "names",
    "errors",
    "events",
    "policy",
    "confine",
    "content",
    "tools",
    "store",
    "recall",
    "sandbox",
    "agent",
    "jobs",
    "lab",
    "testing",
    "settings",
    "signatures",
    "opening",
    "api",
    "lane",
    "daemon",
    "client",
    "cli",
)
MAX_FILE_LINES = 650
MAX_FUNCTION_LINES = 60


def imports(name):
    """Modules of the package that a module imports, wherever in it, `TYPE_CHECKING` or not."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "muniment")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            if node.module.split(".")[0] == "muniment":
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield whole if whole in SOURCES else node.module


def part(name):
    second = name.split(".")[1] if "." in name else ""
    return "cli" if second == "__main__" else second


def calls_of(name):
    """(dotted name, line) of every call in a module."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def test_the_order_is_the_one_that_import_linter_holds_as_well():
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert tuple(layer.removeprefix("muniment.") for layer in reversed(layers)) == ORDER


def test_a_package_imports_itself_and_what_stands_left_of_it():
    top = {"muniment", "muniment.names"}
    wrong = {
        (name, other)
        for name in set(SOURCES) - top
        for other in set(imports(name)) - top
        if ORDER.index(part(other)) > ORDER.index(part(name))
    }
    assert wrong == set()
    said = {"muniment.names", "muniment.api", "muniment.errors", "muniment.sandbox"}
    assert {other for name in top for other in imports(name)} <= said


def test_what_writes_memory_is_imported_by_the_store_alone():
    users = {name for name in SOURCES if "muniment.confine.writing" in set(imports(name))}
    assert users
    assert all(part(user) == "store" for user in users), users


def test_only_the_api_the_sandbox_and_the_program_start_workers():
    users = {name for name in SOURCES if "muniment.confine.pool" in set(imports(name))}
    # A trial takes from it only where to import from; its workers are its own.
    trials = {"muniment.confine.attempts.trial"}
    assert users - trials == {
        "muniment.api",
        "muniment.sandbox",
        "muniment.cli.entry",
        "muniment.cli.daemon",
        "muniment.daemon.core",  # ends an idle zygote
        "muniment.tools.remote",
    }


def test_one_adapter_alone_talks_to_a_model_and_daemon_and_client_alone_to_each_other():
    network = {"openai", "httpx", "httpx2", "asyncio", "ssl", "socket", "http", "urllib"}
    users = {}
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module.partition(".")[0] in network and module != "urllib.parse":
                    if part(name) in {"daemon", "client"} and module != "openai":
                        continue
                    users.setdefault(module.partition(".")[0], set()).add(name)
    adapter = "muniment.agent.openai"
    testing = "muniment.testing.chat_server"
    local = {name for name in SOURCES if name.startswith("muniment.confine.")}
    assert users.pop("openai") == {adapter}
    assert users.pop("httpx2") == {adapter, "muniment.agent.openai"}
    assert users.pop("asyncio") == {adapter, "muniment.agent.openai", "muniment.cli.daemon"}
    assert users.pop("ssl") == {adapter, testing}
    # A worker's service is handed its end of a socket pair; among the files of a case there may be a socket.
    assert users.pop("socket") - local == {
        "muniment.agent.openai",
        "muniment.tools.service",
        "muniment.testing.corpus.stage",
        testing,
    }
    assert users.pop("http") == {testing}
    assert users == {}


def test_the_library_is_used_by_the_command_line_alone_and_testing_by_one_command():
    for name in SOURCES:
        for other in imports(name):
            assert part(other) != "cli" or part(name) == "cli"
            if part(other) == "testing":
                assert part(name) == "testing" or name == "muniment.cli.conformance"


OPENERS = {
    "open",
    "os.open",
    "io.open",
    "os.fdopen",
    "os.mkdir",
    "os.unlink",
    "os.remove",
    "os.rename",
    "os.replace",
    "os.rmdir",
    "os.makedirs",
    "os.listdir",
    "os.scandir",
    "os.walk",
    "os.link",
    "os.symlink",
}
PATH_METHODS = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "touch",
    "unlink",
    "mkdir",
    "rmdir",
    "rename",
    "iterdir",
    "glob",
    "rglob",
    "walk",
}
MAY_OPEN = {
    "muniment.policy.family": {"os.open", "os.fdopen"},  # policy files, by a person's name for them
    # What ssh-keygen is given to look at.
    "muniment.signatures": {"shutil.which", "tempfile.TemporaryDirectory", "path.write_bytes"},
    # Locks and signatures that a person asked for.
    "muniment.cli.policy": {"os.open", "os.fdopen", "os.replace", "unfinished.unlink", "folder.glob"},
    "muniment.settings": {"path.open"},  # config.toml, and the key file that a person named
    "muniment.cli.entry": {"os.open", "os.fdopen"},  # /dev/null, in place of a closed standard stream
    "muniment.cli.terminal": {"os.open", "path.open"},  # /dev/null, likewise, an existing one
    "muniment.cli.remember": {
        "api.open",
        "os.open",
        "os.fdopen",
        "path.unlink",
    },  # the library, a new file that a person named
    # The state directory, which a person configured.
    "muniment.store.database": {"os.open", "self.path.with_name(self.path.name + companion).unlink"},
    # What an operator had said to be written, and the list of it.
    "muniment.store.tasks": {
        "os.open",
        "os.fdopen",
        "file.read_text",
        "path.read_text",
        "path.unlink",
    },
    "muniment.store.state": {
        "mark.unlink",
        "os.open",
        "path.open",
        "(self.directory / name).unlink",
        "path.with_name(path.name + companion).unlink",
        "self.directory.iterdir",
        "unfinished.rename",
        "unfinished.unlink",
        "os.link",
        "path.parent.glob",
        "left_over.unlink",
    },
    "muniment.daemon.guard": {"_OVERFLOW.read_text"},  # a file of the kernel
    "muniment.daemon.tokens": {"os.open"},
    "muniment.daemon.service": {
        "os.open",
        "path.unlink",
        "(directory / ADDRESS_NAME).unlink",
        "(directory / ADDRESS_NAME).read_text",
        "self.core.open",
    },  # no file
    # The state directory of the daemon that a client looks for.
    "muniment.client.finding": {"os.open"},
    "muniment.client.transport": {"self._line.open"},  # no file
    # Data of our own.
    "muniment.agent.decision": {"files('muniment.agent').joinpath('cues.toml').read_text"},
    "muniment.content.admission": {"files('muniment.content').joinpath('instructions.toml').read_text"},
    "muniment.content.secrets": {
        "files('muniment.content').joinpath('secrets.toml').read_text",
        "files('muniment.content').joinpath('typed_secrets.toml').read_text",
    },
    "muniment.policy.grammar": {"files('muniment.policy').joinpath('lookalikes.toml').read_text"},
}
ATTACK_KIT = (
    "muniment.testing.conformance.",
    "muniment.testing.corpus.",
    "muniment.testing.race",
    "muniment.testing.strategies",
    "muniment.testing.witness",
)
"""Builds throwaway trees by path and looks at them by path: a second opinion shares no code with `confine`.
Part of one command alone (`test_the_library_is_…_testing_by_one_command`)."""

ROOT_METHODS = {"read_bytes", "walk"}
"""Names that the handles of `confine` share with `pathlib.Path`: reading beneath a root."""


def opens(function):
    """Whether a call, by its dotted name, opens or changes files by path."""
    before, _, method = function.rpartition(".")
    if function in OPENERS or function.startswith(("shutil.", "tempfile.")):
        return True
    return (
        bool(before) and method in PATH_METHODS and not (before.endswith("root") and method in ROOT_METHODS)
    )


def test_files_are_opened_by_confine_alone():
    opened = {
        name: {function for function, _ in calls_of(name) if opens(function)}
        for name in SOURCES
        if part(name) != "confine" and not name.startswith(ATTACK_KIT)
    }
    assert {name: functions for name, functions in opened.items() if functions} == MAY_OPEN


MAY_DECODE = {
    "muniment.settings": {"expanduser"},  # directories that a person configured
    "muniment.client.finding": {"expanduser"},  # the same directory
    "muniment.daemon.guard": {"unquote"},  # a workspace's path, compared with those that are served
    "muniment.content.markdown": {"unquote"},  # of links that are counted, never opened
    "muniment.store.index": {"unquote"},  # link targets that it wrote itself; compared, never opened
    "muniment.testing.corpus.index_oracle": {"unquote"},  # as its counterpart
}
DECODERS = {"unquote", "unquote_plus", "expanduser", "expandvars", "eval", "exec", "loads_pickle", "system"}


def test_no_path_is_decoded_or_expanded_and_nothing_is_evaluated():
    used = {
        name: {function.rpartition(".")[2] for function, _ in calls_of(name)} & DECODERS for name in SOURCES
    }
    assert {name: functions for name, functions in used.items() if functions} == MAY_DECODE
    imported = {
        alias.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert not {"pickle", "marshal", "shelve", "yaml"} & imported


DOORS = {"unicodedata.normalize", "unicodedata.is_normalized"}


def test_nothing_is_normalised_but_through_the_door_that_bounds_its_cost():
    found = {
        name
        for name in SOURCES
        for node in ast.walk(TREES[name])
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in DOORS)
        or (
            (isinstance(node, ast.ImportFrom) and node.module == "unicodedata")
            and DOORS & {f"unicodedata.{alias.name}" for alias in node.names}
        )
    }
    assert found == {"muniment.policy.grammar", "muniment.testing.strategies"}


def test_every_tool_declares_its_verbs_and_its_path():
    assert set(TOOLS) == set(VERBS)
    assert all(VERBS[tool] for tool in TOOLS)
    assert all("path" in model.model_fields for model in TOOLS.values())


def code_lines(name):
    """Lines of a module that are not blank, of a comment, or of a docstring."""
    text, documentation = SOURCES[name].read_text(), set()
    for node in ast.walk(TREES[name]):
        for child in (
            getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ()
        ):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                documentation.update(range(child.lineno, child.end_lineno + 1))
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def test_files_and_functions_stay_short():
    long_files = {name for name in SOURCES if code_lines(name) > MAX_FILE_LINES}
    long_functions = {
        (name, node.name)
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert (long_files, long_functions) == (set(), set())


def test_names_of_classes_are_unique_but_for_forms_of_one_thing():
    forms = {"muniment.daemon.contract", "muniment.client.results", "muniment.client.errors"}
    holders = defaultdict(set)
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                holders[node.name].add(name)
    assert {name for name, at in holders.items() if len(at - forms) > 1} == {"Outcome"}


def imported_at_once(name):
    """Modules of the package that loading a module loads as well."""
    for node in TREES[name].body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in SOURCES else node.module


def test_a_module_with_one_importer_says_why_it_stands_apart():
    importers = defaultdict(set)
    for name in SOURCES:
        for other in imports(name):
            importers[other].add(name)
    silent = set()
    for name, by in importers.items():
        (one, *others) = by
        is_own = one.rpartition(".")[0] == name.rpartition(".")[0] != "muniment"
        if is_own and not others and name in imported_at_once(one):
            silent |= {name} if "Apart" not in ast.get_docstring(TREES[name]) else set()
    assert silent == set()


def test_every_module_says_what_it_is_and_no_name_says_nothing():
    assert all(ast.get_docstring(tree) for tree in TREES.values())
    vague = {"utils", "helpers", "manager", "common", "base", "misc"}
    assert not vague & {segment for name in SOURCES for segment in name.split(".")}


# The driver tells whatever a subject raises as the result of its case; a runner ends the task with it, and a
# writer the future; a recall is empty, and an event tells.
MAY_CATCH_ALL = {
    "muniment.confine.zygote",
    "muniment.daemon.acp",
    "muniment.lane",
    "muniment.recall.session",
    "muniment.recall.recaller",
    "muniment.testing.corpus.driver",
}


def swallows(handler):
    """Whether an `except` catches everything, and neither raises nor ends the process."""
    if handler.type is not None and ast.unparse(handler.type) not in {"Exception", "BaseException"}:
        return False
    inner = list(ast.walk(handler))
    leaves = {ast.unparse(node.func) for node in inner if isinstance(node, ast.Call)} & {"os._exit", "_leave"}
    return not leaves and not any(isinstance(node, ast.Raise) for node in inner)


def test_no_broad_except_swallows_an_error():
    swallowing = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    }
    assert swallowing == MAY_CATCH_ALL


# -- a real worker -------------------------------------------------------------------------------------

FORBIDDEN = {
    "muniment.store",
    "muniment.agent",
    "muniment.jobs",
    "muniment.sandbox",
    "muniment.settings",
    "muniment.api",
    "muniment.opening",
    "muniment.signatures",
    "muniment.recall",
    "muniment.cli",
    "muniment.testing",
    "muniment.events",
    "muniment.tools.remote",
    "muniment.confine.writing",
    "muniment.confine.binding",
    "muniment.confine.pool",
    "sqlite3",
    "openai",
    "httpx",
    "httpx2",
    "structlog",
    "rich",
    "typer",
    "click",
    "starlette",
    "subprocess",
    "multiprocessing",
    "asyncio",
    "ssl",
    "http",
    "urllib.request",
    "ftplib",
    "smtplib",
    "pickle",
    "pdb",
    "site",
}
"""Not `tempfile` and `shutil`: `importlib.resources` brings them, and a worker may not write in any case."""

OURS = {
    "muniment",
    "muniment.confine",
    "muniment.confine.wire",
    "muniment.confine.fence",
    "muniment.confine.syscalls",
    "muniment.confine.root",
    "muniment.confine.zygote",
    "muniment.content",
    "muniment.content.admission",
    "muniment.content.entry",
    "muniment.content.frontmatter",
    "muniment.content.gates",
    "muniment.content.markdown",
    "muniment.content.secrets",
    "muniment.errors",
    "muniment.names",
    "muniment.policy",
    "muniment.policy.decide",
    "muniment.policy.grammar",
    "muniment.policy.tables",
    "muniment.tools",
    "muniment.tools.calls",
    "muniment.tools.overlay",
    "muniment.tools.workbench",
    "muniment.tools.service",
}


@pytest.fixture(scope="module")
def inventory():
    services = str(Path(__file__).parent / "kit" / "architecture" / "services")
    with Zygote("inventory_service:serve", directories=(*import_directories(), services)) as zygote:
        deadline = time.monotonic() + 30
        with zygote.spawn({}, deadline=deadline) as worker:
            header, _ = worker.receive(max_body=0, deadline=deadline)
    return header


def test_a_worker_holds_nothing_that_writes_decides_or_talks(inventory):
    held = set(inventory["modules"])
    assert not {name for name in held for bad in FORBIDDEN if name == bad or name.startswith(f"{bad}.")}


def test_a_worker_holds_no_more_of_us_than_is_listed(inventory):
    held = {name for name in inventory["modules"] if name.split(".")[0] == "muniment"}
    assert held <= OURS, held - OURS


def test_a_worker_has_no_environment_and_no_root_that_it_was_not_given(inventory):
    assert inventory["environ"] == {}
    assert inventory["roots"] == []


def test_the_imports_hold_for_import_linter_too():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout
