"""Makes root obey file modes, which some cases rest on: gives up the capabilities that override them.

They leave the effective, permitted and inheritable sets, and the bounding set as well, so that no program
that is executed from here gets them back. For anyone but root this changes nothing.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_OVERRIDES: Final = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_FOWNER": 3}
_PR_CAPBSET_DROP: Final = 24
_VERSION_3: Final = 0x20080522
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def obey_file_modes() -> None:
    """Give the capabilities up, for this process and all that it executes.

    Raises:
        OSError: the kernel refuses.
    """
    if os.geteuid() != 0:
        return
    for number in _OVERRIDES.values():
        _require(_LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    _require(_LIBC.capget(ctypes.byref(header), sets))
    kept = 0xFFFFFFFF & ~sum(1 << number for number in _OVERRIDES.values())
    sets[0].effective &= kept
    sets[0].permitted &= kept
    sets[0].inheritable &= kept
    _require(_LIBC.capset(ctypes.byref(header), sets))


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
