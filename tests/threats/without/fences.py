"""The kernel fence without single layers, and without the checks of their state."""

from functools import partial

from muniment.sandbox.fence import layers
from threats.switches import control, none, table

# fmt: off
table({
    "kernel_asked": ("Trust a worker's report about its own fence.", {
        "sandbox.fence.evidence:_WITNESSED": {}, "sandbox.fence.evidence:_FILTERS": "not requested"}),
})
# fmt: on


def _no(names, off):
    """Let workers skip these layers and report them as applied, without a check of the kernel."""
    from muniment.names import FenceLayer as Layer

    for name in names.split():
        off.item(layers.STEPS, Layer(name), lambda _grounds: None)
    off.also("kernel_asked")


# fmt: off
table({
    "tried_layers": ("Count a layer as in force if the kernel returned no error.", {
        "sandbox.fence.layers:_expect": none}),
    "landlock": ("Let workers skip Landlock and report it as applied.", partial(_no, "landlock")),
    "seccomp": ("Let workers skip the system call filter and report it as applied.", partial(_no, "seccomp")),
    "great_layers": ("Let workers skip Landlock and the filter and report both as applied.", (
        partial(_no, "landlock seccomp"))),
    "fence_limits": ("Let workers skip the limits and report them as applied.", partial(_no, "limits")),
}, in_workers=True)
# fmt: on


@control(in_workers=True)
def reported_layers(off):
    """Let a worker omit missing layers from its report."""

    off.wrap("sandbox.fence.layers:put_up", lambda real: lambda roots: real(roots) and {})
    off.also("kernel_asked")


@control()
def links_confined(off):
    """Resolve a link above its root, or an absolute one, to the root."""

    def make(real):
        return lambda path, links: real(path, {link: target.lstrip("/") for link, target in links.items()})

    off.put("policy.grammar:_go_up", lambda at, _path: at and at.pop())
    off.wrap("*policy.grammar:resolve", make)


@control()
def both_names(off):
    """Check the policy for the written path only, not for the resolved one."""

    off.wrap(
        "sandbox.tools.workbench:_check",
        lambda real: lambda _, written, decide: real(written, written, decide),
    )
    off.put("sandbox.tools.workbench:Reached.names", property(lambda self: (self.written,)))
