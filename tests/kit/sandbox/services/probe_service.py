"""A service for tests of the pool: executes commands of the broker, most of them harmful.

The zygote imports it from this directory; the header field `do` is the command. It removes the fence, because
the fence would deny most commands.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

from muniment.sandbox.fence import layers
from muniment.sandbox.fence.wire import Channel

layers.STEPS = {}


def serve(sock, roots, missing):  # noqa: ARG001
    """Execute commands."""
    channel = Channel(sock)
    while True:
        header, body = channel.receive(1 << 24)
        COMMANDS[str(header["do"])](sock, channel, roots, header, body)


def silent(sock, roots, missing):  # noqa: ARG001
    """Never send, read or end."""
    _forever()


def _forever(*_):
    while True:
        signal.pause()


def _echo(_sock, channel, _roots, header, body):
    channel.send({"said": header.get("say")}, body)


def _raw(sock, _channel, _roots, _header, body):
    sock.sendall(body)


def _raw_then_exit(sock, _channel, _roots, _header, body):
    sock.sendall(body)
    os._exit(0)


def _flood(sock, _channel, _roots, _header, body):
    while True:
        sock.sendall(body)


def _drip(sock, _channel, _roots, _header, body):
    for byte in body:
        sock.sendall(bytes([byte]))
        time.sleep(0.02)
    _forever()


def _spin(*_):
    while True:
        pass


def _exit(_sock, _channel, _roots, header, _body):
    os._exit(header["code"])


def _signal(_sock, _channel, _roots, header, _body):
    os.kill(os.getpid(), header["number"])
    _forever()


def _hush(sock, *_):
    sock.close()
    _forever()


def _smuggle(sock, *_):
    if os.fork() == 0:
        while sock.recv(1):
            pass
    os._exit(0)


def _look(_sock, channel, roots, _header, _body):
    umask = os.umask(0)
    descriptors = {}
    for name in range(256):
        try:
            status = os.fstat(name)
        except OSError:
            continue
        descriptors[str(name)] = f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"
    who = {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "cwd": str(Path.cwd())}
    seen = {"environ": dict(os.environ), "descriptors": descriptors, "umask": umask, "path": sys.path}
    seen["roots"] = {scope: os.listdir(fd) for scope, fd in roots.items()}  # noqa: PTH208 - a descriptor
    seen["flags"] = [sys.flags.isolated, sys.flags.no_site]
    seen["sigint"] = signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    channel.send({**who, **seen, "core": list(resource.getrlimit(resource.RLIMIT_CORE))})


DEEDS = (_echo, _raw, _raw_then_exit, _flood, _drip, _spin, _exit, _signal, _hush, _smuggle, _look)
COMMANDS = {deed.__name__[1:]: deed for deed in DEEDS} | {"hang": _forever}
