"""The broker's writes without their checks."""

import os

from kit.paths import forged
from threats.switches import control, instead, none, table


def trusting(parts, _found):
    """Accept every part of a proposal."""
    return tuple(parts), ()


def unjudged(change_set, _policy, roots, **_):
    """Allow every proposed change."""
    from muniment.kernel import change

    return change.Judged(change._SEAL, change_set, ((),) * len(change_set.changes), roots)


def done(intent, *_):
    """Skip the rollback."""
    from muniment.kernel.write import Recovered

    return Recovered(intent, (), ())


# fmt: off
table({
    "names_as_text": ("Skip the gates for names.", {
        "content.admission:name_as_text": lambda _rel: "", "content.admission:_gate_in_name": none,
        "*content.admission:name_gate": none}),
}, in_workers=True)
table({
    "random_names": ("Use predictable names for temporary files.", {
        "*kernel._directory:temporary_name": lambda _random: f".muniment-{'0' * 16}.tmp"}),
    "claimed_file": ("Replace and remove files without checking their content.", {
        "kernel._directory:Directory._require": none}),
    "new_names": ("Keep the name of an entry when its text is replaced.", {
        "store.commit:renamed_replacements": lambda part, *_: (part, {})}),
    "single_component": ("Accept a path as a name in a directory.", {"*kernel.root:leaf": os.fsencode}),
    "private_modes": ("Create files and directories with the modes of the umask.", {
        "kernel._directory:_FILE_MODE": 0o666, "kernel._directory:_MODE": 0o777,
        "policy.ownership:_PRIVATE": 0o777}),
    "judged_paths": ("Skip the judge's check of paths.", {
        "kernel.change:canonicalise": lambda text, _: forged(text.split("/")[0], text[text.find("/") + 1:]),
        "*kernel.judge:check_paths": none}),
    "judged_budgets": ("Skip the judge's budgets.", {
        "sandbox.sandbox:check_budgets": none}),
    "judged_claims": ("Trust a run's report of read entries.", {
        "kernel.commit:settle": trusting}),
    "judged_changes": ("Trust a change set without checking the policy.", {
        "kernel.commit:judge": unjudged}),
    "taken_back": ("Keep the files written before a failure.", {
        "kernel.land:_undo": none, "kernel.write:_roll_back": done}),
})
# fmt: on


class Other:
    """A module with some replaced names."""

    def __init__(self, real, **names):
        self._real, self._names = real, names

    def __getattr__(self, name):
        return self._names.get(name) or getattr(self._real, name)


def _written_into(directory, staged, name):
    fd = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=directory.fd)
    try:
        os.write(fd, directory.read(staged.temporary))
    finally:
        os.close(fd)
    directory._unlink(staged.temporary)


@control()
def exclusive_staging(off):
    """Open any existing file as a temporary file, also through links."""

    def opened(path, flags, *more, **terms):
        return os.open(path, flags & ~(os.O_EXCL | os.O_NOFOLLOW), *more, **terms)

    off.wrap("kernel._directory:os", lambda real: Other(real, open=opened))


@instead("kernel._directory:Directory.replace")
def new_inode(self, staged, name, claimed):
    """Replace a file by writing into it."""
    from muniment.kernel._directory import Landing
    from muniment.kernel.root import leaf

    self._require(name, claimed, name)
    _written_into(self, staged, leaf(name))
    return Landing.ATOMIC


@instead("kernel._directory:Directory.replace_link")
def replaced_links(self, staged, name):
    """Write a generated file through a link."""
    _written_into(self, staged, name)


@instead("kernel.land:_lock")
def locked_roots(*_):
    """Commit without waiting for locks."""
    from contextlib import nullcontext

    return nullcontext()
