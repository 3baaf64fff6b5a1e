"""Names of the system calls that a worker may make or must never make, and their numbers on both machines.

If the kernel headers are installed, `tests/units/sandbox/test_seccomp.py` compares this module with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _parse_numbers(text: str) -> Mapping[str, int]:
    return {name: int(number) for name, _, number in (pair.partition("=") for pair in text.split())}


ALLOWED: Final = _split_names(
    """
    sendto recvfrom fstat pread64 read close getdents64 brk munmap mremap madvise futex rt_sigaction
    rt_sigprocmask rt_sigreturn restart_syscall exit exit_group clock_gettime getrandom getpid gettid
    """
)
"""System calls that a worker may make. The filter adds `mmap` and one call that opens files. It also checks
the arguments of some of these calls."""

FATAL: Final = _split_names(
    """
    socket socketpair connect bind listen sendmsg sendmmsg recvmmsg execve execveat fork vfork clone
    clone3 ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_open
    pidfd_getfd pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo mount umount2 pivot_root chroot
    move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr swapon swapoff quotactl
    quotactl_fd unshare setns open_by_handle_at name_to_handle_at io_uring_setup io_uring_enter
    io_uring_register io_setup io_submit bpf perf_event_open userfaultfd keyctl add_key request_key
    memfd_create memfd_secret personality init_module finit_module delete_module kexec_load
    kexec_file_load reboot iopl ioperm modify_ldt setuid setgid setreuid setregid setresuid setresgid
    setgroups setfsuid setfsgid capset setdomainname sethostname link linkat symlink symlinkat rename
    renameat renameat2 unlink unlinkat mkdir mkdirat rmdir mknod mknodat creat truncate fallocate chmod
    fchmod fchmodat chown fchown lchown fchownat utime utimes utimensat futimesat setxattr lsetxattr
    fsetxattr removexattr lremovexattr fremovexattr fanotify_init fanotify_mark shmget shmat shmctl
    semget semop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink syslog acct vhangup seccomp splice
    tee vmsplice sendfile copy_file_range timer_create clock_settime settimeofday adjtimex clock_adjtime
    """
)
"""System calls that kill a worker. They start, trace or access other processes, use the network, change
files, names, mounts or identities, or use kernel interfaces with a history of vulnerabilities."""

NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": _parse_numbers(
        """
        sendto=44 recvfrom=45 fstat=5 pread64=17 read=0 close=3 getdents64=217 brk=12 munmap=11
        mremap=25 madvise=28 futex=202 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15
        restart_syscall=219 exit=60 exit_group=231 clock_gettime=228 getrandom=318 getpid=39 gettid=186
        socket=41 socketpair=53 connect=42 bind=49 listen=50 sendmsg=46 sendmmsg=307 recvmmsg=299
        execve=59 execveat=322 fork=57 vfork=58 clone=56 clone3=435 ptrace=101 process_vm_readv=310
        process_vm_writev=311 process_madvise=440 process_mrelease=448 kcmp=312 pidfd_open=434
        pidfd_getfd=438 pidfd_send_signal=424 rt_sigqueueinfo=129 rt_tgsigqueueinfo=297 mount=165
        umount2=166 pivot_root=155 chroot=161 move_mount=429 open_tree=428 fsopen=430 fsconfig=431
        fsmount=432 fspick=433 mount_setattr=442 swapon=167 swapoff=168 quotactl=179 quotactl_fd=443
        unshare=272 setns=308 open_by_handle_at=304 name_to_handle_at=303 io_uring_setup=425
        io_uring_enter=426 io_uring_register=427 io_setup=206 io_submit=209 bpf=321 perf_event_open=298
        userfaultfd=323 keyctl=250 add_key=248 request_key=249 memfd_create=319 memfd_secret=447
        personality=135 init_module=175 finit_module=313 delete_module=176 kexec_load=246
        kexec_file_load=320 reboot=169 iopl=172 ioperm=173 modify_ldt=154 setuid=105 setgid=106
        setreuid=113 setregid=114 setresuid=117 setresgid=119 setgroups=116 setfsuid=122 setfsgid=123
        capset=126 setdomainname=171 sethostname=170 link=86 linkat=265 symlink=88 symlinkat=266
        rename=82 renameat=264 renameat2=316 unlink=87 unlinkat=263 mkdir=83 mkdirat=258 rmdir=84
        mknod=133 mknodat=259 creat=85 truncate=76 fallocate=285 chmod=90 fchmod=91 fchmodat=268
        chown=92 fchown=93 lchown=94 fchownat=260 utime=132 utimes=235 utimensat=280 futimesat=261
        setxattr=188 lsetxattr=189 fsetxattr=190 removexattr=197 lremovexattr=198 fremovexattr=199
        fanotify_init=300 fanotify_mark=301 shmget=29 shmat=30 shmctl=31 semget=64 semop=65 semctl=66
        msgget=68 msgsnd=69 msgrcv=70 msgctl=71 mq_open=240 mq_unlink=241 syslog=103 acct=163
        vhangup=153 seccomp=317 splice=275 tee=276 vmsplice=278 sendfile=40 copy_file_range=326
        timer_create=222 clock_settime=227 settimeofday=164 adjtimex=159 clock_adjtime=305 openat2=437
        openat=257 mmap=9 mprotect=10 getppid=110 newfstatat=262 faccessat=269 readlinkat=267 chdir=80
        write=1 kill=62 prctl=157 prlimit64=302
        """
    ),
    "aarch64": _parse_numbers(
        """
        sendto=206 recvfrom=207 fstat=80 pread64=67 read=63 close=57 getdents64=61 brk=214 munmap=215
        mremap=216 madvise=233 futex=98 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139
        restart_syscall=128 exit=93 exit_group=94 clock_gettime=113 getrandom=278 getpid=172 gettid=178
        socket=198 socketpair=199 connect=203 bind=200 listen=201 sendmsg=211 sendmmsg=269 recvmmsg=243
        execve=221 execveat=281 clone=220 clone3=435 ptrace=117 process_vm_readv=270
        process_vm_writev=271 process_madvise=440 process_mrelease=448 kcmp=272 pidfd_open=434
        pidfd_getfd=438 pidfd_send_signal=424 rt_sigqueueinfo=138 rt_tgsigqueueinfo=240 mount=40
        umount2=39 pivot_root=41 chroot=51 move_mount=429 open_tree=428 fsopen=430 fsconfig=431
        fsmount=432 fspick=433 mount_setattr=442 swapon=224 swapoff=225 quotactl=60 quotactl_fd=443
        unshare=97 setns=268 open_by_handle_at=265 name_to_handle_at=264 io_uring_setup=425
        io_uring_enter=426 io_uring_register=427 io_setup=0 io_submit=2 bpf=280 perf_event_open=241
        userfaultfd=282 keyctl=219 add_key=217 request_key=218 memfd_create=279 memfd_secret=447
        personality=92 init_module=105 finit_module=273 delete_module=106 kexec_load=104
        kexec_file_load=294 reboot=142 setuid=146 setgid=144 setreuid=145 setregid=143 setresuid=147
        setresgid=149 setgroups=159 setfsuid=151 setfsgid=152 capset=91 setdomainname=162
        sethostname=161 linkat=37 symlinkat=36 renameat=38 renameat2=276 unlinkat=35 mkdirat=34
        mknodat=33 truncate=45 fallocate=47 fchmod=52 fchmodat=53 fchown=55 fchownat=54 utimensat=88
        setxattr=5 lsetxattr=6 fsetxattr=7 removexattr=14 lremovexattr=15 fremovexattr=16
        fanotify_init=262 fanotify_mark=263 shmget=194 shmat=196 shmctl=195 semget=190 semop=193
        semctl=191 msgget=186 msgsnd=189 msgrcv=188 msgctl=187 mq_open=180 mq_unlink=181 syslog=116
        acct=89 vhangup=58 seccomp=277 splice=76 tee=77 vmsplice=75 sendfile=71 copy_file_range=285
        timer_create=107 clock_settime=112 settimeofday=170 adjtimex=171 clock_adjtime=266 openat2=437
        openat=56 mmap=222 mprotect=226 getppid=173 newfstatat=79 faccessat=48 readlinkat=78 chdir=49
        write=64 kill=129 prctl=167 prlimit64=261
        """
    ),
}
"""The number of each system call, by machine. A call that a machine does not have is left out."""
