"""Workers that make no attempt, each in its way."""

import os
import socket
from collections.abc import Mapping

from muniment.confine import fence
from muniment.confine.wire import Channel

fence.STEPS = {}


def _asked(sock: socket.socket) -> None:
    channel = Channel(sock)
    channel.send({"t": "hello", "missing": {}})
    channel.receive(0)


def silent(sock: socket.socket, roots: Mapping[str, int], missing: fence.Missing) -> None:  # noqa: ARG001
    _asked(sock)
    while sock.recv(1):
        pass


def leaving(sock: socket.socket, roots: Mapping[str, int], missing: fence.Missing) -> None:  # noqa: ARG001
    _asked(sock)
    os._exit(3)


def rude(sock: socket.socket, roots: Mapping[str, int], missing: fence.Missing) -> None:  # noqa: ARG001
    Channel(sock).send({"t": "hello", "missing": {"moat": 1}})


def vague(sock: socket.socket, roots: Mapping[str, int], missing: fence.Missing) -> None:  # noqa: ARG001
    Channel(sock).send({"t": "hello", "missing": {"landlock": "much"}})
