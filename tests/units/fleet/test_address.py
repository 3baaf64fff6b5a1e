"""The URL of a fleet's database: no password in arguments, no public file, no unencrypted connection."""

from __future__ import annotations

import os

import pytest
from psycopg.conninfo import conninfo_to_dict

from kit.catching import catch_error
from muniment.errors import ConfigInvalid
from muniment.fleet.address import MAX_URL_BYTES, VARIABLE, load_ledger_url

HERE = "postgresql://muniment@127.0.0.1/muniment"
SECRET = "postgresql://muniment:canary-7f3a@127.0.0.1/muniment"


def write_url_file(tmp_path, content, mode=0o600):
    path = tmp_path / "ledger"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.threat("T-FLT-08", control="argument_passwords")
def test_password_is_rejected_only_on_command_line(tmp_path):
    assert load_ledger_url("", {VARIABLE: SECRET}) == SECRET
    assert load_ledger_url(write_url_file(tmp_path, f"{SECRET}\n"), {}) == SECRET
    assert load_ledger_url("", {VARIABLE: write_url_file(tmp_path, SECRET)}) == SECRET
    for url in (
        SECRET,
        "postgres://muniment:canary-7f3a@127.0.0.1/muniment",
        "postgresql://127.0.0.1/muniment?password=canary-7f3a",
        "postgresql://muniment:canary%2D7f3a@/muniment?host=/run/postgresql",
    ):
        error = catch_error(ConfigInvalid, load_ledger_url, url, {}, match="could read the password")
        assert "canary" not in str(error)
    assert load_ledger_url(HERE, {VARIABLE: SECRET}) == HERE  # The argument takes precedence.


@pytest.mark.threat("T-FLT-08", control="private_urls")
def test_url_file_must_be_private_and_valid_and_is_not_quoted(tmp_path):
    for mode in (0o640, 0o604, 0o644):
        catch_error(
            ConfigInvalid, load_ledger_url, write_url_file(tmp_path, SECRET, mode), {}, match="chmod 600"
        )
    for mode in (0o620, 0o602, 0o666):
        catch_error(ConfigInvalid, load_ledger_url, write_url_file(tmp_path, SECRET, mode), {})
    for content in ("", "canary-7f3a", "http://canary-7f3a", "\0", SECRET + "x" * MAX_URL_BYTES):
        error = catch_error(
            ConfigInvalid,
            load_ledger_url,
            write_url_file(tmp_path, content),
            {},
            match="contains no database URL",
        )
        assert "canary" not in str(error)
    for path in (tmp_path / "none", tmp_path):
        catch_error(ConfigInvalid, load_ledger_url, str(path), {}, match="cannot be read")
    if os.geteuid() == 0:  # Only root may change the owner of a file.
        os.chown(write_url_file(tmp_path, SECRET), 4242, 4242)
        catch_error(ConfigInvalid, load_ledger_url, str(tmp_path / "ledger"), {})
    catch_error(ConfigInvalid, load_ledger_url, "", {}, match="missing database")
    catch_error(ConfigInvalid, load_ledger_url, "", {VARIABLE: ""}, match="missing database")


HOSTS = {
    "localhost": True,
    "127.0.0.1": True,
    "127.9.9.9": True,
    "[::1]": True,
    "127.0.0.1,localhost": True,
    "db.example.org": False,
    "10.0.0.1": False,
    "192.168.1.2": False,
    "[2001:db8::1]": False,
    "localhost.example.org": False,
    "127.0.0.1.example.org": False,
    "127.0.0.1,db.example.org": False,
}


@pytest.mark.threat("T-FLT-08", control="verified_servers")
@pytest.mark.parametrize(("host", "is_here"), HOSTS.items())
def test_remote_host_requires_verified_tls(host, is_here):
    url = f"postgresql://muniment@{host}/muniment"
    got = conninfo_to_dict(load_ledger_url(url, {}))
    assert (got.get("sslmode"), got.get("sslrootcert")) == (
        (None, None) if is_here else ("verify-full", "system")
    )
    for less in ("disable", "allow", "prefer", "require", "verify-ca", "VERIFY-FULL", ""):
        url_with_mode = f"{url}?sslmode={less}"
        if is_here:
            assert load_ledger_url(url_with_mode, {}) == url_with_mode
        else:
            catch_error(ConfigInvalid, load_ledger_url, url_with_mode, {}, match="verify-full")
    own = conninfo_to_dict(load_ledger_url(f"{url}?sslmode=verify-full&sslrootcert=/etc/own.pem", {}))
    assert (own["sslmode"], own["sslrootcert"]) == ("verify-full", "/etc/own.pem")


@pytest.mark.threat("T-FLT-08", control="verified_servers")
def test_local_socket_needs_no_tls_and_host_is_required():
    socket = "postgresql://muniment@/muniment?host=/run/postgresql"
    assert load_ledger_url(socket, {}) == socket
    catch_error(ConfigInvalid, load_ledger_url, "postgresql:///muniment", {}, match="contains no host")
    catch_error(ConfigInvalid, load_ledger_url, "postgresql://[/muniment", {}, match="invalid database URL")
    catch_error(
        ConfigInvalid,
        load_ledger_url,
        "postgresql://127.0.0.1/m?nonsense=1",
        {},
        match="invalid database URL",
    )
    # libpq connects to `hostaddr` and ignores the name of the host.
    remote_url = "postgresql://muniment@localhost/muniment?hostaddr=203.0.113.7"
    assert conninfo_to_dict(load_ledger_url(remote_url, {})).get("sslmode") == "verify-full"
    catch_error(ConfigInvalid, load_ledger_url, f"{remote_url}&sslmode=disable", {}, match="verify-full")


def test_libpq_environment_does_not_weaken_tls(monkeypatch):
    """Set the mode in every URL, since `PGSSLMODE` counts only for URLs without one."""
    monkeypatch.setenv("PGSSLMODE", "disable")
    assert conninfo_to_dict(load_ledger_url("postgresql://db.example.org/m", {}))["sslmode"] == "verify-full"


def test_service_file_in_url_is_rejected():
    """Reject service files: only libpq reads them, so the address cannot be checked."""
    catch_error(
        ConfigInvalid, load_ledger_url, "postgresql://localhost/m?service=elsewhere", {}, match="service"
    )
