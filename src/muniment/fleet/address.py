"""Where the database of a fleet is: a URL that no list of processes shows, and a line that nobody reads.

A1 A password never comes by a command line: it stands in a file, in `MUNIMENT_LEDGER`, or where libpq looks
   for it by itself (`PGPASSFILE`).
A2 Over a network TLS is required, with the server's name checked (`sslmode=verify-full`). Without is only who
   is at the loopback or a Unix socket.

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
from muniment.policy.ownership import check_ours

VARIABLE: Final = "MUNIMENT_LEDGER"
"""Holds the URL, or the path of a file that does."""

MAX_URL_BYTES: Final = 4_096

_SCHEMES: Final = ("postgresql://", "postgres://")
_STRICT: Final = "verify-full"


def ledger_url(flag: str, environment: Mapping[str, str]) -> str:
    """The URL of a fleet's database, with what A2 adds.

    Args:
        flag: what `--ledger` says: a URL without a password, or the path of a file of ours that holds one;
            empty: what `MUNIMENT_LEDGER` says.
        environment: such as `os.environ`.

    Raises:
        ConfigInvalid: it is none, cannot be read, or is not as A1 and A2 want it.
    """
    said = flag or environment.get(VARIABLE, "")
    if not said:
        raise ConfigInvalid(f"no database is named; give --ledger postgresql://…, or a file, or {VARIABLE}")
    if not said.startswith(_SCHEMES):
        said = _read(Path(said))
    elif flag and _parts(said).get("password"):
        raise ConfigInvalid(
            "whoever lists the processes of this machine would read the password in --ledger; put the URL "
            f"into a file and name that, or set {VARIABLE}"
        )
    return _with_tls(said)


def _parts(url: str) -> dict[str, Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        raise ConfigInvalid(
            "this is no URL of a database, such as postgresql://muniment@db.example.org/muniment"
        ) from None


def _with_tls(url: str) -> str:
    from psycopg.conninfo import make_conninfo

    parts = _parts(url)
    if not parts.get("host"):
        raise ConfigInvalid("the URL of the database names no host")
    if parts.get("service"):
        raise ConfigInvalid("the URL of the database names a service; write out the host that it stands for")
    # libpq connects to `hostaddr` where there is one, whatever the host is called.
    if all(_is_here(each) for of in ("host", "hostaddr") if parts.get(of) for each in parts[of].split(",")):
        return url
    asked = parts.setdefault("sslmode", _STRICT)
    if asked != _STRICT:
        raise ConfigInvalid(
            f"sslmode={printable(str(asked))} lets others read along or answer in the database's place; say "
            f"sslmode={_STRICT}, with sslrootcert=FILE where its certificate is of your own authority"
        )
    parts.setdefault("sslrootcert", "system")
    return make_conninfo(**parts)


def _is_here(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            check_ours(path, status)
            if status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
                raise ConfigInvalid(f"{path} may be read by others; run: chmod 600 {path}")
            text = file.read(MAX_URL_BYTES + 1)
    except OSError as error:
        raise ConfigInvalid(f"the file of the database's URL cannot be read: {error.strerror}") from None
    found = text.decode("latin-1").strip()
    if len(text) > MAX_URL_BYTES or not found.startswith(_SCHEMES):
        raise ConfigInvalid(f"{path} holds no URL of a database; put one there, postgresql://…")
    return found
