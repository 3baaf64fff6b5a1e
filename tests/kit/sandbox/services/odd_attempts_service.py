"""Workers that violate the protocol of attempts in several ways."""

import os

from muniment.sandbox.fence import layers
from muniment.sandbox.fence.wire import Channel

layers.STEPS = {}


def _asked(sock):
    channel = Channel(sock)
    channel.send({"t": "hello", "missing": {}})
    channel.receive(0)


def silent(sock, roots, missing):  # noqa: ARG001
    _asked(sock)
    while sock.recv(1):
        pass


def leaving(sock, roots, missing):  # noqa: ARG001
    _asked(sock)
    os._exit(3)


def rude(sock, roots, missing):  # noqa: ARG001
    Channel(sock).send({"t": "hello", "missing": {"moat": 1}})


def vague(sock, roots, missing):  # noqa: ARG001
    Channel(sock).send({"t": "hello", "missing": {"landlock": "much"}})
