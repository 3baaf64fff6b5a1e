"""Switch off single layers of the kernel fence, and the checks of these layers."""

from functools import partial

from muniment.sandbox.fence import layers
from threats.switches import add_controls, control, do_nothing

# fmt: off
add_controls({
    "kernel_evidence": ("The broker trusts the worker's report about its own fence.", {
        "sandbox.fence.evidence:_STATUS_FIELDS": {}, "sandbox.fence.evidence:_FILTER_COUNT": "unused"}),
})
# fmt: on


def _remove_layers(names, off):
    """Let workers report these layers without applying them, and skip the check of the kernel."""
    from muniment.names import FenceLayer as Layer

    for name in names.split():
        off.put_item(layers.STEPS, Layer(name), lambda _grounds: None)
    off.disable("kernel_evidence")


# fmt: off
add_controls({
    "tested_layers": ("A layer counts as applied if the kernel reported no error.", {
        "sandbox.fence.layers:_require_in_force": do_nothing}),
    "landlock": ("Workers report Landlock without applying it.", partial(_remove_layers, "landlock")),
    "seccomp": ("Workers report a system call filter without applying it.",
        partial(_remove_layers, "seccomp")),
    "great_layers": ("Workers report Landlock and a filter without applying them.", (
        partial(_remove_layers, "landlock seccomp"))),
    "fence_limits": ("Workers report resource limits without applying them.",
        partial(_remove_layers, "limits")),
}, in_workers=True)
# fmt: on


@control(in_workers=True)
def reported_layers(off):
    """A worker does not report missing layers."""

    off.wrap("sandbox.fence.layers:set_up_fence", lambda real: lambda roots: real(roots) and {})
    off.disable("kernel_evidence")


@control()
def links_confined(off):
    """Resolve a link above its root, or an absolute one, to the root."""

    def make(real):
        return lambda path, links: real(path, {link: target.lstrip("/") for link, target in links.items()})

    off.put("policy.grammar:_remove_last", lambda at, _path: at and at.pop())
    off.wrap("*policy.grammar:resolve", make)


@control()
def both_names(off):
    """A policy decides about the written path, and not about the target of its links."""

    off.wrap(
        "sandbox.tools.workbench:_require_allowed",
        lambda real: lambda _, written, decide: real(written, written, decide),
    )
    off.put("sandbox.tools.workbench:ResolvedTarget.names", property(lambda self: (self.requested,)))
