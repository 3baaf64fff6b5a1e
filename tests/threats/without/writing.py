"""Switch off checks of the broker's writes."""

import os

from kit.paths import forge_path
from threats.switches import add_controls, control, do_nothing, replace_target


def accept_all(parts, _found):
    """Keep every part of the change set."""
    return tuple(parts), ()


def judge_nothing(change_set, _policy, roots, **_):
    """Accept any change set."""
    from muniment.kernel import change

    return change.JudgedChanges(change._SEAL, change_set, ((),) * len(change_set.changes), roots)


def roll_back_nothing(intent, *_):
    """Report a rollback without doing it."""
    from muniment.kernel.write import Recovery

    return Recovery(intent, (), ())


# fmt: off
add_controls({
    "names_as_text": ("The name of an entry passes no gate.", {
        "content.admission:read_name_as_text": lambda _rel: "",
        "content.admission:_find_path_gate": do_nothing,
        "*content.admission:find_name_gate": do_nothing}),
}, in_workers=True)
add_controls({
    "random_names": ("Temporary files have predictable names.", {
        "*kernel._directory:build_temporary_name": lambda _random: f".muniment-{'0' * 16}.tmp"}),
    "claimed_file": ("A file is replaced or removed without a check of its content.", {
        "kernel._directory:Directory._require_digest": do_nothing}),
    "new_names": ("An entry keeps its name when another author replaces its text.", {
        "store.commit:rename_replaced_entries": lambda part, *_: (part, {})}),
    "single_component": ("A name in a directory may be a path.", {"*kernel.root:encode_name": os.fsencode}),
    "private_modes": ("Files and directories have the modes of the umask.", {
        "kernel._directory:_FILE_MODE": 0o666, "kernel._directory:_DIRECTORY_MODE": 0o777,
        "policy.ownership:_PRIVATE": 0o777}),
    "judged_paths": ("The judge does not validate the paths of a change set.", {
        "kernel.change:canonicalise":
            lambda text, _: forge_path(text.split("/")[0], text[text.find("/") + 1:]),
        "*kernel.judge:check_paths": do_nothing}),
    "judged_budgets": ("The judge does not check the budgets of a change set.", {
        "sandbox.sandbox:check_budgets": do_nothing}),
    "judged_claims": ("The broker trusts the claims of a run about its reads.", {
        "kernel.commit:drop_conflicting": accept_all}),
    "judged_changes": ("The broker does not check a change set against its policy.", {
        "kernel.commit:judge": judge_nothing}),
    "rolled_back_files": ("Files written before a failure stay.", {
        "kernel.apply:_roll_back_progress": do_nothing, "kernel.write:_roll_back": roll_back_nothing}),
})
# fmt: on


class ModuleProxy:
    """A module with some replaced attributes."""

    def __init__(self, real, **names):
        self._real, self._names = real, names

    def __getattr__(self, name):
        return self._names.get(name) or getattr(self._real, name)


def _write_into(directory, staged, name):
    fd = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=directory.fd)
    try:
        os.write(fd, directory.read(staged.temporary))
    finally:
        os.close(fd)
    directory._unlink(staged.temporary)


@control()
def exclusive_staging(off):
    """A temporary file is opened even if the name exists or is a link."""

    def open_file(path, flags, *more, **options):
        return os.open(path, flags & ~(os.O_EXCL | os.O_NOFOLLOW), *more, **options)

    off.wrap("kernel._directory:os", lambda real: ModuleProxy(real, open=open_file))


@replace_target("kernel._directory:Directory.replace")
def new_inode(self, staged, name, claimed):
    """Replace a file by writing into it."""
    from muniment.kernel._directory import ReplaceMethod
    from muniment.kernel.root import encode_name

    self._require_digest(name, claimed, name)
    _write_into(self, staged, encode_name(name))
    return ReplaceMethod.ATOMIC


@replace_target("kernel._directory:Directory.replace_link")
def replaced_links(self, staged, name):
    """A generated file is written through a link at its path."""
    _write_into(self, staged, name)


@replace_target("kernel.apply:_lock")
def locked_roots(*_):
    """Commits do not wait for each other."""
    from contextlib import nullcontext

    return nullcontext()
