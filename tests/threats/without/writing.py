"""The broker's writes, without what is checked before and around them."""

import os

from muniment.kernel.names import Scope
from muniment.kernel.path import CanonicalPath
from threats.switches import control, instead, none, table

# fmt: off
table({
    "random_names": ("Temporary files have a name that can be known beforehand.", {
        "*kernel.land:temporary_name": lambda _random: f".muniment-{'0' * 16}.tmp"}),
    "claimed_file": ("What stands at a name is replaced or removed unseen.", {
        "kernel.land:Directory._require": none}),
    "single_component": ("A name in a directory may be a path.", {"*kernel.land:leaf": os.fsencode}),
    "private_modes": ("Files and directories are made as the umask lets.", {
        "kernel.land:_FILE_MODE": 0o666, "kernel.land:_MODE": 0o777,
        "kernel.binding:_PRIVATE": 0o777}),
    "judged_paths": ("The judge takes the paths of a change-set as they come.", {
        "kernel.change:canonicalise": lambda text, _: CanonicalPath(
            Scope(text.split("/")[0]), text[text.find("/") + 1:]),
        "*store.judge:check_paths": none}),
    "judged_budgets": ("The judge does not count what a change-set holds.", {
        "store.commit:check_budgets": none}),
    "judged_claims": ("The broker believes what a run says that it read.", {
        "store.commit:settle": lambda parts, *_: (tuple(range(len(parts))), ())}),
    "judged_changes": ("The broker believes that a change-set is what its policy grants.", {
        "store.commit:judge": none}),
    "taken_back": ("What was written before a failure stays.", {"store.apply:_take_back": none}),
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

    off.wrap("kernel.land:os", lambda real: Other(real, open=opened))


@instead("kernel.land:Directory.replace")
def new_inode(self, staged, name, claimed):
    """A file is replaced by writing into it."""
    from muniment.kernel.land import Landing, leaf

    self._require(name, claimed, name)
    _written_into(self, staged, leaf(name))
    return Landing.ATOMIC


@instead("kernel.land:Directory.replace_link")
def replaced_links(self, staged, name):
    """A generated file is written through the link that stands in its place."""
    _written_into(self, staged, name)


@instead("kernel.land:_lock")
def locked_roots(*_):
    """Nobody waits for another commit."""
    from contextlib import nullcontext

    return nullcontext()
