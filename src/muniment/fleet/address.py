"""The database URL of a fleet: hidden from process lists, and with encrypted connections.

A1 A password is never on a command line: it is in a file, in `MUNIMENT_LEDGER`, or where libpq reads it
   (`PGPASSFILE`).
A2 Over a network, TLS is required, including the check of the server's name (`sslmode=verify-full`). Only
   connections to the loopback and to Unix sockets work without TLS.

Source: postgresql.org/docs/current/libpq-ssl.html, "Protection Provided in Different Modes".
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from muniment.errors import ConfigInvalid, printable
from muniment.policy.ownership import check_owner_and_mode

VARIABLE: Final = "MUNIMENT_LEDGER"
"""Environment variable that contains the database URL, or the path of a file that contains the URL."""

MAX_URL_BYTES: Final = 4_096

_SCHEMES: Final = ("postgresql://", "postgres://")
_STRICT: Final = "verify-full"


def load_ledger_url(flag: str, environment: Mapping[str, str]) -> str:
    """Return the URL of a fleet's database, with options that require TLS over a network.

    Args:
        flag: value of `--ledger`: a URL without a password, or the path of a private file that contains a
            URL; empty: use the variable `MUNIMENT_LEDGER` of `environment`.
        environment: such as `os.environ`.

    Raises:
        ConfigInvalid: the URL is missing or invalid, cannot be read, contains a password on the command line,
            or allows unencrypted connections over a network.
    """
    configured = flag or environment.get(VARIABLE, "")
    if not configured:
        raise ConfigInvalid(f"missing database URL; use --ledger URL or --ledger FILE, or set {VARIABLE}")
    if not configured.startswith(_SCHEMES):
        configured = _read_url_file(Path(configured))
    elif flag and _parse_url(configured).get("password"):
        raise ConfigInvalid(
            "other users could read the password of --ledger in the process list; write the URL "
            f"to a file and use its path, or set {VARIABLE}"
        )
    return _require_tls(configured)


def _parse_url(url: str) -> dict[str, Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        raise ConfigInvalid(
            "invalid database URL: use one such as postgresql://muniment@db.example.org/muniment"
        ) from None


def _require_tls(url: str) -> str:
    from psycopg.conninfo import make_conninfo

    parts = _parse_url(url)
    if not parts.get("host"):
        raise ConfigInvalid(
            "the database URL contains no host; use one such as postgresql://db.example.org/muniment"
        )
    if parts.get("service"):
        raise ConfigInvalid("the database URL contains a service; use its host instead")
    # libpq connects to `hostaddr` if it is set, and ignores the host.
    if all(_is_local(each) for of in ("host", "hostaddr") if parts.get(of) for each in parts[of].split(",")):
        return url
    sslmode = parts.setdefault("sslmode", _STRICT)
    if sslmode != _STRICT:
        raise ConfigInvalid(
            f"sslmode={printable(str(sslmode))} does not prevent eavesdropping or a false server; use "
            f"sslmode={_STRICT}, with sslrootcert=FILE if your own authority issued the certificate"
        )
    parts.setdefault("sslrootcert", "system")
    return make_conninfo(**parts)


def _is_local(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_url_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            check_owner_and_mode(path, status)
            if status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
                raise ConfigInvalid(f"{path} is readable by others; run: chmod 600 {path}")
            text = file.read(MAX_URL_BYTES + 1)
    except OSError as error:
        raise ConfigInvalid(f"the file with the database URL cannot be read: {error.strerror}") from None
    found = text.decode("latin-1").strip()
    if len(text) > MAX_URL_BYTES or not found.startswith(_SCHEMES):
        raise ConfigInvalid(f"{path} contains no database URL; write one to it: postgresql://…")
    return found
