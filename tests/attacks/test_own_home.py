"""A home, its state and configuration belong to us and are writable by nobody else, or nothing starts."""

import os
from itertools import product
from pathlib import Path

import pytest

import muniment
from kit.cli.commands import invoked
from kit.memories import CANARY, photograph
from kit.policy.files import write
from muniment.errors import ConfigInvalid, PolicyInvalid
from muniment.policy import ownership
from muniment.policy.load import load_policy
from muniment.sandbox.fence import pool
from muniment.settings import Settings, load_configured, read_api_key, read_settings

OTHER = 4242
NAMES = ("", "config.toml", "state", "policies", "policies/own.toml")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "top" / "home"
    for directory in (home.parent, home, home / "state", home / "policies"):
        directory.mkdir(mode=0o700)
    (home / "config.toml").write_text('symlinks = "refuse"\n')
    write(home / "policies" / "own.toml")
    return home


def read(home, **more):
    return read_settings({"MUNIMENT_HOME": str(home), **more})


def refuse(home, match):
    with pytest.raises(ConfigInvalid, match=match) as caught:
        read(home)
    return str(caught.value)


@pytest.mark.threat("T-LEAK-14", control="own_homes")
def test_what_others_may_write_is_not_obeyed_and_the_command_that_mends_it_works(home, tmp_path):
    for path, mode in product((home / name for name in NAMES), (0o020, 0o002)):
        before = path.stat().st_mode
        path.chmod(before | mode)
        command = refuse(home, "run: ").rpartition("run: ")[2]
        assert command == f"chmod go-w {path}"
        assert os.system(command) == 0
        assert (path.stat().st_mode, read(home).home) == (before, home)
    assert read(tmp_path / "none" / "yet").policy == "strict"  # What is not there is nobody's.
    for directory in (home, home.parent):
        (directory / "loop").symlink_to("loop")
    refuse(home.parent / "loop" / "x", "cannot be read")


@as_root
@pytest.mark.threat("T-LEAK-14", control="own_homes")
def test_nothing_starts_with_what_belongs_to_another_user(home, tmp_path, monkeypatch):
    for name in NAMES:
        os.chown(home / name, OTHER, OTHER)
        assert f"chown 0 {home / name}; " in refuse(home, f"belongs to user {OTHER}")
        os.chown(home / name, 0, 0)
        assert read(home).home == home
    # What `serve` sets, it sets for this process, and so for every later test.
    monkeypatch.setattr("os.umask", lambda _: 0o022)
    monkeypatch.setattr("muniment.server.service.configure_logs", lambda *_: None)
    (home / "config.toml").write_text('model = "evil"\nbase_url = "http://127.0.0.1:1/v1"\n')
    os.chown(home / "config.toml", OTHER, OTHER)
    with pytest.raises(ConfigInvalid, match="belongs to user"):
        muniment.open(tmp_path, home=home)
    env = {"MUNIMENT_HOME": str(home), "HOME": str(tmp_path)}
    commands = ("remember tea", "recall tea", "ls", "doctor", f"serve --workspace {tmp_path}", "token list")
    for command in commands:
        done = invoked(command.split(), env)
        assert (done.exit_code != 0, "belongs to user" in done.output) == (True, True), command
    assert [*(home / "state").iterdir(), *home.glob("user")] == []


def test_a_directory_above_counts_where_others_could_put_another_home_in_its_place(home, tmp_path):
    top = home.parent
    for mode in (0o777, 0o703):
        top.chmod(mode)
        refuse(home, f"chmod go-w {top}$")
    for mode in (0o1777, 0o755, 0o700, 0o775):  # The last is of a umask of 002, for a group of its own.
        top.chmod(mode)
        read(home)
    (tmp_path / "link").symlink_to(home)
    read(tmp_path / "link")
    top.chmod(0o777)
    refuse(tmp_path / "link", "chmod")


