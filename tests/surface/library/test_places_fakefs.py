"""Where things live on systems that this one is not: workspace, home, configuration in three file systems.

pyfakefs stands in for Linux, macOS and Windows. What opens memory is for Linux alone; elsewhere it says so.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import HealthCheck, given, settings
from pyfakefs.fake_filesystem import OSType
from pyfakefs.fake_open import FakeFileOpen
from pyfakefs.helpers import reset_ids, set_uid

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, PolicyInvalid
from muniment.names import Scope
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_policy
from muniment.settings import (
    MAX_CONFIG_BYTES,
    default_roots,
    find_workspace,
    parse_roots,
    read_settings,
    workspace_key,
)
from muniment.testing.strategies import unsafe_paths

SCOPES = (Scope("user"), Scope("project"))
TOPS = {OSType.LINUX: "/", OSType.MACOS: "/", OSType.WINDOWS: "C:\\"}


@pytest.fixture(params=TOPS, ids=lambda system: system.value)
def system(request, fs):
    fs.os = request.param
    fs.chmod(TOPS[request.param], 0o755, force_unix_mode=True)
    return request.param


@pytest.fixture
def at(system):
    """A path from its parts, below the top of the file system."""
    return lambda *parts: Path(os.path.join(TOPS[system], *parts))  # noqa: PTH118 - as the faked system joins


@pytest.fixture(autouse=True)
def own_ids():
    yield
    reset_ids()


@pytest.fixture
def home(fs, at):
    place = at("home", "me", ".muniment")
    fs.create_dir(place)
    return place


@pytest.fixture
def configure(fs, home):
    def configure(content):
        data = content if isinstance(content, bytes) else content.encode()
        fs.create_file(home / "config.toml", contents=data)

    return configure


def read(home, environment=None, **flags):
    return read_settings({"MUNIMENT_HOME": str(home), **(environment or {})}, **flags)


# -- the workspace ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["directory", "file", "empty directory", "dangling link"])
def test_a_workspace_is_the_nearest_ancestor_with_git_whatever_that_is(fs, at, mark):
    deep = at("code", "app", "src", "deep")
    fs.create_dir(deep)
    fs.create_dir(at("code", ".git"))
    git = at("code", "app", ".git")
    match mark:
        case "directory":
            fs.create_file(git / "config", contents="[core]\n")
        case "file":
            fs.create_file(git, contents="gitdir: ../elsewhere\n")
        case "empty directory":
            fs.create_dir(git)
        case "dangling link":
            fs.create_symlink(git, at("nowhere"))
    for inside in (deep, deep.parent, at("code", "app")):
        assert find_workspace(inside) == at("code", "app")
    assert find_workspace(at("code")) == at("code")


def test_without_git_a_workspace_is_the_directory_itself(fs, at):
    fs.create_dir(at("plain", "git", "x.git", "sub"))
    for parts in (("plain",), ("plain", "git"), ("plain", "git", "x.git", "sub")):
        assert find_workspace(at(*parts)) == at(*parts)


def test_the_top_of_the_system_and_home_are_workspaces_like_others(fs, at):
    fs.create_dir(at("home", "me", "project"))
    assert find_workspace(at()) == at()
    assert find_workspace(at("home", "me")) == at("home", "me")
    fs.create_dir(at("home", "me", ".git"))  # As people have who keep their settings in a repository.
    assert find_workspace(at("home", "me", "project")) == at("home", "me")
    fs.create_dir(at(".git"))
    assert find_workspace(at("home")) == at()
    assert find_workspace(at("home", "me", "project")) == at("home", "me")
    assert workspace_key(at()).startswith("workspace-")


def test_one_workspace_has_one_key_however_it_is_spelled(fs, at):
    real = at("code", "app")
    fs.create_dir(real / "sub")
    fs.create_symlink(at("link"), real)
    spellings = [
        real,
        real / "sub" / "..",
        real / ".",
        at("link"),
        at("link", "sub", ".."),
        Path(f"{real}{os.sep}"),
    ]
    assert {workspace_key(find_workspace(each)) for each in spellings} == {workspace_key(real)}


NAMES = [
    *("项目一", "项目二", "a-b", "a_b", "a b", "a.b", "a--b", "-a-b-", "ab", "é", "e\u0301", "ß", "ss"),
    *("CON", "nul"),
    *("x" * 60, "x" * 61, "x" * 200, "...x", "📝", "user", "I", "\u0131", "\uff21", "a\u200bb"),
]


def test_no_two_workspaces_share_a_key_and_every_key_is_a_name_everywhere(fs, at):
    places = [at("code", name) for name in NAMES] + [at("other", name) for name in NAMES]
    for place in places:
        fs.create_dir(place)
    keys = [workspace_key(find_workspace(place)) for place in places]
    assert len(set(keys)) == len(places)
    for key in keys:
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert len(key) <= 80
        assert not PureWindowsPath(key).is_reserved()
        assert key == key.casefold()  # So that they differ on a system that ignores case as well.


@pytest.mark.parametrize("bad", ["missing", "file.txt", os.path.join("file.txt", "below"), "a\0b"])  # noqa: PTH118
def test_what_is_no_workspace_is_told_in_a_line(fs, at, bad):
    fs.create_file(at("file.txt"))
    with pytest.raises(ConfigInvalid, match="workspace"):
        find_workspace(at(bad))


def test_a_loop_of_links_is_no_workspace(fs, at):
    fs.create_symlink(at("loop"), at("loop"))
    with pytest.raises(ConfigInvalid, match="workspace"):
        find_workspace(at("loop"))


# -- home ------------------------------------------------------------------------------------------------


def test_home_is_below_the_directory_of_the_user_unless_it_is_named(fs, at):
    fs.create_dir(at("home", "me"))
    assert read_settings({"HOME": str(at("home", "me"))}).home == at("home", "me", ".muniment")
    both = {"HOME": str(at("home", "me")), "MUNIMENT_HOME": str(at("elsewhere"))}
    assert read_settings(both).home == at("elsewhere")
    assert read_settings({**both, "MUNIMENT_HOME": ""}).home == at("home", "me", ".muniment")
    assert not at("home", "me", ".muniment").exists()
    assert not at("elsewhere").exists()


@pytest.mark.parametrize("posix", [OSType.LINUX, OSType.MACOS], ids=lambda posix: posix.value)
def test_without_a_home_the_system_is_asked(fs, posix, monkeypatch):
    fs.os = posix
    fs.chmod("/", 0o1777, force_unix_mode=True)
    monkeypatch.delenv("HOME", raising=False)
    record = pwd.struct_passwd(("me", "x", os.getuid(), 0, "", "/home/me", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: record)
    assert read_settings({}).home == Path("/home/me/.muniment")


def test_a_relative_home_is_taken_from_here_and_not_from_a_workspace(fs, at):
    fs.create_dir(at("here", "workspace", ".git"))
    os.chdir(at("here"))
    for environment in ({"MUNIMENT_HOME": "own"}, {"HOME": "own"}):
        home = read_settings(environment).home
        assert home.is_absolute()
        assert at("here", "own") in (home, home.parent)


def test_a_home_that_is_a_file_holds_nothing_and_stays_one(fs, at):
    fs.create_file(at("home", "me"), contents="no directory")
    try:
        found = read(at("home", "me"))
    except ConfigInvalid as told:
        assert "cannot be read" in str(told)  # noqa: PT017 - systems differ in what they say of the way there
        return
    with pytest.raises(ManagedMemoryUnavailable):
        default_roots(found, SCOPES, at(), create=True)
    assert at("home", "me").read_text() == "no directory"


def test_a_home_that_is_a_file_is_told_on_this_system(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(ConfigInvalid, match="cannot be read: Not a directory"):
        read(tmp_path / "file")


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("bad", ["a\0b", "\0", "a\ud800"])
@pytest.mark.parametrize("variable", ["HOME", "MUNIMENT_HOME"])
def test_what_can_be_no_home_is_told(variable, bad):
    with pytest.raises(ConfigInvalid, match="is no path"):
        read_settings({variable: bad})


# -- the configuration -----------------------------------------------------------------------------------


def test_a_configuration_is_read_with_any_line_breaks(configure, home):
    configure('policy = "own"\r\nsymlinks = "beneath"\r\n\r\n# comment\r\n')
    settings_read = read(home)
    assert (settings_read.policy, settings_read.symlinks) == ("own", "beneath")


def test_a_root_of_the_configuration_is_absolute_by_the_rules_of_the_system(configure, home, at):
    configure(f"[roots]\nuser = {json.dumps(str(at('memory')))}\n")
    assert read(home).roots == {"user": at("memory")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xef\xbb\xbfpolicy = 'own'\n", "not valid TOML"),
        ("policy = 'own'\n".encode("utf-16"), "not valid TOML"),
        (b"policy = '\xff'\n", "not valid TOML"),
        (b"policy = 'own'\r", "not valid TOML"),
        (b"policy = 'a'\npolicy = 'b'\n", "not valid TOML"),
        (b"policy = 'a\0'\n", "not valid TOML"),
        (b"Policy = 'own'\n", "unknown key 'Policy'"),
        (b"workspace = '.'\n", "unknown key 'workspace'"),
        (b"[policies]\nx = 1\n", "unknown key 'policies'"),
        (b"roots = {user = 'memory'}\n", "relative"),
        (b"#" * (MAX_CONFIG_BYTES + 1), "larger than"),
    ],
)
def test_an_odd_configuration_is_told_and_never_a_default(configure, home, content, words):
    configure(content)
    with pytest.raises(ConfigInvalid, match=words) as caught:
        read(home)
    assert "config.toml" in str(caught.value)


@pytest.mark.sweep(1)
def test_a_configuration_that_is_a_directory_or_a_loop_is_told(fs, system, home):
    fs.create_dir(home / "config.toml")
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        read(home)
    if system is not OSType.WINDOWS:
        other = home.parent / "other"
        fs.create_symlink(other / "config.toml", other / "config.toml")
        with pytest.raises(ConfigInvalid, match="cannot be read"):
            read(other)


@pytest.mark.parametrize("posix", [OSType.LINUX, OSType.MACOS], ids=lambda posix: posix.value)
def test_a_configuration_that_may_not_be_read_is_told(fs, posix, monkeypatch):
    fs.os = posix
    fs.chmod("/", 0o1777, force_unix_mode=True)
    set_uid(1000)  # Root may read anything.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    fs.create_file("/home/me/config.toml", contents="policy = 'own'\n", st_mode=stat.S_IFREG)
    with pytest.raises(ConfigInvalid, match="cannot be read: Permission denied"):
        read("/home/me")


# -- nothing comes from a workspace ----------------------------------------------------------------------

BAIT = {
    "config.toml": 'policy = "bait"\n[roots]\nuser = "/bait"\n',
    ".muniment/config.toml": 'policy = "bait"\nmodel = "bait"\n',
    ".muniment/policies/bait.toml": "",
    "policies/strict.toml": "",
    "strict.toml": "",
    ".git/config": "[muniment]\npolicy = bait\n",
    ".env": "MUNIMENT_POLICY=bait\n",
    "pyproject.toml": '[tool.muniment]\npolicy = "bait"\n',
}


@pytest.fixture
def opened(monkeypatch):
    """The paths of all files that are opened in the faked system."""
    paths = []
    honest = FakeFileOpen.call

    def call(self, file, *arguments, **named):
        paths.append(str(file))
        return honest(self, file, *arguments, **named)

    monkeypatch.setattr(FakeFileOpen, "call", call)
    return paths


def test_nothing_is_read_from_a_workspace_even_if_it_is_the_current_directory(
    fs, at, home, configure, opened
):
    workspace = at("code", "app")
    for name, content in BAIT.items():
        fs.create_file(workspace / name, contents=content)
    configure('policy = "own"\n')
    os.chdir(workspace)
    found = read(home)
    roots = default_roots(found, SCOPES, find_workspace(Path()), create=False)
    assert (found.policy, dict(found.roots), found.model, roots) == ("own", {}, "rules", {})
    with pytest.raises(PolicyInvalid):
        load_policy("bait", policies_dir=found.policies)
    assert str(home / "config.toml") in opened  # What is opened is recorded.
    assert all(str(home) in path or "policies" in path for path in opened)
    assert not [path for path in opened if str(workspace) in path or not path.startswith((os.sep, str(at())))]


def test_default_roots_lie_in_home_and_apart_for_each_workspace(fs, at, home):
    one, two = at("code", "项目一"), at("code", "项目二")
    for workspace in (one, two):
        fs.create_dir(workspace)
    found = read(home)
    places = [default_roots(found, SCOPES, each, create=True) for each in (one, two)]
    assert places[0]["user"] == places[1]["user"] == home / "user"
    assert places[0]["project"] != places[1]["project"]
    for roots in places:
        for path in roots.values():
            assert home in path.parents
            assert path.is_dir()
    assert list(one.iterdir()) == list(two.iterdir()) == []


def test_roots_given_as_pairs_may_hold_what_paths_of_the_system_hold(at):
    place = at("memory of = mine", "x")
    assert parse_roots([f"user={place}"]) == {"user": place}


# -- pure parts, and what is for Linux alone -------------------------------------------------------------


@given(unsafe_paths())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_grammar_says_the_same_on_every_system(fs, path):
    def told():
        try:
            return canonicalise(path, SCOPES)
        except Exception as error:  # noqa: BLE001 - what it is is compared
            return type(error), str(error)

    answers = []
    for system in TOPS:
        fs.os = system
        answers.append(told())
    assert answers[0] == answers[1] == answers[2]


ELSEWHERE = """
import importlib.abc, os, sys, sysconfig
sysconfig.get_config_vars()
import muniment.cli.app  # Before: what the interpreter and typer load elsewhere is not ours.

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

