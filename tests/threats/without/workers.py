"""The worker and what it says, without what keeps both within bounds."""

from __future__ import annotations

import signal

from threats.switches import Patches, control


class _Module:
    """A module, with some names meaning something else."""

    def __init__(self, real, **names):
        self._real, self._names = real, names

    def __getattr__(self, name):
        return self._names.get(name) or getattr(self._real, name)


@control()
def clean_environment(off: Patches) -> None:
    """The zygote is started with the broker's environment."""

    def make(real):
        def popen(command, **terms):
            del terms["env"]
            return real.Popen(command, **terms)

        return _Module(real, Popen=popen)

    off.wrap("muniment.confine.pool:subprocess", make)


@control()
def isolated_imports(off: Patches) -> None:
    """The zygote looks for modules as any Python does, in the current directory first."""

    def make(real):
        def popen(command, **terms):
            return real.Popen(
                [each for each in command if each not in {"-I", "-S"}], **{**terms, "env": None, "cwd": None}
            )

        return _Module(real, Popen=popen)

    off.wrap("muniment.confine.pool:subprocess", make)


@control(in_workers=True)
def settled_zygote(off: Patches) -> None:
    """The zygote keeps what it was started with: environment, directory and signals."""
    clean_environment(off)
    off.put("muniment.confine.zygote:_settle", lambda: None)


@control(in_workers=True)
def closed_descriptors(off: Patches) -> None:
    """A worker keeps every descriptor of its zygote."""
    off.put("muniment.confine.zygote:_close_except", lambda _keep: None)


@control(in_workers=True, hangs_after=2)
def death_with_zygote(off: Patches) -> None:
    """A worker does not notice that its zygote died."""

    def make(real):
        def isolate(*given):
            real(*given)
            # Nobody else would end it: the alarm keeps this run from leaving it behind.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(8)
            fence.prctl(1, 0)

        return isolate

    from muniment.confine import fence

    off.wrap("muniment.confine.zygote:_isolate", make)


@control()
def killed_workers(off: Patches) -> None:
    """A worker that broke its connection is left alone."""
    off.put("muniment.confine.pool:Worker.kill", lambda _self: None)
    off.put("muniment.confine.pool:END_SECONDS", 0.2)


@control()
def bounded_frames(off: Patches) -> None:
    """A length is believed, whatever it is."""
    off.put("muniment.confine.wire:MAX_FRAME_BYTES", 1 << 32)
    off.put("muniment.confine.wire:MAX_PIECE_BYTES", 1 << 32)

    def read(self, size, ready):
        data = bytearray(size)
        position = 0
        while position < size:
            if ready is not None:
                ready(1)
            count = self._sock.recv_into(memoryview(data)[position:])
            if not count:
                raise EOFError
            position += count
        return data

    off.put("muniment.confine.wire:Channel._read", read)


@control()
def strict_headers(off: Patches) -> None:
    """A header is whatever JSON makes of it."""
    import json

    from muniment.confine.wire import FrameViolation

    def parse(data):
        try:
            found = json.loads(data.decode(errors="replace"))
        except ValueError:
            raise FrameViolation("no JSON at all") from None
        return found if isinstance(found, dict) else {}

    off.everywhere("muniment.confine.wire:parse_object", parse)


@control()
def asked_once(off: Patches) -> None:
    """An answer that nobody asked for is taken for the next one."""
    off.put("muniment.confine.pool:Worker._check_silent", lambda _self: None)


@control(hangs_after=2)
def patience(off: Patches) -> None:
    """A wait has no deadline."""
    import select

    def wait(_self, fd, mask, alive=None):  # noqa: ARG001  as it would be
        poller = select.poll()
        poller.register(fd, mask)
        poller.poll()
        return True

    off.put("muniment.confine.cancel:Patience.wait", wait)


@control()
def required_enforcement(off: Patches) -> None:
    """A run begins whatever its policy requires to hold it."""
    off.put("muniment.names:Enforcement.satisfies", lambda _self, _required: True)


@control()
def trusted_imports(off: Patches) -> None:
    """The zygote imports from any directory."""

    def directories(names=None):
        from muniment.confine import pool

        return tuple(str(pool._directory(name)) for name in names or pool.IMPORTS)

    off.everywhere("muniment.confine.pool:import_directories", directories)