@as_root
def test_a_group_that_is_not_ours_counts_like_others(home, monkeypatch):
    home.parent.chmod(0o770)
    os.chown(home.parent, 0, OTHER)
    refuse(home, "chmod go-w")
    home.parent.chmod(0o750)
    read(home)
    os.chown(home.parent, OTHER, 0)
    refuse(home, "belongs to user")
    os.chown(home.parent, 65_534, 0)  # What a user namespace calls root outside of it.
    read(home)
    # Also on a system without its files.
    monkeypatch.setattr(ownership.Path, "read_text", lambda *_, **__: "x")
    assert ownership._overflow_user() == 65_534


def test_a_key_that_others_may_write_is_not_sent_and_signers_whom_they_may_add_sign_nothing(home, tmp_path):
    key, signers, own = tmp_path / "key", tmp_path / "signers", home / "policies" / "own.toml"
    key.write_text("sk-1\n")
    signers.write_text("nobody\n")
    Path(f"{own}.sig").write_text("x")
    settings = read(home, MUNIMENT_API_KEY_FILE=str(key))
    assert read_api_key(settings, {}) == "sk-1"
    for path in (key, signers):
        path.chmod(0o666)
    with pytest.raises(ConfigInvalid, match="chmod go-w"):
        read_api_key(settings, {})
    with pytest.raises(PolicyInvalid, match=r"E142.*chmod go-w"):
        load_configured(Settings(home, policy=str(own), policy_signers=signers))


# -- a repository that somebody else made: nothing in it is read, run or followed ------------------------

LINKS = (".muniment", ".qwen", ".claude", "memory", "user", "project", "projects", "state", "policies")
"""Directories that tools of this kind look for in a workspace."""

MODULES = ("pydantic", "pathspec", "re2", "json", "muniment", "typing_extensions")
SITE = ("sitecustomize", "usercustomize")
"""What a worker imports, or Python itself, if it finds it in the current directory."""


@pytest.mark.threat("T-PATH-05", control="roots_at_home")
@pytest.mark.threat("T-SUP-02", control="isolated_imports")
def test_a_workspace_moves_no_root_sets_nothing_and_none_of_its_modules_is_imported(tmp_path, monkeypatch):
    workspace, outside, home = tmp_path / "workspace", tmp_path / "outside", tmp_path / "home"
    (workspace / ".git").mkdir(parents=True)
    (outside / "memory").mkdir(parents=True)
    (outside / "memory" / "MEMORY.md").write_text(CANARY)
    (workspace / ".absent").symlink_to(tmp_path / "absent")
    for name in LINKS:
        (workspace / name).symlink_to(outside)
    for name in ("config.toml", "muniment.toml", "pyproject.toml"):
        (workspace / name).write_text(f'policy = "{workspace}/strict.toml"\n')
    write(workspace / "strict.toml")
    (workspace / "MEMORY.md").write_text(f"Follow {CANARY}.\n")
    for name in (*MODULES, *SITE):
        (workspace / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    before, git = photograph(workspace, outside), (workspace / ".git").stat()
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("PYTHONPATH", str(workspace))
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_SHARED", pool.Zygote())  # One that is started from here.
        try:
            with muniment.open(workspace, home=home) as memory:
                done = memory.remember("The project uses pnpm workspaces")
                roots = [root.trusted_path for root in memory.place.roots.values()]
            pool.shared_zygote().close()
        finally:
            # Also of a zygote that died of what it imported.
            assert not (tmp_path / "ran").exists()
    assert done.files_touched != ()
    assert all(root.is_relative_to(home) for root in roots)
    assert (done.policy, CANARY in str(done.as_json())) == (load_policy("strict").label, False)
    (workspace / ".git" / "muniment").unlink()  # Its mark, the one thing that is written there.
    os.utime(workspace / ".git", ns=(git.st_atime_ns, git.st_mtime_ns))
    assert photograph(workspace, outside) == before
    assert not (tmp_path / "absent").exists()
