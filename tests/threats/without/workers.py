"""Switch off the limits of workers and their messages."""

import signal
from functools import partial

from muniment.sandbox.fence import layers
from threats.switches import add_controls, control, do_nothing, replace_target, return_true, wrap_target
from threats.without.writing import ModuleProxy

# fmt: off
add_controls({
    "closed_descriptors": ("A worker inherits every descriptor of its zygote.", {
        "sandbox.fence.zygote:_close_except": lambda _kept_descriptors: None}),
}, in_workers=True)
# fmt: on


def _start(off, without=frozenset(), **changed):
    """Start the zygote without some flags, and with other options."""

    def make(real):
        def start_process(command, **options):
            return real.Popen([each for each in command if each not in without], **{**options, **changed})

        return ModuleProxy(real, Popen=start_process)

    off.wrap("sandbox.fence.pool:subprocess", make)


# fmt: off
add_controls({
    "killed_workers": ("A worker that broke its connection is not killed.", {
        "sandbox.fence.pool:Worker.kill": do_nothing, "sandbox.fence.pool:KILL_SECONDS": 0.2}),
    "single_answers": ("An unexpected answer counts as the next one.", {
        "sandbox.fence.pool:Worker._check_silent": do_nothing}),
    "required_enforcement": ("A run starts without the confinement that its policy requires.", {
        "kernel.names:Enforcement.satisfies": return_true}),
    "clean_environment": ("The zygote inherits the broker's environment.", partial(_start, env=None)),
    "isolated_imports": ("The zygote imports from the current directory first.", (
        partial(_start, without={"-I", "-S"}, env=None, cwd=None))),
})
# fmt: on


@control(in_workers=True)
def settled_zygote(off):
    """The zygote keeps its inherited environment, directory and signals."""
    off.disable("clean_environment")
    off.put("sandbox.fence.zygote:_reset_process", lambda: None)


@wrap_target("sandbox.fence.zygote:_isolate", in_workers=True, hangs_after=2)
def death_with_zygote(real, *arguments):
    """A worker does not detect the death of its zygote."""

    real(*arguments)
    # The alarm ends the worker, because nothing else would.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(8)
    layers.prctl(1, 0)


@control()
def bounded_frames(off):
    """A message may have any length."""
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


@replace_target("*sandbox.fence.wire:parse_object")
def strict_headers(data):
    """A header may be any JSON."""
    import json

    from muniment.sandbox.fence.wire import FrameViolation

    try:
        found = json.loads(data.decode(errors="replace"))
    except ValueError:
        raise FrameViolation("invalid JSON") from None
    return found if isinstance(found, dict) else {}


@replace_target("kernel.cancel:Deadline.wait", hangs_after=2)
def deadlines(_self, fd, mask, peer_pidfd=None):  # noqa: ARG001  ignored on purpose
    """A wait has no deadline."""
    import select

    poller = select.poll()
    poller.register(fd, mask)
    poller.poll()
    return True


@replace_target("*sandbox.fence.pool:find_import_directories")
def trusted_imports(names=None):
    """Let the zygote import from any directory."""
    from muniment.sandbox.fence import pool

    return tuple(str(pool._find_directory(name)) for name in names or pool.SERVICE_PACKAGES)
