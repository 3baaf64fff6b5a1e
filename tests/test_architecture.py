"""What may import what, who opens files, and what a worker holds. Read from the source, not from promises."""

import ast
import runpy
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import muniment
from kit.sandbox.probe import soon, source
from muniment.cli.table import TABLE
from muniment.sandbox.tools.calls import TOOLS, VERBS

PACKAGE = Path(muniment.__file__).parent
REPOSITORY = PACKAGE.parent.parent
SOURCES = {
    ".".join(("muniment", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
STRUCTURE = runpy.run_path(str(REPOSITORY / "benchmarks" / "structure.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 60
MAX_PART_LINES = STRUCTURE["PARTS"]


def words(text):
    return text.split()


def of(package, names):
    return {f"{package}.{name}" for name in names.split()}


ORDER = words(
    "portable kernel names errors types events cancelling files policy content store recall sandbox agent "
    "settings workspaces operations opening api async_api lab testing transfer server fleet client "
    "integrations cli"
)
CORE = ORDER[: ORDER.index("async_api") + 1]
"""What somebody who embeds the library needs; nothing of it imports what comes after."""

PACKAGES = words(
    "portable kernel types policy content store recall sandbox agent workspaces operations lab testing "
    "transfer server fleet client integrations cli"
)
MAX_LOOSE = 9
"""Modules that are in no package."""


@cache
def trees():
    """The modules, parsed: once somebody asks, since every process that runs tests loads this file."""
    return {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}


@cache
def by_kind():
    """(module, node) of every node of the package, by the node's class."""
    found = defaultdict(list)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            found[type(node)].append((name, node))
    return found


def nodes(*kinds):
    """(module, node) of every node of these kinds in the package."""
    return [each for kind in kinds for each in by_kind()[kind]]


def modules_in(node):
    """Modules of the package that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] == "muniment"]
    assert node.level == 0, "a relative import"
    wholes = [f"{node.module}.{alias.name}" for alias in node.names]
    is_ours = node.module.split(".")[0] == "muniment"
    return [whole if whole in SOURCES else node.module for whole in wholes] if is_ours else []


@cache
def imported():
    """Modules of the package that a module imports, wherever in it, `TYPE_CHECKING` or not."""
    found = defaultdict(set)
    for importer, node in nodes(ast.Import, ast.ImportFrom):
        found[importer].update(modules_in(node))
    return found


@cache
def called():
    """The dotted name of every call in a module."""
    found = defaultdict(set)
    for caller, node in nodes(ast.Call):
        found[caller].add(ast.unparse(node.func))
    return found


def users(module):
    return {name for name, others in imported().items() if module in others}


def part(name):
    second = name.split(".")[1] if "." in name else ""
    return "cli" if second == "__main__" else second


def read_whole(name):
    """The part that a reviewer reads whole to which a module belongs; empty: none."""
    return next((each for each in RESTS_ON if f"{name}.".startswith(f"muniment.{each}.")), "")


def test_a_package_imports_itself_and_what_stands_left_of_it_as_import_linter_holds():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (each["layers"] for each in settings["contracts"] if each["type"] == "layers")
    assert [layer.removeprefix("muniment.") for layer in reversed(layers)] == ORDER
    assert {part(name) for name in SOURCES if part(name)} == set(ORDER), "none is left out"
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(PACKAGES)
    assert len(set(ORDER) - set(PACKAGES)) <= MAX_LOOSE
    assert {part(name) for name in imported()["muniment"]} <= {*CORE, "client"}, "lazy names"
    linter = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(linter, capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=50)
    assert done.returncode == 0, done.stdout


def test_modules_form_no_circle():
    circles = STRUCTURE["circles"]
    assert circles({"a": "b", "b": "cd", "c": "a", "d": "e", "e": ""}) == [["a", "b", "c"]]
    assert circles(STRUCTURE["imports"](SOURCES)) == []


def test_core_imports_nothing_outside_core_inside_functions_neither():
    for name, others in imported().items():
        if part(name) in CORE:
            assert set(map(part, others)) <= {*CORE, ""}, name


RESTS_ON = {
    "kernel": {"kernel"},
    "sandbox.fence": {"kernel", "names", "errors", "sandbox.fence"},
    "portable": {"portable"},
}
"""What may stand in these, besides the standard library."""

ELSEWHERE = {"muniment.kernel", "muniment.sandbox.fence"}
"""Who loads `portable` where `sys.platform != "linux"`: the system calls that stand in, and the words."""


def test_kernel_and_fence_rest_on_the_standard_library_and_what_is_named_here():
    for name, parts in RESTS_ON.items():
        ours = {
            user: {read_whole(each) or part(each) for each in imported()[user]}
            - ({"portable"} if user in ELSEWHERE else set())
            for user in SOURCES
            if read_whole(user) == name
        }
        assert {user: more for user, others in ours.items() if (more := others - parts)} == {}
    for name, node in nodes(ast.Import, ast.ImportFrom):
        if read_whole(name):
            whole = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            foreign = {each.partition(".")[0] for each in whole} - sys.stdlib_module_names
            assert foreign <= {"muniment"}, name


def test_kernel_and_fence_are_checked_without_any_and_without_a_cast():
    written = [
        *((name, node.id) for name, node in nodes(ast.Name)),
        *((name, node.attr) for name, node in nodes(ast.Attribute)),
        *((name, node.name) for name, node in nodes(ast.alias)),
    ]
    loose = {
        (name, word)
        for name, word in written
        if word in {"Any", "cast"} and read_whole(name) in MAX_PART_LINES
    }
    assert loose == set()


def test_the_store_alone_writes_memory_and_the_api_the_sandbox_and_the_program_alone_start_workers():
    check = "muniment.lab.selfcheck"  # of a throwaway directory
    landing = {
        user for user in users("muniment.kernel.land") - {check} if part(user) not in {"kernel", "store"}
    }
    assert landing == of("muniment", "fleet.copied transfer.backup")  # Copies of files that the store wrote.
    assert users("muniment.kernel._directory") == of("muniment.kernel", "land write")
    # A trial takes from it only where to import from; its workers are its own. The daemon ends
    # an idle zygote.
    starters = of("muniment", "api sandbox.sandbox cli.entry cli.daemon server.core sandbox.tools.remote")
    assert users("muniment.sandbox.fence.pool") - {"muniment.lab.attempts.trial"} == starters
    for name, others in imported().items():
        parts = set(map(part, others))
        assert "cli" not in parts or part(name) == "cli"
        assert "testing" not in parts or part(name) == "testing" or name == "muniment.cli.conformance"


def test_who_takes_the_locks_of_roots_asks_whether_this_system_may_write():
    takers = {
        name
        for name in SOURCES
        if part(name) != "kernel"
        and called()[name] & {"lock_roots", "kernel.transaction"}
        and "selfcheck" not in name
    }
    silent = {name for name in takers if not called()[name] & {"require_writing", "may_write"}}
    # A rejection is written into the ledger alone; a backup holds writers off while it reads.
    assert silent == of("muniment", "store.review transfer.backup")


LOOPS = of(
    "muniment",
    "cli.daemon cli.mcp integrations.mcp.memory integrations.mcp.server integrations.mcp.http "
    "integrations.mcp.stdio integrations.mcp.pipe integrations.mcp.wire "
    "cancelling async_api "
    "fleet.node fleet.home fleet.queue",
)
"""What runs on an event loop of its own; the SDK of MCP has no other way."""


def test_one_adapter_alone_talks_to_a_model_and_daemon_and_client_alone_to_each_other():
    found = defaultdict(set)
    for name, node in nodes(ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
        for module in names:
            if module != "urllib.parse" and (part(name) not in {"server", "client"} or module == "openai"):
                found[module.partition(".")[0]].add(name)
    adapter, server = "muniment.agent.openai", "muniment.testing.chat_server"
    network = ("openai", "httpx", "httpx2", "requests", "asyncio", "ssl", "socket", "http", "urllib")
    found["socket"] = {name for name in found["socket"] if read_whole(name) != "sandbox.fence"}
    allowed = {
        "openai": {adapter},
        "httpx2": {adapter, "muniment.integrations.mcp.pipe"},
        "asyncio": {adapter, *LOOPS},
    }
    # A worker's service is handed its end of a pair; among the files of a case there may be a socket.
    found["socket"] = {name for name in found["socket"] if "attempts" not in name}
    allowed["socket"] = {adapter, server, "muniment.sandbox.tools.service", "muniment.testing.corpus.stage"}
    allowed |= {"ssl": {adapter, server}, "http": {server}, "requests": {"muniment.cli.traces"}}
    assert {module: found[module] for module in network if found[module]} == allowed


OPENERS = {"open", "io.open", "opened", "placing"} | of(
    "os", "open fdopen mkdir unlink remove rename replace rmdir makedirs listdir scandir walk link symlink"
)
PATH_METHODS = words(
    "open read_text read_bytes write_text write_bytes touch unlink mkdir rmdir rename iterdir glob rglob walk"
)


MAY_OPEN = {
    "files": {
        *("os.open", "os.fdopen", "unfinished.unlink"),  # for those below who call `opened` and `placing`
        *("placing", "os.link", "unfinished.rename"),  # new files that a person named
        "package_files(package).joinpath(name).read_text",  # tables of our own
    },
    # Who else may write what is obeyed; directories of ours.
    "policy.ownership": {
        *("Path('/proc/sys/kernel/overflowuid').read_text", "directory.mkdir", "os.walk"),
        "trusted_path.iterdir",
    },
    "policy.family": {"opened"},  # policy files, by a person's name for them
    # What ssh-keygen is given to look at.
    "policy.signatures": {"shutil.which", "tempfile.TemporaryDirectory", "path.write_bytes"},
    # Locks and signatures that a person asked for.
    "cli.policy_files": {"placing", "folder.glob"},
    # The embedding model that a person named.
    "recall.meaning": {"(self._directory / name).open", "(directory / _FILES[0]).read_text"},
    "settings": {"path.open"},  # config.toml, and the key file that a person named
    "workspaces.checkouts": {"opened"},  # what git says of a repository, and our mark in it
    "workspaces.projects": {
        "os.listdir",
        "path.open",
    },  # what projects the home has a memory of, and the list of them
    "cli.entry": {"os.open", "os.fdopen"},  # /dev/null, in place of a closed standard stream
    "cli.terminal": {"os.open", "path.open"},  # /dev/null, likewise, an existing one
    "integrations.mcp.wire": {"os.open"},  # /dev/null
    # A private copy of one entry, for its owner's editor.
    "cli.inspect": {"tempfile.mkdtemp", "copy.write_bytes", "copy.read_bytes", "shutil.rmtree"},
    "cli.daemon": {"webbrowser.open"},  # the browser of the desktop, at a file of ours
    # What comes with the package for browsers.
    "server.page.pages": {"files('muniment.server.page').joinpath('static').iterdir", "each.read_bytes"},
    # Settings of other programs, at a person's yes, and what they held before.
    "integrations.coding_tools.files": {
        *("opened", "placing", "directory.glob", "path.unlink", "each.mkdir", "Path(each.path).rmdir"),
        *("file.path.unlink", "self.original.unlink"),
    },
    "fleet.address": {"path.open"},  # the URL of the database, in a file that its operator named
    # Working copies, which are ours alone and made anew: whether one is whole, and what is not.
    "fleet.copies": {
        *("(directory / MARK).read_text", "(self.directory / MARK).unlink", "_BOOT.read_text"),
        *("new.write_text", "shutil.rmtree"),
    },
    "fleet.node": {"self._cache.iterdir", "directory.rglob", "shutil.rmtree"},
    "fleet.schema": {
        "Path(migrations_path).glob",
        "(Path(migrations_path) / name).read_text",
    },
    # The home as a whole, which a person says is to go.
    "cli.setup": {
        *(
            "opened",
            "directory.iterdir",
            "directory.rmdir",
            "each.rglob",
            "home.iterdir",
            "projects.iterdir",
        ),
        *("path.unlink", "shutil.rmtree"),
    },
    # The library, and a new file that a person named.
    "cli.remember": {"api.open", "os.open", "os.fdopen", "path.unlink"},
    # What a person named to be imported: never beyond a link in it, and archives are read where they lie.
    "transfer.sources": {"opened", "os.open", "os.fdopen", "os.listdir", "archive.open", "tarfile.open"},
    "operations.exporting": {"tarfile.open"},  # over a file that is open
    # New files that a person named.
    "cli.moving": {
        *("os.open", "os.fdopen"),
        "path.absolute().parent.glob",
    },
    # The whole home, read under the locks of its roots, or made anew beside where none is.
    "transfer.backup": {
        *("opened", "os.open", "os.fdopen", "os.listdir", "tarfile.open", "shutil.rmtree", "home.iterdir"),
        *("(home / 'projects').glob", "directory.iterdir", "restored.iterdir", "made.unlink", "path.unlink"),
        *("beside.rename", "path.read_text", "path.write_text", "(directory / LEDGER_NAME).open"),
        "shutil.disk_usage",
    },
    # The state directory, which a person configured.
    "store.database": {
        *("os.open", "path.with_name(path.name + companion).unlink"),
        *("files(package).joinpath('migrations').iterdir", "each.read_text"),  # data of our own
    },
    # What an operator had said to be written, and the list of it.
    "store.tasks": {"os.open", "os.fdopen", "file.read_text", "path.read_text", "path.unlink"},
    "store.state": {
        *("mark.unlink", "os.open", "path.open", "(self.directory / name).unlink", "placing"),
        *("self.directory.iterdir", "unfinished.rename"),
        *("unfinished.unlink", "path.parent.glob", "left_over.unlink"),
        "(target / each.name).open",  # a copy of a state directory that cannot be written
        "files(__package__).joinpath('catalog.sql').read_text",  # data of our own
    },
    "server.guard": {"_OVERFLOW.read_text"},  # a file of the kernel
    "server.tokens": {"opened"},
    "server.service": {
        *("opened", "path.unlink", "(directory / ADDRESS_NAME).unlink"),
        *("(directory / ADDRESS_NAME).read_text", "self.core.open"),  # The last is no file.
    },
    "client.finding": {"opened"},  # the state directory of the daemon that a client looks for
    "client.transport": {"self._line.open"},  # no file
    "integrations.mcp.pipe": {"self._line.open"},  # likewise
}
ATTACK_KIT = (
    *of("muniment.testing", "conformance. corpus. race witness"),
    *of("muniment.lab", "attempts. selfcheck"),
)
"""Builds throwaway trees by path and looks at them by path: a second opinion shares no code with `kernel`.
Part of two commands alone."""

ROOT_METHODS = {"read_bytes", "walk"}
"""Names that the handles of `kernel` share with `pathlib.Path`: reading beneath a root."""


def opens(function):
    """Whether a call, by its dotted name, opens or changes files by path."""
    before, _, method = function.rpartition(".")
    if function in OPENERS or function.startswith(("shutil.", "tempfile.")):
        return True
    is_of_root = before.endswith("root") and method in ROOT_METHODS
    return bool(before) and method in PATH_METHODS and not is_of_root


def test_files_are_opened_by_the_kernel_and_for_the_fence_alone():
    others = [name for name in SOURCES if not read_whole(name) and not name.startswith(ATTACK_KIT)]
    opened = {name.removeprefix("muniment."): set(filter(opens, called()[name])) for name in others}
    assert {name: functions for name, functions in opened.items() if functions} == MAY_OPEN


MAY_DECODE = {
    "muniment.integrations.mcp.server": {
        "unquote"
    },  # once, of an address; its path then is as a model wrote it
    "muniment.operations.escapes": {"unquote"},  # of paths that were denied, to say why; never opened
    "muniment.operations.place": {"unquote"},  # once, of an address; its path then is judged as any other
    "muniment.settings": {"expanduser"},  # directories that a person configured
    "muniment.client.finding": {"expanduser"},  # the same directory
    "muniment.server.guard": {"unquote"},  # a workspace's path, compared with those that are served
    "muniment.transfer.formats": {"unquote"},  # of links of an index, compared with names, never opened
    "muniment.content.markdown": {"unquote"},  # of links that are counted, never opened
    "muniment.store.index": {"unquote"},  # link targets that it wrote itself; compared, never opened
    "muniment.testing.corpus.index_oracle": {"unquote"},  # as its counterpart
}
DECODERS = {"unquote", "unquote_plus", "expanduser", "expandvars", "eval", "exec", "loads_pickle", "system"}
DOORS = {"unicodedata.normalize", "unicodedata.is_normalized"}


def test_no_path_is_decoded_nothing_is_evaluated_and_nothing_normalised_but_where_its_cost_is_bounded():
    used = {name: {each.rpartition(".")[2] for each in called()[name]} & DECODERS for name in SOURCES}
    assert {name: functions for name, functions in used.items() if functions} == MAY_DECODE
    names = {alias.name for _, node in nodes(ast.Import) for alias in node.names}
    assert not {"pickle", "marshal", "shelve", "yaml"} & names
    found = {name for name, node in nodes(ast.Attribute) if ast.unparse(node) in DOORS}
    for name, node in nodes(ast.ImportFrom):
        if DOORS & {f"{node.module}.{alias.name}" for alias in node.names}:
            found.add(name)
    assert found == {"muniment.kernel.normal_forms"}


def test_every_tool_declares_its_verbs_and_its_path():
    assert set(TOOLS) == set(VERBS)
    assert all(VERBS[tool] and "path" in model.model_fields for tool, model in TOOLS.items())


def test_files_and_functions_stay_short():
    lines = {name: STRUCTURE["code_lines"](SOURCES[name].read_text(), tree) for name, tree in trees().items()}
    assert {name for name in SOURCES if len(lines[name]) > MAX_FILE_LINES} == set()
    functions = nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = [(name, node.name, node.end_lineno - node.lineno + 1) for name, node in functions]
    assert [each for each in lengths if each[2] > MAX_FUNCTION_LINES] == []


def test_what_a_reviewer_reads_whole_stays_small():
    found = {
        name: dict(STRUCTURE["measured"](PACKAGE / name.replace(".", "/")))["code lines"]
        for name in MAX_PART_LINES
    }
    assert {name: lines for name, lines in found.items() if lines > MAX_PART_LINES[name]} == {}


def test_names_of_classes_are_unique_and_no_module_is_nameless():
    holders = defaultdict(list)
    for name, tree in trees().items():
        assert ast.get_docstring(tree), name
        assert not {"utils", "helpers", "manager", "common", "base", "misc"} & set(name.split("."))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                holders[node.name].append(name)
    assert {name: at for name, at in holders.items() if len(at) > 1} == {}, "of private ones as well"


def test_a_module_with_one_importer_says_why_it_stands_apart():
    silent, named = set(), {f"muniment.cli.{row.module}" for row in TABLE.values()}
    for name in set(SOURCES) - named:  # The table of commands is an importer.
        (one, *others) = users(name) or ("", "")
        is_own = one.rpartition(".")[0] == name.rpartition(".")[0] != "muniment"
        is_explained = any(word in ast.get_docstring(trees()[name]) for word in ("Apart", "Separate"))
        if is_own and not others and not is_explained:
            loaded = [node for node in trees()[one].body if isinstance(node, ast.ImportFrom)]
            silent |= {name} & {each for node in loaded for each in modules_in(node)}
    assert silent == set()


def test_the_store_fills_columns_by_their_names_and_takes_no_row_apart_by_place():
    asks = {"rows", "execute", "fetchone", "fetchall"}
    for name in (name for name in SOURCES if name.startswith("muniment.store.")):
        assert "VALUES (?" not in " ".join(SOURCES[name].read_text().split()), name
        for node in ast.walk(trees()[name]):
            if isinstance(node, ast.Assign | ast.For | ast.comprehension):
                into = [node.target] if hasattr(node, "target") else node.targets
                stars = [
                    each for target in into for each in ast.walk(target) if isinstance(each, ast.Starred)
                ]
                asked = ast.walk(node.iter if hasattr(node, "iter") else node.value)
                called = {getattr(each.func, "attr", "") for each in asked if isinstance(each, ast.Call)}
                assert not (stars and asks & called), (name, ast.unparse(node))


# The driver tells whatever a subject raises as the result of its case; a runner ends the task with it, and a
# writer the future; a recall is empty, and an event tells; so it does of a span that a foreign tracer breaks;
# a tool and a pipe answer their client with an error; a node whose queue broke goes on with a new one.
MAY_CATCH_ALL = of(
    "muniment",
    "sandbox.fence.zygote server.acp server.writer server.runner recall.prefetch recall.recaller "
    "recall.meaning testing.corpus.driver events integrations.mcp.server integrations.mcp.pipe "
    "fleet.node fleet.queue",
)


def swallows(handler):
    """Whether an `except` catches everything, and neither raises nor ends the process."""
    if handler.type is not None and ast.unparse(handler.type) not in {"Exception", "BaseException"}:
        return False
    inner = list(ast.walk(handler))
    leaves = {ast.unparse(node.func) for node in inner if isinstance(node, ast.Call)} & {"os._exit", "_leave"}
    return not leaves and not any(isinstance(node, ast.Raise) for node in inner)


def test_no_broad_except_swallows_an_error():
    assert {name for name, node in nodes(ast.ExceptHandler) if swallows(node)} == MAY_CATCH_ALL


# -- a real worker -------------------------------------------------------------------------------------

FORBIDDEN = {
    *of("muniment", "store agent operations sandbox.sandbox settings api opening recall cli testing events"),
    *of("muniment", "policy.signatures transfer server workspaces"),
    *of("muniment", "sandbox.tools.remote kernel.land kernel.binding sandbox.fence.pool"),
    *words(
        "pathspec sqlite3 openai httpx httpx2 structlog rich typer click starlette subprocess multiprocessing"
    ),
    *words("asyncio ssl http urllib.request ftplib smtplib pickle pdb site pytest"),
}
"""Not `tempfile` and `shutil`: `importlib.resources` brings them, and a worker may not write in any case."""

OURS = {
    *("muniment", *of("muniment", "kernel sandbox content errors names policy files portable")),
    *of("muniment.sandbox", "fence tools"),
    *of("muniment.kernel", "names refusal normal_forms path change decide syscalls walk root"),
    *of("muniment.sandbox.fence", "calls wire layers zygote"),
    *of(
        "muniment.content",
        "admission entry exact_json frontmatter gates markdown patterns secrets typed_secrets secret_clauses "
        "secret_notes",
    ),
    *of("muniment.policy", "frozen grammar"),
    *of("muniment.sandbox.tools", "calls overlay workbench service"),
}


def test_a_worker_holds_no_more_of_us_than_is_listed_nothing_that_writes_decides_or_talks_and_no_roots():
    with source("memory_service:modules") as zygote, zygote.spawn({}, soon()) as worker:
        inventory, _ = worker.receive(max_body=0, patience=soon())
    held = set(inventory["modules"])
    assert not {name for name in held for bad in FORBIDDEN if name == bad or name.startswith(f"{bad}.")}
    assert {name for name in held if name.split(".")[0] == "muniment"} <= OURS
    assert (inventory["environ"], inventory["roots"]) == ({}, [])
