"""macOS and Windows, faked: memory is readable without the fence; writing needs a policy that permits it.

`kit.fake_platform` makes a process look like one on such a system: it removes the modules and names that the
system lacks, rejects the calls that fail there, and blocks `muniment.sandbox.fence`. Not run on a real macOS
or Windows.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

import muniment
from kit.locations import REPOSITORY
from kit.memories import make_roots, read_tree, write_file
from kit.server.raw import start_local_daemon
from muniment.client import transport

SYSTEMS = ["darwin", "win32"]
NAMES = {"darwin": "macOS", "win32": "Windows"}
LINE = (
    "on {} Muniment cannot confine an agent, so it only reads memory here and does not write it: "
    'send facts to a daemon on Linux, or use a policy with require = "none" (docs/platforms.md)'
)

SERVER = """
import importlib, json, os, sys, traceback
sys.path[:0] = {paths!r}
from kit import fake_platform
for name in fake_platform.PRELOADED_MODULES:
    importlib.import_module(name)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for fd, name in enumerate(("/dev/null", *job["streams"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), fd)
    os.chdir(job["home"])
    os.environ.clear()
    os.environ.update(HOME=job["home"], PATH=os.defpath, TMPDIR=job["home"])
    try:
        exec(job["code"], dict(__name__="__main__"))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)
"""
BEGIN = """
import json, sys
from kit import fake_platform
fake_platform.simulate_platform({system!r}, blocks_fence={blocks!r})
"""
PROGRAM = """
import contextlib, io
from muniment.cli.entry import main

