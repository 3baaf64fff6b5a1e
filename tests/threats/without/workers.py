"""The worker and its messages without their limits."""

import signal
from functools import partial

from muniment.sandbox.fence import layers
from threats.switches import around, control, instead, none, table, true
from threats.without.writing import Other

# fmt: off
table({
    "closed_descriptors": ("Keep every descriptor of the zygote in a worker.", {
        "sandbox.fence.zygote:_close_except": lambda _keep: None}),
}, in_workers=True)
# fmt: on


def _start(off, without=frozenset(), **changed):
    """Start the zygote without some flags and with other options."""

    def make(real):
        def popen(command, **terms):
            return real.Popen([each for each in command if each not in without], **{**terms, **changed})

        return Other(real, Popen=popen)

    off.wrap("sandbox.fence.pool:subprocess", make)


# fmt: off
table({
    "killed_workers": ("Leave a worker with a broken connection running.", {
        "sandbox.fence.pool:Worker.kill": none, "sandbox.fence.pool:END_SECONDS": 0.2}),
    "asked_once": ("Accept an unexpected response as the next one.", {
        "sandbox.fence.pool:Worker._check_silent": none}),
    "required_enforcement": ("Start a run without the required confinement.", {
        "kernel.names:Enforcement.satisfies": true}),
    "clean_environment": ("Start the zygote with the broker's environment.", partial(_start, env=None)),
    "isolated_imports": ("Let the zygote import from the current directory first.", (
        partial(_start, without={"-I", "-S"}, env=None, cwd=None))),
})
# fmt: on


@control(in_workers=True)
def settled_zygote(off):
    """Keep the environment, directory and signals in the zygote."""
    off.also("clean_environment")
    off.put("sandbox.fence.zygote:_settle", lambda: None)


@around("sandbox.fence.zygote:_isolate", in_workers=True, hangs_after=2)
def death_with_zygote(real, *given):
    """Let a worker outlive its zygote."""

    real(*given)
    # The alarm ends the worker, because no other process does.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(8)
    layers.prctl(1, 0)


@control()
def bounded_frames(off):
    """Accept any message length."""
    off.put("sandbox.fence.wire:MAX_FRAME_BYTES", 1 << 32)
    off.put("sandbox.fence.wire:MAX_PIECE_BYTES", 1 << 32)

    def read(self, size, ready):
        data, position = bytearray(size), 0
        while position < size:
            if ready is not None:
                ready(1)
            if not (count := self._sock.recv_into(memoryview(data)[position:])):
                raise EOFError
            position += count
        return data

    off.put("sandbox.fence.wire:Channel._read", read)


@instead("*sandbox.fence.wire:parse_object")
def strict_headers(data):
    """Accept any JSON as a header."""
    import json

    from muniment.sandbox.fence.wire import FrameViolation

    try:
        found = json.loads(data.decode(errors="replace"))
    except ValueError:
        raise FrameViolation("no JSON at all") from None
    return found if isinstance(found, dict) else {}


@instead("kernel.cancel:Patience.wait", hangs_after=2)
def patience(_self, fd, mask, alive=None):  # noqa: ARG001  as it would be
    """Wait without a deadline."""
    import select

    poller = select.poll()
    poller.register(fd, mask)
    poller.poll()
    return True


@instead("*sandbox.fence.pool:import_directories")
def trusted_imports(names=None):
    """Let the zygote import from any directory."""
    from muniment.sandbox.fence import pool

    return tuple(str(pool._directory(name)) for name in names or pool.IMPORTS)
