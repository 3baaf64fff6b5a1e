"""A home, its state and configuration belong to us and are writable by nobody else, or nothing starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import muniment
from kit.policy.files import write
from muniment.cli.app import app
from muniment.confine import binding
from muniment.errors import ConfigInvalid, PolicyInvalid
from muniment.settings import Settings, read_api_key, read_settings
from muniment.signatures import load_configured

EVIL = 'model = "evil"\nbase_url = "http://127.0.0.1:1/v1"\n'
IS_ROOT = os.geteuid() == 0
OTHER = 4242
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")


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


def given_away(path):
    os.chown(path, OTHER, OTHER)


NAMES = ("", "config.toml", "state", "policies", "policies/own.toml")


@pytest.mark.threat("T-LEAK-14", control="own_homes")
def test_what_others_may_write_is_not_obeyed_and_the_command_that_mends_it_works(home):
    for mode in 0o020, 0o002, 0o022:
        for name in NAMES:
            path = home / name
            before = path.stat().st_mode
            path.chmod(before | mode)
            with pytest.raises(ConfigInvalid) as caught:
                read(home)
            command = str(caught.value).rpartition("run: ")[2]
            assert command == f"chmod go-w {path}"
            assert os.system(command) == 0
            assert path.stat().st_mode == before
            assert read(home).home == home


@as_root
@pytest.mark.threat("T-LEAK-14", control="own_homes")
def test_what_belongs_to_another_user_is_not_obeyed(home):
    for name in NAMES:
        path = home / name
        given_away(path)
        with pytest.raises(ConfigInvalid, match=f"belongs to user {OTHER}") as caught:
            read(home)
        assert f"chown 0 {path}; " in str(caught.value)
        os.chown(path, 0, 0)
        assert read(home).home == home


@as_root
@pytest.mark.threat("T-LEAK-14", control="own_homes")
def test_nothing_starts_with_another_users_configuration(home, tmp_path, monkeypatch):
    # What `serve` sets, it sets for this process, and so for every later test.
    monkeypatch.setattr("os.umask", lambda _: 0o022)
    monkeypatch.setattr("muniment.daemon.service.configure_logs", lambda: None)
    (home / "config.toml").write_text(EVIL)
    given_away(home / "config.toml")
    with pytest.raises(ConfigInvalid, match="belongs to user"):
        muniment.open(tmp_path, home=home)
    env = {"MUNIMENT_HOME": str(home), "HOME": str(tmp_path)}
    for command in (
        ["remember", "We deploy on Thursdays"],
        ["recall", "deploy"],
        ["ls"],
        ["doctor"],
        ["serve", "--workspace", str(tmp_path)],
        ["token", "list"],
    ):
        done = CliRunner().invoke(app, command, env=env)
        assert done.exit_code != 0
        assert "belongs to user" in done.output
    assert list((home / "state").iterdir()) == []
    assert not (home / "user").exists()


def test_a_directory_above_counts_where_others_could_put_another_home_in_its_place(home, tmp_path):
    top = home.parent
    for mode, is_refused in (0o777, True), (0o1777, False), (0o755, False), (0o700, False), (0o703, True):
        top.chmod(mode)
        if is_refused:
            with pytest.raises(ConfigInvalid, match=f"chmod go-w {top}$"):
                read(home)
        else:
            read(home)
    top.chmod(0o775)  # As a umask of 002 makes them, for a group of its own.
    read(home)
    (tmp_path / "link").symlink_to(home)
    read(tmp_path / "link")
    top.chmod(0o777)
    with pytest.raises(ConfigInvalid):
        read(tmp_path / "link")


@as_root
def test_a_group_that_is_not_ours_counts_like_others(home):
    home.parent.chmod(0o770)
    os.chown(home.parent, 0, OTHER)
    with pytest.raises(ConfigInvalid, match="chmod go-w"):
        read(home)
    home.parent.chmod(0o750)
    read(home)
    os.chown(home.parent, OTHER, 0)
    with pytest.raises(ConfigInvalid, match="belongs to user"):
        read(home)
    os.chown(home.parent, 65_534, 0)  # What a user namespace calls root outside of it.
    read(home)


def test_what_is_not_there_is_nobodys(tmp_path):
    assert read(tmp_path / "none" / "yet").policy == "strict"


def test_what_cannot_be_looked_at_is_refused(home):
    for directory in (home, home.parent):
        (directory / "loop").symlink_to("loop")
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        read(home.parent / "loop" / "x")


def test_a_key_that_others_may_write_is_not_sent(home, tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-1\n")
    settings = read(home, MUNIMENT_API_KEY_FILE=str(key))
    assert read_api_key(settings, {}) == "sk-1"
    key.chmod(0o666)
    with pytest.raises(ConfigInvalid, match="chmod go-w"):
        read_api_key(settings, {})


def test_signers_whom_others_may_add_sign_nothing(home, tmp_path):
    signers = tmp_path / "signers"
    signers.write_text("nobody\n")
    signers.chmod(0o666)
    own = home / "policies" / "own.toml"
    Path(f"{own}.sig").write_text("x")
    with pytest.raises(PolicyInvalid, match=r"E142.*chmod go-w"):
        load_configured(Settings(home, policy=str(own), policy_signers=signers))


def test_a_system_without_its_files_has_the_usual_overflow_user(monkeypatch):
    monkeypatch.setattr(binding.Path, "read_text", lambda *_, **__: "x")
    assert binding._overflow_user() == 65_534
