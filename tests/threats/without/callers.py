"""Switch off checks of the kernel for its callers inside the process."""

from threats.switches import add_controls, do_nothing, replace_target, return_argument


def may_restore_by_any_verb(change, knows, decider):
    """Allow to restore content wherever a policy allows any write."""
    from muniment.kernel.change import digest
    from muniment.kernel.names import Verb

    allowed = any(decider.allows(verb, change.path) for verb in (Verb.CREATE, Verb.MODIFY))
    return allowed and (change.before is None or knows(change.path, digest(change.before)))


def drop_temporary(directory, _name, temporary, _states, **_):
    """Remove a temporary file, although it may belong to a peer."""
    directory._unlink(temporary)


def name_temporary(directory, name, temporary, states, **_):
    """Give a temporary file the name of the change, whether it belongs to it or not."""
    from muniment.kernel import apply

    if (
        apply._read_state(directory, temporary) is not None
        and apply._read_state(directory, name) == states[2]
    ):
        apply._replace_name(directory, name, apply.StagedFile(temporary, ""), states[2])


# fmt: off
add_controls({
    "locks_sealed": ("Any mapping of scopes to roots passes for their locks.", {
        "*kernel.apply:require_locked": do_nothing}),
    "judged_under_locks": ("A change set is written that was judged for other roots or under other locks.", {
        "*kernel.apply:require_judged": do_nothing}),
    "begun_when_landable": ("The journal records a change set before the check whether it can be written.", {
        "kernel.write:require_judged": do_nothing}),
    "plain_names": ("A name may be an instance of a class that changes its value later.", {
        "*kernel.root:encode_name": lambda name: name.encode("utf-8", "surrogateescape")}),
    "rollback_verbs": ("Recovery checks whether any write is allowed at a path.", {
        "kernel.write:_may_roll_back": may_restore_by_any_verb}),
    "own_changes": ("The judged change objects are the ones of the caller.", {
        "kernel.change:replace": return_argument}),
    "displaced_whole": ("A recovery gives its name to any temporary file.", {
        "kernel.apply:_clear_temporary": name_temporary}),
    "displaced_kept": ("A recovery removes any temporary file.", {
        "kernel.apply:_clear_temporary": drop_temporary}),
})
# fmt: on


@replace_target("*kernel.apply:seal_index_files")
def generated_once(files):
    """Generated files are read again after the check."""
    from muniment.kernel import change

    list(files)
    return change.GeneratedFiles(change._SEAL, tuple(files))
