"""A seccomp filter around a process and its forks, like that of a container runtime.

Written for these tests, without code of the inner filter. It answers one system call with an errno; 0 claims
success although nothing was done.
"""

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from muniment.names import FenceLayer
from muniment.sandbox.fence.calls import NUMBERS

LOAD, RETURN, IF_EQUAL = 0x20, 0x06, 0x15
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
AT_NUMBER, AT_FIRST_ARGUMENT, ARGUMENT_BYTES = 0, 16, 8
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
PR_SET_DUMPABLE, PR_SET_MDWE = 4, 65
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CALLS = ("capset", "prctl", "prlimit64", "openat2")
CAPSET, PRCTL, PRLIMIT, OPENAT2 = (NUMBERS[os.uname().machine][name] for name in CALLS)


@dataclass(frozen=True)
class Withheld:
    """A system call that a system blocks.

    Attributes:
        call: number of the blocked call.
        answer: the errno.
        missing: layers that are missing then.
        argument: (index, value): only if the argument has this value.
        unless: (index, value): only if the argument has another value.
        needs_root: only a privileged process is affected.
    """

    call: int
    answer: int
    missing: tuple[FenceLayer, ...]
    argument: tuple[int, int] | None = None
    unless: tuple[int, int] | None = None
    needs_root: bool = False


LANDLOCK, SECCOMP, LIMITS = (FenceLayer.LANDLOCK,), (FenceLayer.SECCOMP,), (FenceLayer.LIMITS,)
UNPRIVILEGED = (FenceLayer.NO_NEW_PRIVS, FenceLayer.LANDLOCK, FenceLayer.SECCOMP)
NO_VERSION_QUERY, NO_LIMIT_QUERY = (0, 0), (2, 0)

CASES = {
    "landlock_unknown": Withheld(CREATE_RULESET, errno.ENOSYS, LANDLOCK),
    "landlock_forbidden": Withheld(CREATE_RULESET, errno.EPERM, LANDLOCK),
    "landlock_switched_off": Withheld(CREATE_RULESET, errno.EOPNOTSUPP, LANDLOCK),
    "landlock_only_told_of": Withheld(CREATE_RULESET, errno.EPERM, LANDLOCK, unless=NO_VERSION_QUERY),
    "landlock_without_rules": Withheld(ADD_RULE, errno.EINVAL, LANDLOCK),
    "landlock_not_entered": Withheld(RESTRICT_SELF, errno.EPERM, LANDLOCK),
    "landlock_pretended": Withheld(RESTRICT_SELF, 0, LANDLOCK),
    "seccomp_unknown": Withheld(PRCTL, errno.EINVAL, SECCOMP, (0, PR_SET_SECCOMP)),
    "seccomp_forbidden": Withheld(PRCTL, errno.EPERM, SECCOMP, (0, PR_SET_SECCOMP)),
    "seccomp_pretended": Withheld(PRCTL, 0, SECCOMP, (0, PR_SET_SECCOMP)),
    "capabilities_kept": Withheld(CAPSET, errno.EPERM, (FenceLayer.CAPABILITIES,)),
    "capabilities_pretended": Withheld(CAPSET, 0, (FenceLayer.CAPABILITIES,), needs_root=True),
    "limits_forbidden": Withheld(PRLIMIT, errno.EPERM, LIMITS, unless=NO_LIMIT_QUERY),
    "limits_pretended": Withheld(PRLIMIT, 0, LIMITS, unless=NO_LIMIT_QUERY),
    # Like old kernels and filters of old containers: files are opened by the walk.
    "openat2_unknown": Withheld(OPENAT2, errno.ENOSYS, ()),
    "dumpable": Withheld(PRCTL, errno.EPERM, (FenceLayer.DUMPABLE,), (0, PR_SET_DUMPABLE)),
    # The outer filter of an ordinary user requires no_new_privs, which the workers inherit.
    "new_privileges": Withheld(PRCTL, errno.EINVAL, UNPRIVILEGED, (0, PR_SET_NO_NEW_PRIVS), needs_root=True),
    "mdwe_unknown": Withheld(PRCTL, errno.EINVAL, (FenceLayer.MDWE,), (0, PR_SET_MDWE)),
}


def program_of(case):
    code = [(LOAD, 0, 0, AT_NUMBER), (IF_EQUAL, 1, 0, case.call), (RETURN, 0, 0, ALLOW)]
    for condition, if_so, if_not in ((case.argument, 1, 0), (case.unless, 0, 1)):
        if condition is not None:
            code += [
                (LOAD, 0, 0, AT_FIRST_ARGUMENT + condition[0] * ARGUMENT_BYTES),
                (IF_EQUAL, if_so, if_not, condition[1]),
                (RETURN, 0, 0, ALLOW),
            ]
    code.append((RETURN, 0, 0, ERRNO | case.answer))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def stand_around(case):
    """Block a call from now on, for this process and all its forks."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = program_of(CASES[case] if isinstance(case, str) else case)
    program = ctypes.byref(Program(len(code) // 8, code))
    if os.geteuid() != 0:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, MODE_FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter cannot be installed")
