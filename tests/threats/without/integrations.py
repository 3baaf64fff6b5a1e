"""The memory behind the tools of others, without what keeps words in their place."""

from threats.switches import table


def _of_whoever_asks(trust, _kept):
    from muniment.store.trust import constant

    return constant(trust)


# fmt: off
table({
    "bodies_only": ("What a program writes may begin with front matter.", {
        "*operations.entries:with_front": lambda body, _keys=None: body}),
    "kept_trust": ("Words that get another name are whose who gives it.", {
        "operations.entries:_ruling": _of_whoever_asks}),
    "viewed_trust": ("What a model writes does not hang on what it viewed.", {
        "integrations.anthropic:MemoriesDirectory._read": lambda self, path: self._entries.read(path)}),
})
# fmt: on