def run(*line, stdin=None):
    sys.argv, errors, bytes_out = ["muniment", *line], io.StringIO(), io.BytesIO()
    out = io.TextIOWrapper(bytes_out, write_through=True)
    sys.stdin = io.TextIOWrapper(io.BytesIO((stdin or "").encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    return [code or 0, bytes_out.getvalue().decode(), errors.getvalue()]
"""


@pytest.fixture(params=SYSTEMS)
def system(request):
    return request.param


@pytest.fixture(scope="module")
def server():
    """A process that has loaded the libraries, and forks for each program."""
    paths = [str(Path(muniment.__file__).parents[1]), str(REPOSITORY / "tests")]
    line = [sys.executable, "-c", SERVER.format(paths=paths)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def run_on_system(system, tmp_path, server):
    """Return a function that runs a program as on `system` and returns its `result`."""

    def run(program, *, blocks_fence=True, **names):
        begin = BEGIN.format(system=system, blocks=blocks_fence)
        assignments = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        with tempfile.TemporaryDirectory() as directory:
            streams = [f"{directory}/out", f"{directory}/err"]
            code = f"{begin}{assignments}{program}\nprint(json.dumps(result))"
            job = {"code": code, "home": str(tmp_path), "streams": streams}
            server.stdin.write(f"{json.dumps(job)}\n")
            server.stdin.flush()
            assert server.stdout.readline() == "0\n", Path(streams[1]).read_text()
            return json.loads(Path(streams[0]).read_text().splitlines()[-1])

    return run


@pytest.fixture
def roots(tmp_path):
    """A memory in the folder of its user, as written on Linux."""
    found = make_roots(tmp_path)
    write_file(found["user"], "editor.md", "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n")
    write_file(found["project"], "staging.md", "Staging runs on Postgres 16\n")
    return found


def root_options(roots):
    return [f"--root={scope}={path}" for scope, path in roots.items()]


# -- reading -------------------------------------------------------------------------------------------


def test_reading_commands_work_without_loading_fence(run_on_system, roots):
    program = PROGRAM + (
        'results = [run("recall", "dark mode", *roots), run("ls", *roots)]\n'
        'results += [run("show", "user/editor.md", *roots)]\n'
        'past = [run("history", *roots), run("why", "user/editor.md", *roots)]\n'
        'event = {"hook_event_name": "UserPromptSubmit", "prompt": "which Postgres?", "session_id": "s"}\n'
        "event = json.dumps(event)\n"
        'results += [run("recall", "--hook", *roots, stdin=event) for _ in range(2)]\n'
        'results += [run("index", "verify", *roots), run("--version"), run("--help")]\n'
        'fence = "muniment.sandbox.fence"\n'
        'loaded = [name for name in sys.modules if name.startswith(fence) or name == "fcntl"]\n'
        "result = results, past, loaded"
    )
    before = read_tree(*roots.values())
    (recalled, listed, entry, hook, repeated, _, version, helped), past, loaded = run_on_system(
        program, roots=root_options(roots)
    )
    assert (recalled[0], "Prefers dark mode in the editor" in recalled[1], recalled[2]) == (0, True, "")
    fields = [line.split("\t") for line in listed[1].splitlines()]
    assert ["Dark mode", "user", "owner"] in [[text, place, trust] for text, _, place, trust, _ in fields]
    assert entry[:2] == [0, "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n"]
    assert "Postgres 16" in json.loads(hook[1])["hookSpecificOutput"]["additionalContext"]
    assert json.loads(repeated[1]) == {}, "the session stores its injected entries"
    assert (version[0], helped[0], "remember" in helped[1]) == (0, 0, True)
    assert [code for code, _, _ in past] == [0, 0]
    assert set(loaded) <= {"fcntl"}
    assert read_tree(*roots.values()) == before


@pytest.mark.slow
def test_the_library_opens_and_recalls(run_on_system, roots):
    program = """
import muniment
with muniment.open(roots=roots) as memory:
    first = memory.recall("dark mode")
    result = [each.path for each in first.entries], [str(first.error), len(memory.history())]
"""
    paths = {scope: str(path) for scope, path in roots.items()}
    assert run_on_system(program, roots=paths) == [["user/editor.md"], ["None", 0]]


@pytest.mark.sweep(1)
def test_client_sends_facts_to_linux_daemon_and_recalls(run_on_system, tmp_path):
    program = """
from muniment.client import Client
with Client(url=url, token=token, workspace=workspace) as client:
    done = client.remember("The user prefers tabs over spaces").wait(timeout=60)
    found = client.recall("tabs or spaces")
    result = [done.files_touched, found.entries[0].path]
"""
    with start_local_daemon(tmp_path) as daemon:
        where = {"url": daemon.url, "token": daemon.token, "workspace": str(daemon.work)}
        (touched, path) = run_on_system(program, **where)
    assert touched[0].startswith("user/")
    assert path in touched


# -- paths that lead outside a root


@pytest.mark.sweep(1)
def test_links_and_odd_names_do_not_leave_root(run_on_system, roots, tmp_path):
    (tmp_path / "secret.md").write_text("the zebra is a secret\n")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "secret.md").write_text("the zebra is a secret\n")
    (roots["user"] / "link.md").symlink_to(tmp_path / "secret.md")
    (roots["user"] / "folder").symlink_to(tmp_path / "beside")
    os.link(tmp_path / "secret.md", roots["user"] / "hard.md")
    os.mkfifo(roots["user"] / "pipe.md")
    names = ["link.md", "folder/secret.md", "hard.md", "pipe.md", "../secret.md", "..\\secret.md", "a:b.md"]
    program = PROGRAM + (
        'results = [run("show", f"user/{name}", "--json", *roots) for name in names]\n'
        'result = results, run("recall", "zebra secret", *roots), run("ls", *roots)'
    )
    entries, recalled, listed = run_on_system(program, roots=root_options(roots), names=names)
    codes = [json.loads(out)["error"]["code"] for _, out, _ in entries]
    assert codes[:5] == ["path_escape"] * 5
    assert set(codes[5:]) <= {"path_escape", "bad_name"}
    assert "zebra" not in recalled[1] + listed[1]
    assert listed[2].count("note: skipped: ") >= 3


@pytest.mark.slow
def test_directory_swapped_for_link_is_not_walked(run_on_system, roots, tmp_path):
    """The walk has opened `sub`; then a link replaces it under the same name."""
    (roots["user"] / "sub").mkdir()
    (roots["user"] / "sub" / "a.md").write_text("inside\n")
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "a.md").write_text("outside\n")
    program = """
import os as plain
from muniment.kernel import binding, root
from muniment.kernel.path import CanonicalPath
from muniment.kernel.names import Scope
os, seen = root.os, []
bound = binding.bind(Scope("user"), directory)
path = CanonicalPath(Scope("user"), "sub/a.md")
seen.append(bound.root.read_bytes(path).decode())
sub = bound.root.resolver.open(bound.root.fd, b"sub", root.LIST)
plain.rename(directory + "/sub", directory + "/moved")
plain.symlink(outside, directory + "/sub")
try:
    seen.append(root.open_name(bound.root, sub, "a.md", "a.md").read_whole(100).decode())
except Exception as error:
    seen.append(error.code)
try:
    bound.root.read_bytes(path)
except Exception as error:
    seen.append(error.code)
os.close(sub)
result = seen
"""
    found = run_on_system(program, directory=str(roots["user"]), outside=str(tmp_path / "another"))
    assert found[0] == "inside\n"
    assert found[1] in {"inside\n", "not_found"}, "the directory that was opened, or nothing"
    assert found[2] == "path_escape"


# -- permissions of trusted files


@pytest.mark.slow
def test_home_writable_by_others_is_rejected(run_on_system, system, tmp_path, tmp_path_factory):
    home = tmp_path / "home" if system == "darwin" else tmp_path_factory.mktemp("shared")
    home.mkdir(exist_ok=True)
    home.chmod(0o777)
    program = "import os\n" + PROGRAM + 'os.environ["MUNIMENT_HOME"] = home\nresult = run("ls")'
    code, _, error = run_on_system(program, home=str(home))
    assert (code, error.count("\n")) == (1, 1)
    expected = "is writable by others" if system == "darwin" else "is outside your folder"
    assert expected in error


@pytest.mark.slow
def test_client_rejects_token_that_others_can_write(run_on_system, system, tmp_path, tmp_path_factory):
    """Checked by mode, or on Windows by folder; a link from this folder to another one does not help."""
    program = """
import os
from muniment.client import Client
from muniment.errors import MunimentError
def request(home):
    try:
        with Client(home=home, timeout=1) as client:
            client.capabilities()
    except MunimentError as error:
        return type(error).__name__, str(error)
result = [request(home) for home in homes]
"""
    homes = []
    for home in (tmp_path / "home", tmp_path_factory.mktemp("shared")):
        (home / "state").mkdir(parents=True)
        (home / "state" / "daemon.json").write_text('{"url": "http://127.0.0.1:9"}')
        (home / "state" / "token").write_text("x" * 43)
        for file in (home / "state").iterdir():
            file.chmod(0o600 if system == "win32" else 0o640)
        homes.append(home)
    (tmp_path / "link").symlink_to(homes[1])
    own, others, linked = run_on_system(program, homes=[*map(str, homes), str(tmp_path / "link")])
    refused = "is not a private file of this user"
    assert (refused in own[1]) == (system == "darwin")
    assert (refused in others[1], refused in linked[1]) == (True, True)


@pytest.mark.slow
def test_macos_rejects_folder_writable_by_own_group(system, run_on_system, tmp_path):
    if system != "darwin" or os.geteuid():
        pytest.skip("needs macOS and root")
    shared = tmp_path / "shared"
    (shared / "home").mkdir(parents=True, mode=0o700)
    os.chown(shared, -1, 20)
    shared.chmod(0o775)
    program = (
        "import os\nos.setegid(20)\n" + PROGRAM + 'os.environ["MUNIMENT_HOME"] = home\nresult = run("ls")'
    )
    code, _, error = run_on_system(program, home=str(shared / "home"))
    assert (code, "is writable by others" in error) == (1, True)


def test_macos_client_rejects_socket_of_another_user(monkeypatch):
    monkeypatch.setattr(transport, "IS_LINUX", False)
    for version, user in ((0, os.geteuid() + 1), (1, os.geteuid())):
        listener = Mock(getsockopt=Mock(return_value=struct.pack("2Ih", version, user, 1) + bytes(66)))
        with pytest.raises(transport.UnverifiedServer):
            transport._verify_peer_user(listener)
    own_listener = Mock(getsockopt=Mock(return_value=struct.pack("2Ih", 0, os.geteuid(), 1) + bytes(66)))
    transport._verify_peer_user(own_listener)
    own_listener.getsockopt.assert_called_once_with(0, 1, 76)


@pytest.mark.slow
def test_windows_rejects_root_outside_user_folder(run_on_system, system, tmp_path_factory):
    shared_root = tmp_path_factory.mktemp("shared")
    shared_root.chmod(0o700)
    code, _, error = run_on_system(
        PROGRAM + 'result = run("ls", f"--root=user={root}")', root=str(shared_root)
    )
    assert code == (0 if system == "darwin" else 1)
    assert ("it is outside your user folder" in error) == (system == "win32")


# -- writing -------------------------------------------------------------------------------------------

WRITERS = [
    "remember x",
    "tool",
    "forget user/editor.md --yes",
    "dream --yes",
    "index rebuild",
    "erase user/editor.md --yes",
]


@pytest.mark.sweep(1)
def test_writing_commands_fail_with_one_line_and_write_nothing(run_on_system, system, roots):
    program = PROGRAM + 'result = [run(*line.split(), *roots, stdin="{}") for line in lines]'
    write_file(roots["user"], "again.md", "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n")
    before = read_tree(*roots.values())
    for line, (code, _, error) in zip(
        WRITERS, run_on_system(program, roots=root_options(roots), lines=WRITERS), strict=True
    ):
        assert code == 1, (line, error)
        assert error.rstrip().endswith(f"{LINE.format(NAMES[system])} [platform_unsupported]"), (line, error)
        assert error.count("\n") == 1
    assert read_tree(*roots.values()) == before


@pytest.mark.slow
def test_commands_that_need_fence_fail_with_one_line(run_on_system, system):
    program = PROGRAM + 'result = [run(line) for line in ("serve", "acp", "doctor", "conformance")]'
    for code, _, error in run_on_system(program, blocks_fence=False):
        assert (code, error.count("\n"), "Traceback" in error) == (1, 1, False), error
        assert LINE.format(NAMES[system]) in error


@pytest.mark.sweep(1)
def test_policy_without_fence_writes_judges_and_undoes(run_on_system, tmp_path):
    strict = (REPOSITORY / "policies" / "strict.toml").read_text()
    unfenced = strict.replace('name = "strict"', 'name = "own"').replace(
        'require = "partial"', 'require = "none"'
    )
    (tmp_path / "own.toml").write_text(unfenced)
    program = """
import muniment
with muniment.open(workspace=".", policy=policy) as memory:
    done = memory.remember("The user prefers tabs over spaces")
    known = memory.remember("The user prefers tabs over spaces")
    path = done.files_touched[0]
    before = [step.path for step in memory.history()]
    again = memory.remember("The user prefers dark mode in all editors")
    gone = memory.forget(again.files_touched[0])
    memory.undo(gone.task_id)
    index = [str(each) for each in memory.recall("dark mode").entries]
    with muniment.Sandbox(policy, {"user": str(memory.context.roots["user"].trusted_path)}) as box:
        refused = box.call("write_file", {"path": "user/../out.md", "content": "x"})
        result = [done.enforcement, path, known.status, before, len(index), box.enforcement, refused.code]
"""
    enforced, path, known, before, found, boxed, refused = run_on_system(
        program, policy=str(tmp_path / "own.toml")
    )
    assert (enforced, boxed, refused) == ("none", "none", "path_escape")
    assert (path in before, found, known) == (True, 1, "completed")
    assert not list(tmp_path.rglob("out.md"))


@pytest.mark.slow
def test_concurrent_writers_wait_for_lock(run_on_system, roots):
    program = """
from muniment.kernel import binding, apply
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Scope
import time
first, second = (binding.bind(Scope("user"), directory) for _ in range(2))
result = []
with apply.lock_roots([first], Deadline(time.monotonic() + 5)):
    try:
        with apply.lock_roots([second], Deadline(time.monotonic() + 0.1)):
            result.append("both")
    except Exception as error:
        result.append(error.code)
with apply.lock_roots([second], Deadline(time.monotonic() + 5)):
    result.append("then")
"""
    assert run_on_system(program, directory=str(roots["user"])) == ["deadline", "then"]


# -- tests of reading and of the client, on a faked system

READERS = [
    "tests/surface/cli/test_recall.py",
    *(f"tests/surface/client/test_{name}.py" for name in ("core", "finding", "reading", "shells", "both")),
    "tests/surface/cli/test_commands.py",
]
LEFT_OUT = {
    "both": [
        # They write the memory.
        "test_first_reader_of_tree_creates_catalog and rebuild",
        "test_erase_removes_sessions_that_received_the_entry",
    ],
    "darwin": [],
    "win32": [
        # Windows does not use file modes, and has no Unix sockets.
        "test_unreadable_ledger_is_an_error",
        "test_daemon_file_shared_with_others_is_rejected",
        "test_absent_or_untrusted_daemon_is_unreachable",
        "test_world_writable_root_is_reported_by_read_commands",
    ],
}
OF_COMMANDS = "ls_lists or show_ or ls_keeps_notes or listing_escapes or version_and_help or world_writable"


@pytest.mark.slow
def test_reading_and_client_tests_pass_on_faked_system(system, tmp_path_factory):
    short = tmp_path_factory.mktemp("t")  # The path of a socket is limited to 107 bytes.
    left_out = " or ".join(f"({each})" for each in (*LEFT_OUT["both"], *LEFT_OUT[system]))
    chosen = f"(not test_commands or {OF_COMMANDS}) and not ({left_out})"
    line = [sys.executable, "-m", "pytest", "-q", "-p", "kit.fake_platform", "-p", "no:cacheprovider"]
    environment = {**os.environ, "FAKED_SYSTEM": system, "HOME": str(short), "TMPDIR": str(short)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(muniment.__file__).parents[1]), "tests"])
    done = subprocess.run(
        [*line, f"--basetemp={short / 'b'}", "-k", chosen, *READERS],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(done.stdout.splitlines()[-1].split(" passed")[0].split()[-1]) > 120


def test_import_export_and_backup_reject_windows(run_on_system, system):
    if system != "win32":
        pytest.skip("only Windows rejects these commands")
    lines = [["import", "x"], ["export", "--to", "-"], ["backup", "x.tar"], ["restore", "x.tar"]]
    for code, out, error in run_on_system(PROGRAM + f"result = [run(*line) for line in {lines}]\n"):
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert "not supported on Windows" in error


def test_setup_and_uninstall_reject_windows(run_on_system, system, tmp_path):
    if system != "win32":
        pytest.skip("macOS supports these commands")
    (tmp_path / ".codex").mkdir()
    program = PROGRAM + (
        'result = [run("setup", "codex", "--yes"), run("setup", "codex", "--remove", "--yes"), '
        'run("uninstall", "--yes")]\n'
    )
    for code, out, error in run_on_system(program):
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert "not supported on Windows" in error
    assert list((tmp_path / ".codex").iterdir()) == []