NAMES = {"darwin": set(), "win32": {"fcntl", "resource", "pwd", "grp", "termios", "readline"}}[sys.argv[1]]
for name in NAMES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
sys.platform = sys.argv[1]
for name in ("O_PATH", "pidfd_open", "memfd_create", "sched_getaffinity"):
    delattr(os, name)
"""

LIBRARY = """
import muniment
from muniment.policy.load import load_policy
from muniment.content.entry import parse
assert load_policy("strict").scopes and parse(b"x").body == "x"
for use in (lambda: muniment.open("."), lambda: muniment.Sandbox(roots={"user": "."})):
    try:
        use()
    except muniment.MunimentError as error:
        print(error.code)
"""

PROGRAM = """
from muniment.cli.entry import main
sys.argv = ["muniment", *sys.argv[2:]]
main()
"""


def run_elsewhere(system, script, *arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE + script, system, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "MUNIMENT_HOME": str(cwd / "home")},
        timeout=50,
    )


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_library_says_so_where_the_system_lacks_what_it_needs(system, tmp_path):
    done = run_elsewhere(system, LIBRARY, cwd=tmp_path)
    assert done.stdout.split() == ["platform_unsupported"] * 2, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sweep(3)
@pytest.mark.parametrize("system", ["darwin", "win32"])
@pytest.mark.parametrize("command", [["remember", "x"], ["ls"], ["doctor"], ["tool", "--root", "user=."]])
def test_the_program_says_so_where_the_system_lacks_what_it_needs(system, command, tmp_path):
    done = run_elsewhere(system, PROGRAM, *command, cwd=tmp_path)
    assert done.returncode == 1
    assert "[platform_unsupported]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_program_still_tells_its_version_and_its_commands(system, tmp_path):
    assert run_elsewhere(system, PROGRAM, "--version", cwd=tmp_path).stdout.startswith("muniment ")
    assert "remember" in run_elsewhere(system, PROGRAM, "--help", cwd=tmp_path).stdout
