"""A token is sent only to the daemon that it belongs to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kit.client.scripted import TOKEN
from kit.raising import raised
from muniment.client.finding import Fixed, Home, Where, check_url, name_workspace, place
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable

URL = "http://127.0.0.1:4242"
SOCKET = "/run/daemon.sock"
NOT_PRIVATE = "is not a private file of this user"


def write(path, text, mode=0o600):
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def home(tmp_path):
    write(tmp_path / "state/token", f"{TOKEN}\n")
    write_address(tmp_path, url=URL, socket=None, pid=1, epoch="0badcafe")
    return tmp_path


def write_address(home, **members):
    write(home / "state/daemon.json", json.dumps(members))


def assert_unusable(home, match):
    raised(ManagedMemoryUnavailable, Home(home).find, match=match)


def test_home_yields_address_and_owner_token(home):
    assert Home(home).find() == Where(URL, None, TOKEN)
    assert Home(home, "other").find() == Where(URL, None, "other")
    write_address(home, url=URL, socket=SOCKET)
    (home / "state/token").unlink()
    assert Home(home).find() == Where("http://localhost", SOCKET, None)
    assert Home(home, "other").find() == Where("http://localhost", SOCKET, "other")
    (home / "state/daemon.json").unlink()
    assert Home(home).find() is None
    assert Home(home).nobody == f"no daemon runs for {home}; start one with: muniment serve"


def test_invalid_daemon_files_are_rejected_without_token(home):
    for text in ("", "two words", "x" * 600):
        write(home / "state/token", text)
        assert_unusable(home, r"does not contain a token$")
    (home / "state/token").unlink()
    assert_unusable(home, r"does not contain a token$")
    wrong = '{"url": "ftp://x"}', '{"url": 7}', '{"url": "", "socket": 7}'
    for text in ("", "[]", "{}", "null", "\xff", *wrong):
        write(home / "state/daemon.json", text)
        assert_unusable(home, r"daemon\.json: does not contain the daemon")


@pytest.mark.parametrize("name", ["daemon.json", "token"])
def test_daemon_file_shared_with_others_is_rejected(home, tmp_path, monkeypatch, name):
    path = home / "state" / name
    for mode in (0o644, 0o660, 0o602, 0o640, 0o620, 0o604):
        path.chmod(mode)
        assert_unusable(home, f"{name}: {NOT_PRIVATE}")
    path.chmod(0o600)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4_000_000)
        assert_unusable(home, NOT_PRIVATE)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert_unusable(home, "cannot be read")
    for make in (lambda: os.mkfifo(path, 0o600), lambda: path.mkdir(mode=0o700)):
        path.unlink()
        make()
        assert_unusable(home, "is not a private file")


def test_home_is_argument_then_environment():
    environment = {"MUNIMENT_HOME": "/m", "HOME": "/h"}
    assert place(environment, home="/x") == Home(Path("/x"))
    assert place(environment) == Home(Path("/m"))
    assert place({"HOME": "/h"}, token="t") == Home(Path("/h/.muniment"), "t")
    assert place({}) == Home(Path("~/.muniment").expanduser())
    raised(ConfigInvalid, place, {}, home="~nobody-of-this-name/x", match="home directory not found")


def test_address_uses_only_given_token_and_excludes_other_places(home):
    environment = {"MUNIMENT_HOME": str(home)}
    assert place(environment, url=URL).find() == Where(URL)
    assert place(environment, url=f"{URL}/", token=TOKEN) == Fixed(Where(URL, None, TOKEN))
    found = place(environment, socket=Path("/run/d.sock"))
    assert found == Fixed(Where("http://localhost", "/run/d.sock"))
    assert found.nobody
    pairs = {"url": URL, "socket": "/s"}, {"url": URL, "home": "/h"}, {"socket": "/s", "home": "/h"}
    for options in (*pairs, {"socket": ""}, {"socket": "a\0b"}):
        raised(ConfigInvalid, place, {}, **options)
    for token in ("", "two words", "line\n", "é", "x" * 513):
        message = str(raised(ConfigInvalid, place, {}, url=URL, token=token))
        assert not token or token not in message
    assert TOKEN not in repr([Home(home, TOKEN), Home(home).find(), place({}, url=URL, token=TOKEN)])


def test_url_is_scheme_host_and_port_only():
    for url in ("http://h:1", "https://h", "http://[::1]:8", "http://daemon.example:80/"):
        assert check_url(url) == url.rstrip("/")
    assert check_url("http://localhost:1") == check_url("http://LOCALHOST:1/") == "http://127.0.0.1:1"
    assert check_url("https://localhost") == "https://localhost"
    for url in (
        *(None, "", "127.0.0.1:80", "ftp://h", "http://", "http://:80", "http://h:0", "http://h:99999"),
        *("http://h:x", "http://u:p@h", "http://h/path", "http://h?q", "http://h#f", "http://h\\evil"),
        *("http://h evil", "http://h\n", "http://[::1", "http://[::1::]", "http://999.1.1.1", "http://."),
    ):
        raised(ConfigInvalid, check_url, url)


def test_missing_or_invalid_directory_is_an_error(tmp_path, monkeypatch):
    missing = tmp_path / "gone"
    missing.mkdir()
    monkeypatch.chdir(missing)
    missing.rmdir()
    for workspace in None, ".", "a\0b":
        raised(ConfigInvalid, name_workspace, workspace, match="not found")
