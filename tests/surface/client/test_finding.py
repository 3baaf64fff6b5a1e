"""A token goes where it was given for, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kit.client.scripted import TOKEN
from muniment.client.finding import Fixed, Home, Where, check_url, name_workspace, place
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable

URL = "http://127.0.0.1:4242"


def write(path, text, mode=0o600):
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def home(tmp_path):
    write(
        tmp_path / "state/daemon.json",
        json.dumps({"url": URL, "socket": None, "pid": 1, "epoch": "0badcafe"}),
    )
    write(tmp_path / "state/token", f"{TOKEN}\n")
    return tmp_path


def announce(home, **said):
    write(home / "state/daemon.json", json.dumps(said))


def test_the_daemon_of_a_home_is_found_with_the_owners_token(home):
    assert Home(home).find() == Where(URL, None, TOKEN)


def test_a_socket_is_preferred_and_needs_no_token(home):
    announce(home, url=URL, socket="/run/daemon.sock")
    (home / "state/token").unlink()
    assert Home(home).find() == Where("http://localhost", "/run/daemon.sock", None)


def test_a_token_of_the_callers_counts_instead_of_the_owners(home):
    assert Home(home, "other").find() == Where(URL, None, "other")
    announce(home, url=URL, socket="/run/daemon.sock")
    assert Home(home, "other").find() == Where("http://localhost", "/run/daemon.sock", "other")


def test_a_home_without_a_daemon_says_what_to_do(tmp_path):
    assert Home(tmp_path).find() is None
    assert Home(tmp_path).nobody == f"none runs for {tmp_path}; start one with: muniment serve"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "\xff", '{"url": "ftp://x"}', '{"url": 7}', '{"url": "", "socket": 7}']
)
def test_an_announcement_that_says_nothing_is_refused(home, text):
    write(home / "state/daemon.json", text)
    with pytest.raises(ManagedMemoryUnavailable, match=r"daemon\.json: does not say where"):
        Home(home).find()


@pytest.mark.parametrize("text", ["", "two words", "x" * 600])
def test_a_token_that_is_none_is_refused_without_being_told(home, text):
    write(home / "state/token", text)
    with pytest.raises(ManagedMemoryUnavailable, match=r"holds no token$"):
        Home(home).find()
    (home / "state/token").unlink()
    with pytest.raises(ManagedMemoryUnavailable, match=r"holds no token$"):
        Home(home).find()


@pytest.mark.parametrize("name", ["daemon.json", "token"])
@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(home, name, mode):
    (home / "state" / name).chmod(mode)
    with pytest.raises(ManagedMemoryUnavailable, match=f"{name}: is no file of yours alone"):
        Home(home).find()


@pytest.mark.parametrize("name", ["daemon.json", "token"])
def test_a_link_a_fifo_and_a_directory_in_place_of_a_file_are_refused(home, tmp_path, name):
    path = home / "state" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManagedMemoryUnavailable, match="cannot be read"):
        Home(home).find()
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ManagedMemoryUnavailable, match="is no file"):
        Home(home).find()
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(ManagedMemoryUnavailable, match="is no file"):
        Home(home).find()


def test_a_file_of_another_user_is_refused(home, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(ManagedMemoryUnavailable, match="is no file of yours alone"):
        Home(home).find()


def test_the_home_is_the_one_that_was_named_then_that_of_the_environment():
    environment = {"MUNIMENT_HOME": "/m", "HOME": "/h"}
    assert place(environment, home="/x") == Home(Path("/x"))
    assert place(environment) == Home(Path("/m"))
    assert place({"HOME": "/h"}, token="t") == Home(Path("/h/.muniment"), "t")
    assert place({}) == Home(Path("~/.muniment").expanduser())
    with pytest.raises(ConfigInvalid, match="no home directory"):
        place({}, home="~nobody-of-this-name/x")


def test_an_address_gets_no_token_but_the_callers(home):
    environment = {"MUNIMENT_HOME": str(home)}
    assert place(environment, url=URL).find() == Where(URL)
    assert place(environment, url=f"{URL}/", token=TOKEN) == Fixed(Where(URL, None, TOKEN))
    found = place(environment, socket=Path("/run/d.sock"))
    assert found == Fixed(Where("http://localhost", "/run/d.sock"))
    assert found.nobody


@pytest.mark.parametrize(
    "named", [{"url": URL, "socket": "/s"}, {"url": URL, "home": "/h"}, {"socket": "/s", "home": "/h"}]
)
def test_only_one_place_can_be_named(named):
    with pytest.raises(ConfigInvalid):
        place({}, **named)


@pytest.mark.parametrize("url", ["http://h:1", "https://h", "http://[::1]:8", "http://daemon.example:80/"])
def test_a_scheme_a_host_and_a_port_are_an_address(url):
    assert check_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "127.0.0.1:80",
        "ftp://h",
        "http://",
        "http://:80",
        "http://h:0",
        "http://h:99999",
        "http://h:x",
        "http://u:p@h",
        "http://h/path",
        "http://h?q",
        "http://h#f",
        "http://h\\evil",
        "http://h evil",
        "http://h\n",
        "http://[::1",
        "http://[::1::]",
        "http://999.1.1.1",
        "http://.",
    ],
)
def test_anything_else_is_none(url):
    with pytest.raises(ConfigInvalid):
        check_url(url)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_socket_needs_a_path(path):
    with pytest.raises(ConfigInvalid):
        place({}, socket=path)


@pytest.mark.parametrize("token", ["", "two words", "line\n", "é", "x" * 513])
def test_a_token_that_cannot_stand_in_a_header_is_refused_without_being_told(token):
    with pytest.raises(ConfigInvalid) as caught:
        place({}, url=URL, token=token)
    assert not token or token not in str(caught.value)


def test_no_token_is_printed(home):
    assert TOKEN not in repr([Home(home, TOKEN), Home(home).find(), place({}, url=URL, token=TOKEN)])


def test_a_directory_that_is_gone_or_no_name_is_said(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for workspace in None, ".", "a\0b":
        with pytest.raises(ConfigInvalid, match="cannot be found"):
            name_workspace(workspace)
