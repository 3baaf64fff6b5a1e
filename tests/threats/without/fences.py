"""The kernel fence, without single layers of it, and without what tells whether they hold."""

from functools import partial

from muniment.sandbox.fence import layers
from threats.switches import control, none, table

# fmt: off
table({
    "kernel_asked": ("The broker believes what a worker says of its own fence.", {
        "sandbox.fence.evidence:_WITNESSED": {}, "sandbox.fence.evidence:_FILTERS": "asked by nobody"}),
})
# fmt: on


def _no(names, off):
    """Workers do not put up these layers, and say that they did; nobody asks the kernel."""
    from muniment.names import FenceLayer as Layer

    for name in names.split():
        off.item(layers.STEPS, Layer(name), lambda _grounds: None)
    off.also("kernel_asked")


# fmt: off
table({
    "tried_layers": ("A layer holds if the kernel did not complain.", {"sandbox.fence.layers:_expect": none}),
    "landlock": ("Workers are not restricted by Landlock, and say that they are.", partial(_no, "landlock")),
    "seccomp": ("Workers have no filter for system calls, and say that they have.", partial(_no, "seccomp")),
    "great_layers": ("Workers have neither Landlock nor a filter, and say that they have.", (
        partial(_no, "landlock seccomp"))),
    "fence_limits": ("Workers may use up what they like, and say that they may not.", partial(_no, "limits")),
}, in_workers=True)
# fmt: on


@control(in_workers=True)
def reported_layers(off):
    """A worker keeps quiet about the layers that it could not have."""

    off.wrap("sandbox.fence.layers:put_up", lambda real: lambda roots: real(roots) and {})
    off.also("kernel_asked")


@control()
def links_confined(off):
    """A link that climbs above its root, or is absolute, ends at the root."""

    def make(real):
        return lambda path, links: real(path, {link: target.lstrip("/") for link, target in links.items()})

    off.put("policy.grammar:_go_up", lambda at, _path: at and at.pop())
    off.wrap("*policy.grammar:resolve", make)


@control()
def both_names(off):
    """A policy is asked about a path as it is written, and not about where its links lead."""

    off.wrap(
        "sandbox.tools.workbench:_check",
        lambda real: lambda _, written, decide: real(written, written, decide),
    )
    off.put("sandbox.tools.workbench:Reached.names", property(lambda self: (self.written,)))
