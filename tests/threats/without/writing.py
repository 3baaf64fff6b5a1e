"""The broker's writes, without what is checked before and around them."""

import os

from kit.paths import forged
from threats.switches import control, instead, none, table


def trusting(parts, _found):
    """Every part holds, whatever was found."""
    return tuple(parts), ()


def unjudged(change_set, _policy, roots, **_):
    """Whatever was proposed is judged to be right."""
    from muniment.kernel import change

    return change.Judged(change._SEAL, change_set, ((),) * len(change_set.changes), roots)


def done(intent, *_):
    """Nothing is rolled back."""
    from muniment.kernel.write import Recovered

    return Recovered(intent, (), ())


# fmt: off
table({
    "names_as_text": ("The name of an entry passes no gate.", {
        "content.admission:name_as_text": lambda _rel: "", "content.admission:_gate_in_name": none,
        "*content.admission:name_gate": none}),
}, in_workers=True)
table({
    "random_names": ("Temporary files have a name that can be known beforehand.", {
        "*kernel._directory:temporary_name": lambda _random: f".muniment-{'0' * 16}.tmp"}),
    "claimed_file": ("What stands at a name is replaced or removed unseen.", {
        "kernel._directory:Directory._require": none}),
    "new_names": ("An entry keeps its name, whoever replaces what it says.", {
        "store.commit:renamed_replacements": lambda part, *_: (part, {})}),
    "single_component": ("A name in a directory may be a path.", {"*kernel.root:leaf": os.fsencode}),
    "private_modes": ("Files and directories are made as the umask lets.", {
        "kernel._directory:_FILE_MODE": 0o666, "kernel._directory:_MODE": 0o777,
        "policy.ownership:_PRIVATE": 0o777}),
    "judged_paths": ("The judge takes the paths of a change-set as they come.", {
        "kernel.change:canonicalise": lambda text, _: forged(text.split("/")[0], text[text.find("/") + 1:]),
        "*kernel.judge:check_paths": none}),
    "judged_budgets": ("The judge does not count what a change-set holds.", {
        "sandbox.sandbox:check_budgets": none}),
    "judged_claims": ("The broker believes what a run says that it read.", {
        "kernel.commit:settle": trusting}),
    "judged_changes": ("The broker believes that a change-set is what its policy grants.", {
        "kernel.commit:judge": unjudged}),
    "taken_back": ("What was written before a failure stays.", {
        "kernel.land:_undo": none, "kernel.write:_roll_back": done}),
})
# fmt: on


class Other:
    """A module, with some names meaning something else."""

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
    """A temporary file is opened whatever has its name, through links, too."""

    def opened(path, flags, *more, **terms):
        return os.open(path, flags & ~(os.O_EXCL | os.O_NOFOLLOW), *more, **terms)

    off.wrap("kernel._directory:os", lambda real: Other(real, open=opened))


@instead("kernel._directory:Directory.replace")
def new_inode(self, staged, name, claimed):
    """A file is replaced by writing into it."""
    from muniment.kernel._directory import Landing
    from muniment.kernel.root import leaf

    self._require(name, claimed, name)
    _written_into(self, staged, leaf(name))
    return Landing.ATOMIC


@instead("kernel._directory:Directory.replace_link")
def replaced_links(self, staged, name):
    """A generated file is written through the link that stands in its place."""
    _written_into(self, staged, name)


@instead("kernel.land:_lock")
def locked_roots(*_):
    """Nobody waits for another commit."""
    from contextlib import nullcontext

    return nullcontext()
