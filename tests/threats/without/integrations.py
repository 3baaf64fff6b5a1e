"""The memory under tools of other SDKs, without the checks of text and trust."""

from threats.switches import table


def _of_whoever_asks(trust, _kept):
    from muniment.store.trust import constant

    return constant(trust)


# fmt: off
table({
    "bodies_only": ("Accept front matter at the start of a written text.", {
        "*operations.entries:with_front": lambda body, _keys=None: body}),
    "kept_trust": ("Give renamed text the trust of the renaming client.", {
        "operations.entries:_ruling": _of_whoever_asks}),
    "viewed_trust": ("Ignore viewed entries in the trust of written text.", {
        "integrations.anthropic:MemoriesDirectory._read": lambda self, path: self._entries.read(path)}),
})
# fmt: on
