"""Switch off checks of the memory tools for other programs."""

from threats.switches import add_controls


def _trust_of_caller(trust, _old_trust):
    from muniment.store.trust import constant

    return constant(trust)


# fmt: off
add_controls({
    "bodies_only": ("A program may write front matter.", {
        "*operations.entries:with_front": lambda body, _keys=None: body}),
    "kept_trust": ("A renamed text gets the trust of the caller.", {
        "operations.entries:_ruling": _trust_of_caller}),
    "viewed_trust": ("The trust of a model's text does not depend on the files that it viewed.", {
        "integrations.anthropic:MemoriesDirectory._read": lambda self, path: self._entries.read(path)}),
})
# fmt: on
