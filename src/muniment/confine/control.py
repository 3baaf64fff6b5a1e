"""Small messages with descriptors, between the broker and its zygote, over SEQPACKET sockets.

`socket.send_fds` and `socket.recv_fds` lose their `flags` on the way in CPython 3.11, and with them
MSG_CMSG_CLOEXEC: a pidfd would be inherited by whatever the broker starts next. Hence these two.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence
from typing import Final

MAX_CONTROL_BYTES: Final = 16 * 1024
"""Bytes of one message."""

MAX_ROOTS: Final = 64
"""Roots of one worker; the kernel passes at most 253 descriptors in a message (unix(7), SCM_MAX_FD)."""

FDS_BEFORE_ROOTS: Final = 2
"""Descriptors that stand before the roots in a request: the report socket and the worker's socket."""

_MAX_FDS: Final = FDS_BEFORE_ROOTS + MAX_ROOTS


def send_with_fds(sock: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Send one message and copies of `fds`; raises as `socket.sendmsg`, and no SIGPIPE."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    sock.sendmsg([message], [rights], socket.MSG_NOSIGNAL)


def receive_with_fds(sock: socket.socket) -> tuple[bytes, list[int], bool]:
    """Receive one message.

    Returns:
        The message, empty at the end of file; its descriptors, close-on-exec and the caller's to close;
        whether both came whole.

    Raises:
        OSError: as `socket.recvmsg`.
    """
    fds = array.array("i")
    message, ancillary, flags, _ = sock.recvmsg(
        MAX_CONTROL_BYTES, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for _, _, data in ancillary:
        # Of no other kind than SCM_RIGHTS: nobody asks for credentials on these sockets.
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)
