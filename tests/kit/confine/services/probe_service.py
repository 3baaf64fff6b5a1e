"""A service for the pool's tests: does what the broker asks, and that is mostly harm.

The zygote imports it from this directory; a command is the header's `do`. It takes the fence away, which
would refuse most of what the pool has to survive.
"""

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muniment.confine import fence
from muniment.confine.wire import Channel

fence.STEPS = {}


def serve(sock: socket.socket, roots: Mapping[str, int], missing: fence.Missing) -> None:  # noqa: ARG001
    """Obey."""
    channel = Channel(sock)
    while True:
        header, body = channel.receive(1 << 24)
        COMMANDS[str(header["do"])](sock, channel, roots, header, body)


def silent(sock: socket.socket, roots: Mapping[str, int], missing: fence.Missing) -> None:  # noqa: ARG001
    """Never speak, read or end."""
    _forever()


def _forever(*_: Any) -> None:
    while True:
        signal.pause()


def _echo(_sock: Any, channel: Channel, _roots: Any, header: dict[str, Any], body: bytes) -> None:
    channel.send({"said": header.get("say")}, body)


def _raw(sock: socket.socket, _channel: Any, _roots: Any, _header: Any, body: bytes) -> None:
    sock.sendall(body)


def _raw_then_exit(sock: socket.socket, _channel: Any, _roots: Any, _header: Any, body: bytes) -> None:
    sock.sendall(body)
    os._exit(0)


def _flood(sock: socket.socket, _channel: Any, _roots: Any, _header: Any, body: bytes) -> None:
    while True:
        sock.sendall(body)


def _drip(sock: socket.socket, _channel: Any, _roots: Any, _header: Any, body: bytes) -> None:
    for byte in body:
        sock.sendall(bytes([byte]))
        time.sleep(0.02)
    _forever()


def _spin(*_: Any) -> None:
    while True:
        pass


def _exit(_sock: Any, _channel: Any, _roots: Any, header: dict[str, Any], _body: Any) -> None:
    os._exit(header["code"])


def _signal(_sock: Any, _channel: Any, _roots: Any, header: dict[str, Any], _body: Any) -> None:
    os.kill(os.getpid(), header["number"])
    _forever()


def _hush(sock: socket.socket, *_: Any) -> None:
    sock.close()
    _forever()


def _smuggle(sock: socket.socket, *_: Any) -> None:
    if os.fork() == 0:
        while sock.recv(1):
            pass
    os._exit(0)


def _look(_sock: Any, channel: Channel, roots: Mapping[str, int], _header: Any, _body: Any) -> None:
    umask = os.umask(0)
    descriptors: dict[str, str] = {}
    for name in range(256):
        try:
            status = os.fstat(name)
        except OSError:
            continue
        descriptors[str(name)] = f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"
    who = {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "cwd": str(Path.cwd())}
    seen = {"environ": dict(os.environ), "descriptors": descriptors, "umask": umask, "path": sys.path}
    seen["roots"] = {scope: os.listdir(fd) for scope, fd in roots.items()}  # noqa: PTH208 - a descriptor
    seen |= {"flags": [sys.flags.isolated, sys.flags.no_site], "modules": sorted(sys.modules)}
    seen["sigint"] = signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    channel.send({**who, **seen, "core": list(resource.getrlimit(resource.RLIMIT_CORE))})


DEEDS = (_echo, _raw, _raw_then_exit, _flood, _drip, _spin, _exit, _signal, _hush, _smuggle, _look)
COMMANDS: dict[str, Callable[..., None]] = {deed.__name__[1:]: deed for deed in DEEDS} | {"hang": _forever}
