"""Checks of the kernel on its callers in the process, disabled."""

from threats.switches import instead, none, same, table


def by_either_verb(change, knows, decider):
    """Restore bytes to any writable path, as an old version did."""
    from muniment.kernel.change import digest
    from muniment.kernel.names import Verb

    allowed = any(decider.allows(verb, change.path) for verb in (Verb.CREATE, Verb.MODIFY))
    return allowed and (change.before is None or knows(change.path, digest(change.before)))


def dropping(directory, _name, aside, _states, **_):
    """Drop a file under a temporary name, even of another process."""
    directory._unlink(aside)


def naming(directory, name, aside, states, **_):
    """Rename any file under a temporary name to the name of the change."""
    from muniment.kernel import land

    if land._found(directory, aside) is not None and land._found(directory, name) == states[2]:
        land._put(directory, name, land.Staged(aside, ""), states[2])


# fmt: off
table({
    "locks_sealed": ("Accept a mapping of scopes to roots as their locks.", {
        "*kernel.land:check_held": none}),
    "judged_under_locks": ("Write changes that were judged for other roots or under other locks.", {
        "*kernel.land:check_landable": none}),
    "begun_when_landable": ("Write to the journal before checking whether the change may be written.", {
        "kernel.write:check_landable": none}),
    "plain_names": ("Accept a name whose class may change its value later.", {
        "*kernel.root:leaf": lambda name: name.encode("utf-8", "surrogateescape")}),
    "verb_taken_back": ("Let recovery check only whether any change is allowed at a path.", {
        "kernel.write:_may_return": by_either_verb}),
    "own_changes": ("Judge and write the caller's own mutable objects.", {
        "kernel.change:replace": same}),
    "displaced_whole": ("Let recovery rename any file under its temporary names.", {
        "kernel.land:_empty": naming}),
    "displaced_kept": ("Let recovery drop any file under its temporary names.", {
        "kernel.land:_empty": dropping}),
})
# fmt: on


@instead("*kernel.land:generated")
def generated_once(files):
    """Read a generated change again after its check."""
    from muniment.kernel import change

    list(files)
    return change.Generated(change._SEAL, tuple(files))
