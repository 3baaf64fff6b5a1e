"""Settings: who wins, where a workspace begins, and that nothing is read from one."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from muniment.errors import ConfigInvalid, InvalidScope, ManagedMemoryUnavailable
from muniment.settings import (
    MAX_CONFIG_BYTES,
    default_roots,
    find_workspace,
    parse_roots,
    read_settings,
    workspace_key,
)

SCOPES = ("user", "project")


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


def configure(home, text):
    data = text if isinstance(text, bytes) else text.encode()
    (home / "config.toml").write_bytes(data)


def read(home, environment=None, **flags):
    return read_settings({"MUNIMENT_HOME": str(home), **(environment or {})}, **flags)


def test_without_anything_there_are_defaults_and_nothing_is_created(tmp_path):
    settings = read_settings({"HOME": str(tmp_path)})
    assert settings.home == tmp_path / ".muniment"
    assert (settings.policy, dict(settings.roots), settings.symlinks) == ("strict", {}, "refuse")
    assert settings.apart == (
        settings.home / "state",
        settings.home / "policies",
        settings.home / "config.toml",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_flag_beats_the_environment_and_that_the_file_and_that_the_default(home):
    roots = '[roots]\nuser = "/file/user"\nproject = "/file/project"\n'
    configure(home, f'policy = "from-file"\nsymlinks = "from-file"\n{roots}')
    assert read(home).policy == "from-file"
    assert read(home, {"MUNIMENT_POLICY": "from-environment"}).policy == "from-environment"
    assert read(home, {"MUNIMENT_POLICY": "x"}, policy="from-flag").policy == "from-flag"
    settings = read(home, roots={"user": Path("/flag/user")}, symlinks="refuse", policy=None)
    assert settings.roots == {"user": Path("/flag/user"), "project": Path("/file/project")}
    assert settings.symlinks == "refuse"


def test_empty_means_not_asked(home):
    assert read(home, {"MUNIMENT_POLICY": ""}, policy="", symlinks=None).policy == "strict"
    assert read_settings({"MUNIMENT_HOME": "", "HOME": str(home)}).home == home / ".muniment"


def test_a_relative_home_is_taken_from_here(home, monkeypatch):
    monkeypatch.chdir(home)
    assert read_settings({"MUNIMENT_HOME": "there"}).home == home / "there"


def test_without_home_the_system_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("HOME", raising=False)
    record = pwd.struct_passwd(("me", "x", os.getuid(), 0, "", str(tmp_path), ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: record)
    assert read_settings({}).home == tmp_path / ".muniment"


def test_without_any_home_somebody_has_to_say_one(monkeypatch):
    def nobody(_):
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ConfigInvalid, match="MUNIMENT_HOME"):
        read_settings({})


def test_a_tilde_in_the_file_is_home(home, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    configure(home, '[roots]\nuser = "~/memory"\n')
    assert read(home).roots == {"user": Path("/home/me/memory")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules = 'x'", "unknown key 'rules'; there are policy, roots and symlinks"),
        ("policy = 1", "policy must be a string"),
        ("symlinks = ['refuse']", "symlinks must be a string"),
        ("roots = 'x'", "roots must be a table"),
        ("[roots]\nuser = 1", "roots must be a table"),
        ("[roots]\nuser = 'memory'", "the root of 'user' is relative"),
        ("[roots]\nuser = '~nobody-of-this-name/x'", "no home directory"),
        ("policy = ", "is not valid TOML"),
        (b"policy = '\xff'", "is not valid TOML"),
        ("#" * (MAX_CONFIG_BYTES + 1), "larger than"),
    ],
)
def test_what_the_file_may_not_say_is_told(home, text, words):
    configure(home, text)
    with pytest.raises(ConfigInvalid) as caught:
        read(home)
    assert words in str(caught.value)
    assert "config.toml" in str(caught.value) or "home directory" in words


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_default(home):
    (home / "config.toml").mkdir()
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        read(home)
    with pytest.raises(ConfigInvalid, match="is no path"):
        read_settings({"MUNIMENT_HOME": "/a\0b"})


def test_a_workspace_is_the_nearest_ancestor_with_git(fs):
    for path in ("/code/.git", "/code/packages/deep/er", "/code/packages/inner/src", "/plain/dir"):
        fs.create_dir(path)
    fs.create_file("/code/packages/inner/.git", contents="gitdir: elsewhere")
    assert find_workspace(Path("/code/packages/deep/er")) == Path("/code")
    assert find_workspace(Path("/code/packages/inner/src")) == Path("/code/packages/inner")
    assert find_workspace(Path("/code")) == Path("/code")
    assert find_workspace(Path("/plain/dir")) == Path("/plain/dir")


def test_a_workspace_is_known_by_its_real_path(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert find_workspace(tmp_path / "link") == find_workspace(tmp_path / "real")


def test_a_dangling_git_still_marks_a_workspace(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / ".git").symlink_to("nowhere")
    assert find_workspace(tmp_path / "a" / "b") == tmp_path / "a"


@pytest.mark.parametrize("bad", ["missing", "file", "loop", "nul\0"])
def test_what_is_no_workspace_is_told(tmp_path, bad):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigInvalid, match="workspace"):
        find_workspace(tmp_path / bad)


NAMES = ["项目一", "项目二", "a", "A", "a-", "..a", "x" * 200, "é", "e\u0301", "a b", "\udcff", "-", "CON"]


def test_no_two_workspaces_share_a_key():
    keys = {workspace_key(Path("/code") / name) for name in NAMES}
    assert len(keys) == len(NAMES)
    for key in keys:
        slug, _, digest = key.rpartition("-")
        assert slug
        assert len(digest) == 32
        assert len(key) <= 80
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert workspace_key(Path("/one/same")) != workspace_key(Path("/two/same"))
    assert workspace_key(Path("/code/My App!")).startswith("my-app-")
    assert workspace_key(Path("/code/项目一")).startswith("workspace-")


def test_default_roots_are_ours_and_private(home, tmp_path):
    settings = read(home)
    roots = default_roots(settings, SCOPES, tmp_path, create=True)
    assert roots == {"user": home / "user", "project": home / "projects" / workspace_key(tmp_path) / "memory"}
    for path in roots.values():
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_bound_root_takes_the_place_of_ours_and_is_not_created(home, tmp_path):
    settings = read(home, roots={"user": tmp_path / "mine"})
    assert default_roots(settings, ("user",), tmp_path, create=True) == {"user": tmp_path / "mine"}
    assert not (tmp_path / "mine").exists()
    assert not (home / "user").exists()


def test_scopes_and_roots_have_to_fit(home, tmp_path):
    with pytest.raises(InvalidScope, match="no scope 'team'"):
        default_roots(read(home, roots={"team": tmp_path}), SCOPES, tmp_path, create=True)
    with pytest.raises(ConfigInvalid, match="--root team=DIR"):
        default_roots(read(home), ("user", "team"), tmp_path, create=True)


def test_a_home_that_cannot_hold_roots_is_told(home, tmp_path):
    (home / "user").write_text("")
    with pytest.raises(ManagedMemoryUnavailable, match="not a directory"):
        default_roots(read(home), SCOPES, tmp_path, create=True)


def test_roots_are_given_as_pairs():
    assert parse_roots([]) == {}
    assert parse_roots(["user=/a=b", "project=/c"]) == {"user": Path("/a=b"), "project": Path("/c")}
    for bad in ("user", "user=", "=/a", ""):
        with pytest.raises(ConfigInvalid, match="scope=DIR"):
            parse_roots([bad])
    with pytest.raises(ConfigInvalid, match="twice"):
        parse_roots(["user=/a", "user=/b"])
