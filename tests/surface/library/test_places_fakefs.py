"""Workspace, home and configuration on Linux, macOS and Windows, with faked file systems.

pyfakefs fakes the three systems. Reading memory there: `test_elsewhere.py`.
"""

import json
import os
import pwd
import re
import stat
from pathlib import Path, PureWindowsPath

import pytest
from pyfakefs.fake_filesystem import OSType
from pyfakefs.fake_open import FakeFileOpen
from pyfakefs.fake_os import FakeOsModule
from pyfakefs.helpers import reset_ids, set_uid

from muniment.errors import ConfigInvalid, PolicyInvalid
from muniment.kernel.names import Scope
from muniment.names import MAX_CONFIG_BYTES
from muniment.policy.load import load_policy
from muniment.settings import default_roots, read_settings
from muniment.workspaces.checkouts import find_checkout
from muniment.workspaces.projects import find_project, workspace_key

SCOPES = (Scope("user"), Scope("project"))
TOPS = {OSType.LINUX: "/", OSType.MACOS: "/", OSType.WINDOWS: "C:\\"}


@pytest.fixture(params=TOPS, ids=lambda system: system.value)
def system(request, fs):
    fs.os = request.param
    fs.chmod(TOPS[request.param], 0o755, force_unix_mode=True)
    return request.param


@pytest.fixture(autouse=True)
def reset_fake_ids():
    yield
    reset_ids()


# Returns a path from its parts, under the root of the file system, as the faked system joins them.
at = pytest.fixture(lambda system: lambda *parts: Path(os.path.join(TOPS[system], *parts)))  # noqa: PTH118


@pytest.fixture
def home(fs, at):
    path = at("home", "me", ".muniment")
    fs.create_dir(path)
    return path


def read(home, environment=None, **flags):
    return read_settings({"MUNIMENT_HOME": str(home), **(environment or {})}, **flags)


# -- the workspace ---------------------------------------------------------------------------------------


def test_workspace_is_nearest_ancestor_with_git(fs, at):
    marks = {"directory": fs.create_dir, "link": lambda git: fs.create_symlink(git, at("nowhere"))}
    marks["file"] = lambda git: fs.create_file(git, contents="gitdir: ../elsewhere\n")
    fs.create_dir(at("code", ".git"))
    for mark, make in marks.items():
        deep = at("code", mark, "src", "deep")
        fs.create_dir(deep)
        make(at("code", mark, ".git"))
        for inside in (deep, deep.parent, at("code", mark)):
            assert find_checkout(inside).path == at("code", mark)
    assert find_checkout(at("code")).path == at("code")
    fs.create_dir(at("plain", "git", "x.git", "sub"))
    fs.create_dir(at("home", "me", "project"))
    for parts in ((), ("plain",), ("plain", "git"), ("plain", "git", "x.git", "sub"), ("home", "me")):
        assert find_checkout(at(*parts)).path == at(*parts)
    fs.create_dir(at("home", "me", ".git"))  # Some users keep their settings in a repository.
    fs.create_dir(at(".git"))
    assert find_checkout(at("home")).path == at()
    assert find_checkout(at("home", "me", "project")).path == at("home", "me")
    fs.create_file(at("file"))
    fs.create_symlink(at("loop"), at("loop"))
    for parts in (("missing",), ("file",), ("file", "below"), ("a\0b",), ("loop",)):
        with pytest.raises(ConfigInvalid, match="workspace"):
            find_checkout(at(*parts))


NAMES = [
    *("a b", "My App!", "a-b", "a_b", "a.b", "a--b", "-a-b-", "ab", "é", "e\u0301", "ß", "ss", "CON", "nul"),
    *("...x", "user", "I", "\u0131", "\uff21", "a\u200bb", "📝", "项目一", "项目二"),
    *("x" * 60, "x" * 61, "x" * 200),
]


def test_workspace_key_is_unique_and_portable(fs, at):
    real = at("code", "app")
    fs.create_dir(real / "sub")
    fs.create_symlink(at("link"), real)
    spellings = [real, real / "sub" / "..", real / ".", at("link"), at("link", "sub", ".."), f"{real}/"]
    assert {workspace_key(find_checkout(Path(each)).path) for each in spellings} == {workspace_key(real)}
    workspaces = [at(), *(at(folder, name) for folder in ("code", "other") for name in NAMES)]
    for workspace in workspaces[1:]:
        fs.create_dir(workspace)
    keys = [workspace_key(find_checkout(workspace).path) for workspace in workspaces]
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert re.fullmatch("(?=.{,80}$)[a-z0-9-]+-[0-9a-z]{32}", key), key
        assert not PureWindowsPath(key).is_reserved()
    assert (keys[0].startswith("workspace-"), keys[2].startswith("my-app-")) == (True, True)


# -- home ------------------------------------------------------------------------------------------------


