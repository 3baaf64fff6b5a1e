"""A token is sent only to the daemon that it belongs to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kit.catching import catch_error
from kit.client.scripted import TOKEN
from muniment.client.discovery import (
    DaemonAddress,
    FixedLocator,
    HomeLocator,
    check_url,
    create_locator,
    resolve_workspace,
)
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
    catch_error(ManagedMemoryUnavailable, HomeLocator(home).find, match=match)


def test_home_yields_address_and_owner_token(home):
    assert HomeLocator(home).find() == DaemonAddress(URL, None, TOKEN)
    assert HomeLocator(home, "other").find() == DaemonAddress(URL, None, "other")
    write_address(home, url=URL, socket=SOCKET)
    (home / "state/token").unlink()
    assert HomeLocator(home).find() == DaemonAddress("http://localhost", SOCKET, None)
    assert HomeLocator(home, "other").find() == DaemonAddress("http://localhost", SOCKET, "other")
    (home / "state/daemon.json").unlink()
    assert HomeLocator(home).find() is None
    assert HomeLocator(home).missing_message == f"no daemon runs for {home}; start one with: muniment serve"


def test_invalid_daemon_files_are_rejected_without_token(home):
    for text in ("", "two words", "x" * 600):
        write(home / "state/token", text)
        assert_unusable(home, r"does not contain a token; restart the daemon$")
    (home / "state/token").unlink()
    assert_unusable(home, r"does not contain a token; restart the daemon$")
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
    assert create_locator(environment, home="/x") == HomeLocator(Path("/x"))
    assert create_locator(environment) == HomeLocator(Path("/m"))
    assert create_locator({"HOME": "/h"}, token="t") == HomeLocator(Path("/h/.muniment"), "t")
    assert create_locator({}) == HomeLocator(Path("~/.muniment").expanduser())
    catch_error(
        ConfigInvalid, create_locator, {}, home="~nobody-of-this-name/x", match="home directory not found"
    )


def test_address_uses_only_given_token_and_excludes_other_places(home):
    environment = {"MUNIMENT_HOME": str(home)}
    assert create_locator(environment, url=URL).find() == DaemonAddress(URL)
    assert create_locator(environment, url=f"{URL}/", token=TOKEN) == FixedLocator(
        DaemonAddress(URL, None, TOKEN)
    )
    found = create_locator(environment, socket=Path("/run/d.sock"))
    assert found == FixedLocator(DaemonAddress("http://localhost", "/run/d.sock"))
    assert found.missing_message
    pairs = {"url": URL, "socket": "/s"}, {"url": URL, "home": "/h"}, {"socket": "/s", "home": "/h"}
    for options in (*pairs, {"socket": ""}, {"socket": "a\0b"}):
        catch_error(ConfigInvalid, create_locator, {}, **options)
    for token in ("", "two words", "line\n", "é", "x" * 513):
        message = str(catch_error(ConfigInvalid, create_locator, {}, url=URL, token=token))
        assert not token or token not in message
    assert TOKEN not in repr(
        [HomeLocator(home, TOKEN), HomeLocator(home).find(), create_locator({}, url=URL, token=TOKEN)]
    )


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
        catch_error(ConfigInvalid, check_url, url)


def test_missing_or_invalid_directory_is_an_error(tmp_path, monkeypatch):
    missing = tmp_path / "gone"
    missing.mkdir()
    monkeypatch.chdir(missing)
    missing.rmdir()
    for workspace in None, ".", "a\0b":
        catch_error(ConfigInvalid, resolve_workspace, workspace, match="not found")
