"""The real service on a kernel without `openat2`, as old ones and the filters of old containers are."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping

from muniment.confine import fence
from muniment.confine.root import choose_resolver
from muniment.tools import service

OPENAT2 = 437
LOAD, IF_EQUAL, RETURN, NUMBER = 0x20, 0x15, 0x06, 0
ALLOW, ENOSYS = 0x7FFF_0000, 0x0005_0000 | errno.ENOSYS
PR_SET_NO_NEW_PRIVS = 38
PROGRAM = b"".join(
    struct.pack("<HBBI", *instruction)
    for instruction in (
        (LOAD, 0, 0, NUMBER),
        (IF_EQUAL, 0, 1, OPENAT2),
        (RETURN, 0, 0, ENOSYS),
        (RETURN, 0, 0, ALLOW),
    )
)

fence.prctl(PR_SET_NO_NEW_PRIVS, 1)
fence.install(PROGRAM)
warm = service.warm


def serve(sock: socket.socket, roots: Mapping[str, int], missing: fence.Missing) -> None:
    """As the service does, on the walk."""
    if choose_resolver().name != "walk":
        os._exit(98)
    service.serve(sock, roots, missing)
