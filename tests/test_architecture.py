"""Tests of the architecture, read from the source: imports, file access, and the modules of a worker."""

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import muniment
from kit.sandbox.probe import make_deadline, make_zygote
from muniment.cli.table import TABLE
from muniment.sandbox.tools.calls import SCHEMAS, TOOLS, VERBS

PACKAGE = Path(muniment.__file__).parent
REPOSITORY = PACKAGE.parent.parent
SOURCES = {
    ".".join(("muniment", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
STRUCTURE = runpy.run_path(str(REPOSITORY / "benchmarks" / "structure.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 60
MAX_PART_LINES = STRUCTURE["PARTS"]


def split_words(text):
    return text.split()


def make_module_names(package, names):
    return {f"{package}.{name}" for name in names.split()}


ORDER = split_words(
    "portable kernel names errors types events cancelling files policy content store recall sandbox agent "
    "settings workspaces operations opening api async_api lab testing transfer server fleet client "
    "integrations cli"
)
CORE = ORDER[: ORDER.index("async_api") + 1]
"""The packages that an embedding program needs; they import nothing that comes after them."""

PACKAGES = split_words(
    "portable kernel types policy content store recall sandbox agent workspaces operations lab testing "
    "transfer server fleet client integrations cli"
)
MAX_TOP_LEVEL_MODULES = 9
"""Limit of the modules outside of packages."""


@cache
def parse_modules():
    """Parse all modules, at the first call only, because every test process imports this file."""
    return {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}


@cache
def group_nodes():
    """Return (module, node) of every node of the package, by the node's class."""
    found = defaultdict(list)
    for name, tree in parse_modules().items():
        for node in ast.walk(tree):
            found[type(node)].append((name, node))
    return found


def find_nodes(*kinds):
    """Return (module, node) of every node of these classes in the package."""
    return [each for kind in kinds for each in group_nodes()[kind]]


def find_modules(node):
    """Return the modules of the package that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] == "muniment"]
    assert node.level == 0, "a relative import"
    wholes = [f"{node.module}.{alias.name}" for alias in node.names]
    is_own_module = node.module.split(".")[0] == "muniment"
    return [whole if whole in SOURCES else node.module for whole in wholes] if is_own_module else []


@cache
def list_imports():
    """Return the imported modules of the package by module, including imports in functions and
    `TYPE_CHECKING`.
    """
    found = defaultdict(set)
    for importer, node in find_nodes(ast.Import, ast.ImportFrom):
        found[importer].update(find_modules(node))
    return found


@cache
def list_calls():
    """Return the dotted names of all calls by module."""
    found = defaultdict(set)
    for caller, node in find_nodes(ast.Call):
        found[caller].add(ast.unparse(node.func))
    return found


def find_importers(module):
    return {name for name, others in list_imports().items() if module in others}


def get_package(name):
    second = name.split(".")[1] if "." in name else ""
    return "cli" if second == "__main__" else second


def find_reviewed_part(name):
    """Return the reviewed part to which a module belongs, or an empty text."""
    return next((each for each in REVIEWED_PARTS if f"{name}.".startswith(f"muniment.{each}.")), "")


def test_packages_import_only_lower_layers():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (each["layers"] for each in settings["contracts"] if each["type"] == "layers")
    assert [layer.removeprefix("muniment.") for layer in reversed(layers)] == ORDER
    assert {get_package(name) for name in SOURCES if get_package(name)} == set(ORDER), (
        "ORDER must list every package"
    )
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(PACKAGES)
    assert len(set(ORDER) - set(PACKAGES)) <= MAX_TOP_LEVEL_MODULES
    assert {get_package(name) for name in list_imports()["muniment"]} <= {*CORE, "client"}, "lazy names"
    linter = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(linter, capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=50)
    assert done.returncode == 0, done.stdout


def test_module_imports_have_no_cycle():
    circles = STRUCTURE["circles"]
    assert circles({"a": "b", "b": "cd", "c": "a", "d": "e", "e": ""}) == [["a", "b", "c"]]
    assert circles(STRUCTURE["imports"](SOURCES)) == []


def test_core_imports_only_core():
    for name, others in list_imports().items():
        if get_package(name) in CORE:
            assert set(map(get_package, others)) <= {*CORE, ""}, name


REVIEWED_PARTS = {
    "kernel": {"kernel"},
    "sandbox.fence": {"kernel", "names", "errors", "sandbox.fence"},
    "portable": {"portable"},
}
"""The packages that each reviewed part may import, in addition to the standard library."""

PORTABLE_IMPORTERS = {"muniment.kernel", "muniment.sandbox.fence"}
"""Modules that import `portable` if `sys.platform != "linux"`: the substitute system calls and names."""


def test_kernel_and_fence_import_only_the_standard_library():
    for name, parts in REVIEWED_PARTS.items():
        imports_of_part = {
            user: {find_reviewed_part(each) or get_package(each) for each in list_imports()[user]}
            - ({"portable"} if user in PORTABLE_IMPORTERS else set())
            for user in SOURCES
            if find_reviewed_part(user) == name
        }
        assert {user: more for user, others in imports_of_part.items() if (more := others - parts)} == {}
    for name, node in find_nodes(ast.Import, ast.ImportFrom):
        if find_reviewed_part(name):
            whole = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            foreign = {each.partition(".")[0] for each in whole} - sys.stdlib_module_names
            assert foreign <= {"muniment"}, name


def test_kernel_and_fence_use_neither_any_nor_cast():
    written = [
        *((name, node.id) for name, node in find_nodes(ast.Name)),
        *((name, node.attr) for name, node in find_nodes(ast.Attribute)),
        *((name, node.name) for name, node in find_nodes(ast.alias)),
    ]
    loose = {
        (name, word)
        for name, word in written
        if word in {"Any", "cast"} and find_reviewed_part(name) in MAX_PART_LINES
    }
    assert loose == set()


def test_only_named_modules_write_memory_or_start_workers():
    check = "muniment.lab.selfcheck"  # uses a temporary directory
    landing_users = {
        user
        for user in find_importers("muniment.kernel.apply") - {check}
        if get_package(user) not in {"kernel", "store"}
    }
    assert landing_users == make_module_names(
        "muniment", "fleet.copy_files transfer.backup"
    )  # They copy files that the store wrote.
    assert find_importers("muniment.kernel._directory") == make_module_names("muniment.kernel", "apply write")
    # A trial uses only its import directories; its workers are its own. The daemon closes an idle zygote.
    starters = make_module_names(
        "muniment", "api sandbox.sandbox cli.entry cli.daemon server.core sandbox.tools.remote"
    )
    assert find_importers("muniment.sandbox.fence.pool") - {"muniment.lab.attempts.trial"} == starters
    for name, others in list_imports().items():
        parts = set(map(get_package, others))
        assert "cli" not in parts or get_package(name) == "cli"
        assert "testing" not in parts or get_package(name) == "testing" or name == "muniment.cli.conformance"


def test_lock_users_check_that_writing_is_supported():
    lock_users = {
        name
        for name in SOURCES
        if get_package(name) != "kernel"
        and list_calls()[name] & {"lock_roots", "kernel.transaction"}
        and "selfcheck" not in name
    }
    unchecked = {name for name in lock_users if not list_calls()[name] & {"require_writing", "may_write"}}
    # A rejection is written only to the ledger; a backup blocks writers while it reads.
    assert unchecked == make_module_names("muniment", "store.review transfer.backup")


LOOPS = make_module_names(
    "muniment",
    "cli.daemon cli.mcp integrations.mcp.memory integrations.mcp.server integrations.mcp.http "
    "integrations.mcp.stdio integrations.mcp.pipe integrations.mcp.wire "
    "cancelling async_api integrations.coding_tools.hook_server "
    "fleet.node fleet.home fleet.queue",
)
"""Modules with their own event loop; the MCP SDK requires one."""


def test_only_named_modules_use_the_network():
    found = defaultdict(set)
    for name, node in find_nodes(ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
        for module in names:
            if module != "urllib.parse" and (
                get_package(name) not in {"server", "client"} or module == "openai"
            ):
                found[module.partition(".")[0]].add(name)
    adapter, server = "muniment.agent.openai", "muniment.testing.chat_server"
    network = ("openai", "httpx", "httpx2", "requests", "asyncio", "ssl", "socket", "http", "urllib")
    found["socket"] = {name for name in found["socket"] if find_reviewed_part(name) != "sandbox.fence"}
    allowed = {
        "openai": {adapter},
        "httpx2": {adapter, "muniment.integrations.mcp.pipe"},
        "asyncio": {adapter, *LOOPS},
    }
    # A worker's service receives one end of a socket pair; the files of a case may include a socket.
    found["socket"] = {name for name in found["socket"] if "attempts" not in name}
    allowed["socket"] = {
        *(adapter, server, "muniment.cli.hook_client", "muniment.sandbox.tools.service"),
        "muniment.testing.corpus.stage",
    }
    allowed |= {"ssl": {adapter, server}, "http": {server}, "requests": {"muniment.cli.traces"}}
    assert {module: found[module] for module in network if found[module]} == allowed


OPENERS = {"open", "io.open", "open_descriptor", "write_atomically"} | make_module_names(
    "os", "open fdopen mkdir unlink remove rename replace rmdir makedirs listdir scandir walk link symlink"
)
PATH_METHODS = split_words(
    "open read_text read_bytes write_text write_bytes touch unlink mkdir rmdir rename iterdir glob rglob walk"
)


MAY_OPEN = {
    "files": {
        *("os.open", "os.fdopen", "unfinished.unlink"),  # for the callers of the functions below
        *("write_atomically", "os.link", "unfinished.rename"),  # new files named by the user
        "locate_package(package).joinpath(name).read_text",  # own tables
    },
    # Permissions of trusted files; own directories.
    "policy.ownership": {
        *("Path('/proc/sys/kernel/overflowuid').read_text", "directory.mkdir", "os.walk"),
        "trusted_path.iterdir",
    },
    "policy.files": {"open_descriptor"},  # policy files named by the user
    # Input files of ssh-keygen.
    "policy.signatures": {"shutil.which", "tempfile.TemporaryDirectory", "path.write_bytes"},
    # Locks and signatures that the user requested.
    "cli.policy_files": {"write_atomically", "folder.glob"},
    # The embedding model named by the user.
    "recall.semantic_search": {"(self._directory / name).open", "(directory / _FILES[0]).read_text"},
    "settings": {"path.open"},  # config.toml, and the key file named by the user
    "workspaces.checkouts": {"open_descriptor"},  # git's data about a repository, and the mark in it
    "workspaces.projects": {
        "os.listdir",
        "path.open",
    },  # projects with a memory in the home, and their list
    "cli.hook_client": {"os.open"},  # the address of the daemon
    "cli.entry": {"os.open", "os.fdopen"},  # /dev/null, in place of a closed standard stream
    "cli.terminal": {"os.open", "path.open"},  # /dev/null, and an existing terminal
    "integrations.mcp.wire": {"os.open"},  # /dev/null
    # A private copy of one entry, for its owner's editor.
    "cli.display": {"shutil.get_terminal_size"},  # opens nothing
    "cli.inspect": {"tempfile.mkdtemp", "copy.write_bytes", "copy.read_bytes", "shutil.rmtree"},
    "cli.daemon": {"webbrowser.open"},  # the desktop browser
    # Static files of the package for browsers.
    "server.page.pages": {"files('muniment.server.page').joinpath('static').iterdir", "each.read_bytes"},
    # Settings of other programs after a confirmation, and their backups.
    "integrations.coding_tools.files": {
        *(
            "open_descriptor",
            "write_atomically",
            "directory.glob",
            "path.unlink",
            "each.mkdir",
            "Path(each.path).rmdir",
        ),
        *("file.path.unlink", "self.original_path.unlink"),
    },
    "integrations.coding_tools.own_memory": {"open_descriptor", "os.scandir"},  # notes of coding tools
    "cli.service": {"shutil.which", "open_descriptor"},  # systemctl, and the lock of a daemon
    "fleet.address": {"path.open"},  # a file with the database URL, named by the operator
    # Own working copies: their state, and removal of invalid ones.
    "fleet.working_copies": {
        *("(directory / MARK_NAME).read_text", "(self.directory / MARK_NAME).unlink", "_BOOT.read_text"),
        *("new.write_text", "shutil.rmtree"),
    },
    "fleet.node": {"self._cache.iterdir", "directory.rglob", "shutil.rmtree"},
    "fleet.schema": {
        "Path(migrations_path).glob",
        "(Path(migrations_path) / name).read_text",
    },
    # The whole home, which the user wants to remove.
    "cli.uninstall": {
        *(
            "directory.iterdir",
            "directory.rmdir",
            "each.rglob",
            "home.iterdir",
            "projects.iterdir",
        ),
        *("path.unlink", "shutil.rmtree"),
    },
    # The library, and a new file named by the user.
    "cli.remember": {"api.open", "os.open", "os.fdopen", "path.unlink"},
    # Import sources named by the user, without following links; archives are read in place.
    "transfer.sources": {
        "open_descriptor",
        "os.open",
        "os.fdopen",
        "os.listdir",
        "archive.open",
        "tarfile.open",
    },
    "operations.exporting": {"tarfile.open"},  # over a file that is open
    # New files named by the user.
    "cli.moving": {
        *("os.open", "os.fdopen"),
        "path.absolute().parent.glob",
    },
    # The whole home, read under the locks of its roots, or restored next to a missing one.
    "transfer.backup": {
        *(
            "open_descriptor",
            "os.open",
            "os.fdopen",
            "os.listdir",
            "os.walk",
            "tarfile.open",
            "shutil.rmtree",
            "home.iterdir",
        ),
        *(
            "(home / 'projects').glob",
            "directory.iterdir",
            "restored.iterdir",
            "created.unlink",
            "path.unlink",
        ),
        *("staging.rename", "path.read_text", "path.write_text", "(directory / LEDGER_NAME).open"),
        "shutil.disk_usage",
    },
    # The configured state directory.
    "store.database": {
        *("os.open", "path.with_name(path.name + companion).unlink"),
        *("locate_package(package).joinpath('migrations').iterdir", "each.read_text"),  # own data
    },
    # The files that an operator requested, and their list.
    "store.tasks": {"os.open", "os.fdopen", "file.read_text", "path.read_text", "path.unlink"},
    "store.state": {
        *("mark.unlink", "os.open", "path.open", "(self.directory / name).unlink", "write_atomically"),
        *("self.directory.iterdir", "unfinished.rename"),
        *("unfinished.unlink", "path.parent.glob", "left_over.unlink"),
        "(target / each.name).open",  # a copy of a read-only state directory
    },
    "server.guard": {"_OVERFLOW.read_text"},  # a file of the kernel
    "server.tokens": {"open_descriptor"},
    "server.service": {
        *("open_descriptor", "path.unlink", "(directory / ADDRESS_NAME).unlink"),
        *("(directory / ADDRESS_NAME).read_text", "self.core.open"),  # The last one opens no file.
    },
    "client.discovery": {"open_descriptor"},  # the daemon's state directory
    "client.transport": {"self._connections.open"},  # not a file
    "integrations.mcp.pipe": {"self._connections.open"},  # not a file
}
ATTACK_KIT = (
    *make_module_names("muniment.testing", "conformance. corpus. race snapshots"),
    *make_module_names("muniment.lab", "attempts. selfcheck"),
)
"""Builds and reads temporary trees by path, because a second opinion shares no code with `kernel`; used only
by two
commands.
"""

ROOT_METHODS = {"read_bytes", "walk"}
"""Method names that the handles of `kernel` share with `pathlib.Path`; they read under a root."""


def is_file_access(function):
    """Return whether a call, given its dotted name, opens or changes files by path."""
    before, _, method = function.rpartition(".")
    if function in OPENERS or function.startswith(("shutil.", "tempfile.")):
        return True
    is_of_root = before.endswith("root") and method in ROOT_METHODS
    return bool(before) and method in PATH_METHODS and not is_of_root


def test_only_named_modules_open_files():
    others = [name for name in SOURCES if not find_reviewed_part(name) and not name.startswith(ATTACK_KIT)]
    opened = {
        name.removeprefix("muniment."): set(filter(is_file_access, list_calls()[name])) for name in others
    }
    assert {name: functions for name, functions in opened.items() if functions} == MAY_OPEN


MAY_DECODE = {
    "muniment.integrations.mcp.server": {"unquote"},  # once, of an address; its path then counts as a model's
    "muniment.operations.escapes": {"unquote"},  # denied paths for error messages; never opened
    "muniment.operations.job_context": {"unquote"},  # once, of an address; its path is then judged
    "muniment.settings": {"expanduser"},  # configured directories
    "muniment.client.discovery": {"expanduser"},  # the same directory
    "muniment.cli.hook_client": {"expanduser"},  # the same directory
    "muniment.server.guard": {"unquote"},  # compared with the paths of served workspaces
    "muniment.transfer.formats": {"unquote"},  # index links, compared with names; never opened
    "muniment.content.markdown": {"unquote"},  # counted links; never opened
    "muniment.store.index": {"unquote"},  # own link targets; compared, never opened
    "muniment.testing.corpus.index_oracle": {"unquote"},  # like the index writer
}
DECODERS = {"unquote", "unquote_plus", "expanduser", "expandvars", "eval", "exec", "loads_pickle", "system"}
DOORS = {"unicodedata.normalize", "unicodedata.is_normalized"}


def test_only_named_modules_decode_or_normalize():
    used = {name: {each.rpartition(".")[2] for each in list_calls()[name]} & DECODERS for name in SOURCES}
    assert {name: functions for name, functions in used.items() if functions} == MAY_DECODE
    names = {alias.name for _, node in find_nodes(ast.Import) for alias in node.names}
    assert not {"pickle", "marshal", "shelve", "yaml"} & names
    found = {name for name, node in find_nodes(ast.Attribute) if ast.unparse(node) in DOORS}
    for name, node in find_nodes(ast.ImportFrom):
        if DOORS & {f"{node.module}.{alias.name}" for alias in node.names}:
            found.add(name)
    assert found == {"muniment.kernel.normal_forms"}


def test_every_tool_declares_its_verbs_and_its_path():
    assert set(TOOLS) == set(VERBS)
    assert all(VERBS[tool] and "path" in SCHEMAS[tool] for tool in TOOLS)


def test_files_and_functions_stay_short():
    lines = {
        name: STRUCTURE["code_lines"](SOURCES[name].read_text(), tree)
        for name, tree in parse_modules().items()
    }
    assert {name for name in SOURCES if len(lines[name]) > MAX_FILE_LINES} == set()
    functions = find_nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = [(name, node.name, node.end_lineno - node.lineno + 1) for name, node in functions]
    assert [each for each in lengths if each[2] > MAX_FUNCTION_LINES] == []


def test_reviewed_parts_stay_small():
    found = {
        name: dict(STRUCTURE["measured"](PACKAGE / name.replace(".", "/")))["code lines"]
        for name in MAX_PART_LINES
    }
    assert {name: lines for name, lines in found.items() if lines > MAX_PART_LINES[name]} == {}


def test_class_names_are_unique_and_modules_documented():
    holders = defaultdict(list)
    for name, tree in parse_modules().items():
        assert ast.get_docstring(tree), name
        assert not {"utils", "helpers", "manager", "common", "base", "misc"} & set(name.split("."))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                holders[node.name].append(name)
    assert {name: at for name, at in holders.items() if len(at) > 1} == {}, "also for private classes"


def test_module_with_one_importer_states_why_it_is_separate():
    unchecked, named = set(), {f"muniment.cli.{row.module}" for row in TABLE.values()}
    for name in set(SOURCES) - named:  # The command table counts as an importer.
        (one, *others) = find_importers(name) or ("", "")
        is_own = one.rpartition(".")[0] == name.rpartition(".")[0] != "muniment"
        is_explained = re.search(r"\b[Ss]eparate\s+from\b", ast.get_docstring(parse_modules()[name]))
        if is_own and not others and not is_explained:
            loaded = [node for node in parse_modules()[one].body if isinstance(node, ast.ImportFrom)]
            unchecked |= {name} & {each for node in loaded for each in find_modules(node)}
    assert unchecked == set()


def test_store_uses_named_columns():
    read_methods = {"rows", "execute", "fetchone", "fetchall"}
    for name in (name for name in SOURCES if name.startswith("muniment.store.")):
        assert "VALUES (?" not in " ".join(SOURCES[name].read_text().split()), name
        for node in ast.walk(parse_modules()[name]):
            if isinstance(node, ast.Assign | ast.For | ast.comprehension):
                targets = [node.target] if hasattr(node, "target") else node.targets
                starred_targets = [
                    each for target in targets for each in ast.walk(target) if isinstance(each, ast.Starred)
                ]
                value_nodes = ast.walk(node.iter if hasattr(node, "iter") else node.value)
                method_names = {
                    getattr(each.func, "attr", "") for each in value_nodes if isinstance(each, ast.Call)
                }
                assert not (starred_targets and read_methods & method_names), (name, ast.unparse(node))


# The driver returns any error of a subject as the result of its case; a runner ends the task, a writer the
# future; a recall returns nothing, and logs an event; the same applies to spans of a broken foreign tracer; a
# tool and a pipe send an error to their client; a node replaces a broken queue.
MAY_CATCH_ALL = make_module_names(
    "muniment",
    "sandbox.fence.zygote server.acp server.writer server.runner recall.prefetch recall.recaller "
    "recall.semantic_search testing.corpus.driver events integrations.mcp.server integrations.mcp.pipe "
    "fleet.node fleet.queue",
)


def swallows_error(handler):
    """Return whether an `except` catches everything, and neither raises nor ends the process."""
    if handler.type is not None and ast.unparse(handler.type) not in {"Exception", "BaseException"}:
        return False
    inner = list(ast.walk(handler))
    leaves = {ast.unparse(node.func) for node in inner if isinstance(node, ast.Call)} & {"os._exit", "_leave"}
    return not leaves and not any(isinstance(node, ast.Raise) for node in inner)


def test_no_broad_except_swallows_an_error():
    assert {name for name, node in find_nodes(ast.ExceptHandler) if swallows_error(node)} == MAY_CATCH_ALL


# -- a real worker -------------------------------------------------------------------------------------

FORBIDDEN = {
    *make_module_names(
        "muniment", "store agent operations sandbox.sandbox settings api opening recall cli testing events"
    ),
    *make_module_names("muniment", "policy.signatures transfer server workspaces"),
    *make_module_names("muniment", "sandbox.tools.remote kernel.apply kernel.binding sandbox.fence.pool"),
    *split_words(
        "pathspec sqlite3 openai httpx httpx2 structlog rich typer click starlette subprocess multiprocessing"
    ),
    *split_words(
        "pydantic pydantic_core asyncio ssl http urllib.request ftplib smtplib pickle pdb site pytest"
    ),
}
"""Without `tempfile` and `shutil`: `importlib.resources` imports them, and a worker may not write in any
case.
"""

ALLOWED_MODULES = {
    *(
        "muniment",
        *make_module_names("muniment", "kernel sandbox content errors names policy files portable"),
    ),
    *make_module_names("muniment.sandbox", "fence tools"),
    *make_module_names("muniment.kernel", "names refusal normal_forms path change decide syscalls walk root"),
    *make_module_names("muniment.sandbox.fence", "calls wire layers zygote"),
    *make_module_names(
        "muniment.content",
        "admission entry exact_json expressions frontmatter gates markdown patterns secrets typed_secrets "
        "secret_clauses secret_notes",
    ),
    "muniment.policy.grammar",
    *make_module_names("muniment.sandbox.tools", "calls overlay schemas workbench service"),
}


def test_worker_loads_only_listed_modules():
    with make_zygote("memory_service:modules") as zygote, zygote.spawn_worker({}, make_deadline()) as worker:
        inventory, _ = worker.receive(max_body=0, deadline=make_deadline())
    loaded_modules = set(inventory["modules"])
    assert not {
        name for name in loaded_modules for bad in FORBIDDEN if name == bad or name.startswith(f"{bad}.")
    }
    assert {name for name in loaded_modules if name.split(".")[0] == "muniment"} <= ALLOWED_MODULES
    assert (inventory["environ"], inventory["roots"]) == ({}, [])
