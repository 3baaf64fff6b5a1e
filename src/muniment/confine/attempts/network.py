"""Attempts on the network and on sockets of this machine."""

from __future__ import annotations

import socket
import struct
from typing import Final

from muniment.confine.attempts.attempt import Attempt, Targets, Untried, call
from muniment.names import FenceLayer

_LANDLOCK: Final = frozenset({FenceLayer.LANDLOCK})
_SECCOMP: Final = frozenset({FenceLayer.SECCOMP})
_EITHER: Final = _LANDLOCK | _SECCOMP
_PRIVILEGE: Final = frozenset({FenceLayer.CAPABILITIES})

_LOOPBACK: Final = b"\x7f\0\0\x01"


def _internet(port: int) -> bytes:
    """`struct sockaddr_in` of a port on the loopback."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + _LOOPBACK + bytes(8)


def _unix(name: bytes) -> bytes:
    """`struct sockaddr_un`."""
    return struct.pack("=H", socket.AF_UNIX) + name


def _socket(family: int, kind: int) -> int:
    return call("socket", family, kind | socket.SOCK_CLOEXEC, 0)


def _connect_tcp(targets: Targets) -> None:
    _connect(socket.AF_INET, _internet(targets.tcp))


def _connect(family: int, address: bytes) -> None:
    call("connect", _socket(family, socket.SOCK_STREAM), address, len(address))


def _listen(_: Targets) -> None:
    fd, address = _socket(socket.AF_INET, socket.SOCK_STREAM), _internet(0)
    call("bind", fd, address, len(address))
    call("listen", fd, 1)


def _send(targets: Targets) -> None:
    fd, address = _socket(socket.AF_INET, socket.SOCK_DGRAM), _internet(targets.udp)
    call("sendto", fd, b"x", 1, 0, address, len(address))


def _send_out_of_band(targets: Targets) -> None:
    """Leave a byte on the worker's own connection, which a reader who does not ask for it passes over."""
    call("sendto", targets.connection, b"x", 1, socket.MSG_OOB, None, 0)


def _connect_to_path(targets: Targets) -> None:
    path = f"{targets.outside}/socket".encode()
    if len(path) >= 108:  # noqa: PLR2004  sockaddr_un holds no longer one
        raise Untried("the temporary directory has too long a name for a socket")
    _connect(socket.AF_UNIX, _unix(path + b"\0"))


NETWORK: Final = (
    Attempt("tcp-connect", "connect to a TCP port", _connect_tcp, "SIGSYS", _EITHER, landlock_abi=4),
    Attempt("tcp-listen", "listen on a TCP port", _listen, "SIGSYS", _EITHER, landlock_abi=4),
    Attempt("udp-send", "send a datagram", _send, "SIGSYS", _SECCOMP),
    Attempt("unix-path", "connect to a socket with a path", _connect_to_path, "SIGSYS", _SECCOMP),
    Attempt(
        "unix-abstract",
        "connect to an abstract socket",
        lambda on: _connect(socket.AF_UNIX, _unix(b"\0" + on.abstract.encode())),
        "SIGSYS",
        _EITHER,
        landlock_abi=6,
    ),
    Attempt(
        "netlink",
        "speak with the kernel's network configuration",
        lambda _: _socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "SIGSYS",
        _SECCOMP,
    ),
    Attempt("out-of-band", "send a byte out of band to the broker", _send_out_of_band, "SIGSYS", _SECCOMP),
    Attempt(
        "packets",
        "read raw packets",
        lambda _: _socket(socket.AF_PACKET, socket.SOCK_RAW),
        "SIGSYS",
        _SECCOMP | _PRIVILEGE,
        privileged=True,
    ),
)
"""All of them."""