def test_home_is_in_user_directory_unless_configured(fs, at):
    user_dir, other = at("home", "me"), at("elsewhere")
    fs.create_dir(user_dir)
    fs.create_dir(at("here", "workspace", ".git"))
    both = {"HOME": str(user_dir), "MUNIMENT_HOME": str(other)}
    assert read_settings(both).home == other
    for environment in ({"HOME": str(user_dir)}, {**both, "MUNIMENT_HOME": ""}):
        assert read_settings(environment).home == user_dir / ".muniment"
    assert ((user_dir / ".muniment").exists(), other.exists()) == (False, False)
    os.chdir(at("here"))  # Relative to this directory, not to a workspace.
    assert read_settings({"MUNIMENT_HOME": "own"}).home == at("here", "own")
    assert read_settings({"HOME": "own"}).home == at("here", "own", ".muniment")
    for variable in ("HOME", "MUNIMENT_HOME"):
        for bad in ("a\0b", "\0", "a\ud800"):
            with pytest.raises(ConfigInvalid, match="is not a valid path"):
                read_settings({variable: bad})


@pytest.mark.parametrize("posix", [OSType.LINUX, OSType.MACOS], ids=lambda posix: posix.value)
def test_missing_home_uses_account_and_unreadable_config_fails(fs, posix, monkeypatch):
    fs.os = posix
    fs.chmod("/", 0o1777, force_unix_mode=True)
    monkeypatch.delenv("HOME", raising=False)
    record = pwd.struct_passwd(("me", "x", os.getuid(), 0, "", "/home/me", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: record)
    assert read_settings({}).home == Path("/home/me/.muniment")
    set_uid(1000)  # Root may read anything.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    fs.create_file("/home/me/config.toml", contents="policy = 'own'\n", st_mode=stat.S_IFREG)
    with pytest.raises(ConfigInvalid, match="cannot be read: Permission denied"):
        read("/home/me")


# -- the configuration -----------------------------------------------------------------------------------

INVALID_TOML = (
    b"\xef\xbb\xbfpolicy = 'own'\n",
    b"policy = '\xff'\n",
    b"policy = 'own'\r",
    b"policy = 'a\0'\n",
)
INVALID_CONFIGS = {
    **dict.fromkeys(INVALID_TOML, "not valid TOML"),
    b"roots = {user = 'memory'}\n": "relative",
    b"#" * (MAX_CONFIG_BYTES + 1): "larger than",
}


def test_invalid_config_raises_instead_of_using_defaults(fs, system, home, at):
    file = fs.create_file(home / "config.toml")
    roots = f"[roots]\r\nuser = {json.dumps(str(at('memory')))}\r\n"
    file.set_contents(f'policy = "own"\r\nsymlinks = "beneath"\r\n\r\n# comment\r\n{roots}')
    found = read(home)
    assert (found.policy, found.symlinks, found.roots) == ("own", "beneath", {"user": at("memory")})
    for content, message in INVALID_CONFIGS.items():
        file.set_contents(content)
        with pytest.raises(ConfigInvalid, match=message) as caught:
            read(home)
        assert "config.toml" in str(caught.value)
    fs.create_dir(home.parent / "directory" / "config.toml")
    fs.create_symlink(loop := home.parent / "loop" / "config.toml", loop)
    for name in ("directory", "loop")[: 1 if system is OSType.WINDOWS else 2]:
        with pytest.raises(ConfigInvalid, match="cannot be read"):
            read(home.parent / name)


# -- nothing is read from a workspace

BAD = 'policy = "bait"\n'
BAIT = {
    "config.toml": f'{BAD}[roots]\nuser = "/bait"\n',
    ".muniment/config.toml": f'{BAD}model = "bait"\n',
    "pyproject.toml": f"[tool.muniment]\n{BAD}",
    ".git/config": "[muniment]\npolicy = bait\n",
    ".env": "MUNIMENT_POLICY=bait\n",
    **dict.fromkeys((".muniment/policies/bait.toml", "policies/strict.toml", "strict.toml"), ""),
}


def test_workspace_files_are_not_read_except_git_identity(fs, at, home, monkeypatch):
    workspace, opened = at("code", "app"), []
    # The files that identify the repository.
    git = {str(workspace / ".git" / name) for name in ("config", "muniment")}

    def record_calls(original):
        def call(self, file, *arguments, **named):
            opened.extend([] if isinstance(file, int) else [str(file)])  # A descriptor was opened by a path.
            return original(self, file, *arguments, **named)

        return call

    monkeypatch.setattr(FakeFileOpen, "call", record_calls(FakeFileOpen.call))
    monkeypatch.setattr(FakeOsModule, "open", record_calls(FakeOsModule.open))
    for name, content in BAIT.items():
        fs.create_file(workspace / name, contents=content)
    fs.create_file(home / "config.toml", contents='policy = "own"\n')
    os.chdir(workspace)
    found = read(home)
    roots = default_roots(found, SCOPES, find_project(found.home, Path()).memory(found.home), create=False)
    assert (found.policy, dict(found.roots), found.model, roots) == ("own", {}, "rules", {})
    with pytest.raises(PolicyInvalid):
        load_policy("bait", policies_dir=found.policies)
    assert str(home / "config.toml") in opened  # The recorder works.
    assert all(str(home) in path or "policies" in path or path in git for path in opened)
    opened = [path for path in opened if path not in git]
    assert not [path for path in opened if str(workspace) in path or not path.startswith((os.sep, str(at())))]
