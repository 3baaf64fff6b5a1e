"""The filter as a table: run by an interpreter of classic BPF that shares no code with the compiler."""

import errno
import itertools
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.sandbox.threads import read_errno, run_in_new_thread
from muniment.kernel.syscalls import LIST, Openat2Resolver
from muniment.names import FenceLayer
from muniment.sandbox.fence import layers
from muniment.sandbox.fence.calls import ALLOWED, FATAL, NUMBERS
from muniment.sandbox.fence.layers import OPENERS, FenceInput, build_filter, install_filter

MACHINES = ("x86_64", "aarch64")
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
EXEC = 4
MSG_NOSIGNAL = 1 << 14
HEADERS = {"x86_64": "asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
PR_SET_NO_NEW_PRIVS = 38


def run_filter(code, number, *, arch, args=()):
    """Return the answer of the kernel: the semantics of `linux/filter.h` for the instructions that occur."""
    args = (*args, *[0] * (6 - len(args)))
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(arg & (2**64 - 1) for arg in args))
    instructions = list(struct.iter_unpack("<HBBI", code))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, k = instructions[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x06:
                return k
            case 0x15:
                at += if_true if accumulator == k else if_false
            case 0x35:
                at += if_true if accumulator >= k else if_false
            case 0x45:
                at += if_true if accumulator & k else if_false
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")


def get_answer(machine, name, *args):
    return run_filter(
        build_filter(machine, "openat2"), NUMBERS[machine][name], arch=ARCHITECTURES[machine], args=args
    )


def get_expected(machine, opener, number):
    names = {number: name for name, number in NUMBERS[machine].items()}
    name = names.get(number)
    if name in {*ALLOWED, opener, "mmap"}:
        return ALLOW
    return KILL if name in FATAL or (machine == "x86_64" and number >= 0x40000000) else EPERM


def test_every_system_call_gets_its_tier_and_one_opener():
    for machine, opener in itertools.product(MACHINES, OPENERS):
        code, arch = build_filter(machine, opener), ARCHITECTURES[machine]
        for number in range(1024):
            assert run_filter(code, number, arch=arch) == get_expected(machine, opener, number), number


@given(number=st.integers(0, 1023), arch=st.integers(0, 2**32 - 1))
def test_another_architecture_is_killed_for_any_call(number, arch):
    for machine in MACHINES:
        if arch != ARCHITECTURES[machine]:
            assert run_filter(build_filter(machine, "openat2"), number, arch=arch) == KILL


@given(protection=st.integers(0, 2**64 - 1))
def test_executable_memory_is_never_mapped(protection):
    for machine in MACHINES:
        args = (0, 4096, protection, 0x22, 2**64 - 1, 0)
        is_exec = bool(protection & EXEC)
        assert get_answer(machine, "mmap", *args) == (KILL if is_exec else ALLOW)
        assert get_answer(machine, "mprotect", *args) == (KILL if is_exec else EPERM)


@given(flags=st.integers(0, 2**32 - 1) | st.sampled_from([0, *(1 << bit for bit in range(32))]))
def test_message_flags_are_restricted(flags):
    for machine in MACHINES:
        assert get_answer(machine, "sendto", 3, 0, 1, flags) == (
            ALLOW if flags in {0, MSG_NOSIGNAL} else KILL
        )
        assert get_answer(machine, "recvfrom", 3, 0, 1, flags) == (ALLOW if flags == 0 else KILL)


def test_only_the_opener_names_files_or_processes():
    """The list is short enough to be read; argue here for a longer one."""
    assert set(ALLOWED) == {
        *("sendto", "recvfrom", "read", "pread64", "close", "fstat", "getdents64", "brk", "munmap", "mremap"),
        *("madvise", "futex", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "restart_syscall", "exit"),
        *("exit_group", "clock_gettime", "getrandom", "getpid", "gettid"),
    }
    assert not set(FATAL) & {*ALLOWED, *OPENERS, "mmap", "mprotect"}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_equal_those_of_the_kernel_headers(machine):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").exists():
        pytest.skip("needs a C compiler and the kernel's headers")
    # The options of the generic table that `arch/arm64/include/uapi/asm/unistd.h` enables.
    wanted = ("RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "TIME32_SYSCALLS", "SYS_CLONE3", "MEMFD_SECRET")
    options = [*("-E", "-dM", "-D__BITS_PER_LONG=64"), *(f"-D__ARCH_WANT_{each}" for each in wanted)]
    command = [compiler, *options, "-include", HEADERS[machine], "-x", "c", "/dev/null"]
    macros = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    defined = dict(re.findall(r"^#define __NR(\w+) (\w+)$", macros, re.MULTILINE))

    def number(name):
        value = defined[f"_{name}"]
        return int(value if value.isdigit() else defined[value.removeprefix("__NR")])

    table = {name: number(name) for name in NUMBERS[machine] if f"_{name}" in defined}
    assert table == {name: NUMBERS[machine][name] for name in table}
    # Newer calls than the installed headers cannot be looked up; there are few.
    assert len(NUMBERS[machine]) - len(table) <= 3


def test_only_missing_calls_of_a_machine_are_left_out():
    x86_only = set(NUMBERS["x86_64"]) - set(NUMBERS["aarch64"])
    assert set(NUMBERS["aarch64"]) <= set(NUMBERS["x86_64"])
    assert {"fork", "vfork", "creat", "link", "unlink", "rename", "chmod"} <= x86_only
    for machine in MACHINES:
        assert {*ALLOWED, *OPENERS, "mmap", "mprotect"} <= set(NUMBERS[machine])
        numbers = list(NUMBERS[machine].values())
        assert len(numbers) == len(set(numbers))
    assert set(FATAL) <= set(NUMBERS["x86_64"])


@pytest.mark.skipif(os.uname().machine not in MACHINES, reason="no filter for this machine")
def test_kernel_applies_the_program_only_without_new_privileges():
    def attempt():
        layers.prctl(PR_SET_NO_NEW_PRIVS, 1)
        install_filter(build_filter(os.uname().machine, "openat2"))
        os.close(Openat2Resolver().open(-100, b".", LIST))  # AT_FDCWD
        acts = (Path("/").stat, lambda: os.open("/", os.O_RDONLY), lambda: os.kill(os.getpid(), 0))
        return [*map(read_errno, acts), os.getpid()]

    def attempt_without_capabilities():
        layers.STEPS[FenceLayer.CAPABILITIES](FenceInput([], 0, os.uname().machine))
        return read_errno(lambda: install_filter(build_filter(os.uname().machine, "openat2")))

    assert run_in_new_thread(attempt) == [errno.EPERM, errno.EPERM, errno.EPERM, os.getpid()]
    Path("/").stat()
    assert run_in_new_thread(attempt_without_capabilities) == errno.EACCES
