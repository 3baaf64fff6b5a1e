"""Where the database of a fleet is: no password on a command line, no line that others read, no open file."""

from __future__ import annotations

import os

import pytest
from psycopg.conninfo import conninfo_to_dict

from kit.raising import raised
from muniment.errors import ConfigInvalid
from muniment.fleet.address import MAX_URL_BYTES, VARIABLE, ledger_url

HERE = "postgresql://muniment@127.0.0.1/muniment"
SECRET = "postgresql://muniment:canary-7f3a@127.0.0.1/muniment"


def a_file(tmp_path, content, mode=0o600):
    path = tmp_path / "ledger"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.threat("T-FLT-08", control="argument_passwords")
def test_a_password_is_taken_from_a_file_or_the_environment_and_never_from_a_command_line(tmp_path):
    assert ledger_url("", {VARIABLE: SECRET}) == SECRET
    assert ledger_url(a_file(tmp_path, f"{SECRET}\n"), {}) == SECRET
    assert ledger_url("", {VARIABLE: a_file(tmp_path, SECRET)}) == SECRET
    for said in (
        SECRET,
        "postgres://muniment:canary-7f3a@127.0.0.1/muniment",
        "postgresql://127.0.0.1/muniment?password=canary-7f3a",
        "postgresql://muniment:canary%2D7f3a@/muniment?host=/run/postgresql",
    ):
        told = raised(ConfigInvalid, ledger_url, said, {}, match="could read the password")
        assert "canary" not in str(told)
    assert ledger_url(HERE, {VARIABLE: SECRET}) == HERE  # What is said goes first.


@pytest.mark.threat("T-FLT-08", control="private_urls")
def test_a_file_that_others_may_read_or_write_or_that_holds_no_url_is_refused_and_not_quoted(tmp_path):
    for mode in (0o640, 0o604, 0o644):
        raised(ConfigInvalid, ledger_url, a_file(tmp_path, SECRET, mode), {}, match="chmod 600")
    for mode in (0o620, 0o602, 0o666):
        raised(ConfigInvalid, ledger_url, a_file(tmp_path, SECRET, mode), {})
    for content in ("", "canary-7f3a", "http://canary-7f3a", "\0", SECRET + "x" * MAX_URL_BYTES):
        told = raised(
            ConfigInvalid, ledger_url, a_file(tmp_path, content), {}, match="contains no database URL"
        )
        assert "canary" not in str(told)
    for path in (tmp_path / "none", tmp_path):
        raised(ConfigInvalid, ledger_url, str(path), {}, match="cannot be read")
    if os.geteuid() == 0:  # Only root may give a file away.
        os.chown(a_file(tmp_path, SECRET), 4242, 4242)
        raised(ConfigInvalid, ledger_url, str(tmp_path / "ledger"), {})
    raised(ConfigInvalid, ledger_url, "", {}, match="missing database")
    raised(ConfigInvalid, ledger_url, "", {VARIABLE: ""}, match="missing database")


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
def test_over_a_network_the_servers_name_is_checked_and_nothing_less_can_be_asked_for(host, is_here):
    url = f"postgresql://muniment@{host}/muniment"
    got = conninfo_to_dict(ledger_url(url, {}))
    assert (got.get("sslmode"), got.get("sslrootcert")) == (
        (None, None) if is_here else ("verify-full", "system")
    )
    for less in ("disable", "allow", "prefer", "require", "verify-ca", "VERIFY-FULL", ""):
        asked = f"{url}?sslmode={less}"
        if is_here:
            assert ledger_url(asked, {}) == asked
        else:
            raised(ConfigInvalid, ledger_url, asked, {}, match="verify-full")
    own = conninfo_to_dict(ledger_url(f"{url}?sslmode=verify-full&sslrootcert=/etc/own.pem", {}))
    assert (own["sslmode"], own["sslrootcert"]) == ("verify-full", "/etc/own.pem")


@pytest.mark.threat("T-FLT-08", control="verified_servers")
def test_a_socket_of_this_machine_needs_no_tls_and_a_host_must_be_named_and_none_by_another_way():
    socket = "postgresql://muniment@/muniment?host=/run/postgresql"
    assert ledger_url(socket, {}) == socket
    raised(ConfigInvalid, ledger_url, "postgresql:///muniment", {}, match="contains no host")
    raised(ConfigInvalid, ledger_url, "postgresql://[/muniment", {}, match="invalid database URL")
    raised(ConfigInvalid, ledger_url, "postgresql://127.0.0.1/m?nonsense=1", {}, match="invalid database URL")
    # libpq goes where `hostaddr` says, whatever the host is called.
    elsewhere = "postgresql://muniment@localhost/muniment?hostaddr=203.0.113.7"
    assert conninfo_to_dict(ledger_url(elsewhere, {})).get("sslmode") == "verify-full"
    raised(ConfigInvalid, ledger_url, f"{elsewhere}&sslmode=disable", {}, match="verify-full")


def test_what_the_environment_adds_for_libpq_does_not_weaken_what_was_asked_for(monkeypatch):
    """`PGSSLMODE` counts only where a URL says nothing, and ours always does."""
    monkeypatch.setenv("PGSSLMODE", "disable")
    assert conninfo_to_dict(ledger_url("postgresql://db.example.org/m", {}))["sslmode"] == "verify-full"


def test_an_address_in_a_service_file_is_none_that_could_be_judged():
    """What it names is read by libpq alone, behind our back."""
    raised(ConfigInvalid, ledger_url, "postgresql://localhost/m?service=elsewhere", {}, match="service")
