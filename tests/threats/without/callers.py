"""What the kernel asks of its callers in the process, not asked."""

from threats.switches import instead, none, same, table


def by_either_verb(change, knows, decider):
    """As it was once: bytes come back to wherever somebody may write."""
    from muniment.kernel.change import digest
    from muniment.kernel.names import Verb

    allowed = any(decider.allows(verb, change.path) for verb in (Verb.CREATE, Verb.MODIFY))
    return allowed and (change.before is None or knows(change.path, digest(change.before)))


def dropping(directory, _name, aside, _states, **_):
    """What is under a temporary name may be a peer's, and is dropped."""
    directory._unlink(aside)


def naming(directory, name, aside, states, **_):
    """What is under a temporary name gets the name of the change, whatever that changes."""
    from muniment.kernel import land

    if land._found(directory, aside) is not None and land._found(directory, name) == states[2]:
        land._put(directory, name, land.Staged(aside, ""), states[2])


# fmt: off
table({
    "locks_sealed": ("What maps scopes to roots passes for their locks.", {"*kernel.land:check_held": none}),
    "judged_under_locks": ("What was judged for other roots, or under other locks, lands.", {
        "*kernel.land:check_landable": none}),
    "begun_when_landable": ("The journal is told of it before anybody looks whether it may be landed.", {
        "kernel.write:check_landable": none}),
    "plain_names": ("A name may be of a class that says something else later.", {
        "*kernel.root:leaf": lambda name: name.encode("utf-8", "surrogateescape")}),
    "verb_taken_back": ("Recovery asks whether anything may be done at a path.", {
        "kernel.write:_may_return": by_either_verb}),
    "own_changes": ("What is judged is what was handed in, and what is handed out is what is landed.", {
        "kernel.change:replace": same}),
    "displaced_whole": ("A recovery gives a name to whatever is under its temporary names.", {
        "kernel.land:_empty": naming}),
    "displaced_kept": ("A recovery drops whatever is under its temporary names.", {
        "kernel.land:_empty": dropping}),
})
# fmt: on


@instead("*kernel.land:generated")
def generated_once(files):
    """What is generated is read again once it was looked at."""
    from muniment.kernel import change

    list(files)
    return change.Generated(change._SEAL, tuple(files))
