"""Switch off the checks of import and restore."""

import math
import os
from dataclasses import replace
from pathlib import Path

from muniment.kernel.decide import Rule
from muniment.kernel.names import Verb
from threats.switches import add_controls, wrap_target
from threats.without.writing import ModuleProxy


def stat_followed(path, *, dir_fd, follow_symlinks):  # noqa: ARG001  ignored on purpose
    return os.stat(path, dir_fd=dir_fd)


def allow_all(policy):
    everything = Rule("all", tuple(sorted(Verb)), ("/**",))
    layers = (replace(each, allow=(everything,), deny=()) for each in policy.layers)
    return replace(policy, layers=tuple(layers))


# fmt: off
add_controls({
    "imported_trust": ("An export keeps the trust that it claims.", {
        "transfer.importing:cap_trust": lambda item, _most: item.trust}),
    "export_denies": ("An export may create every path.", {
        "transfer.importing:grant_readable": allow_all}),
    "imported_links": ("A link in an imported folder is followed.", {
        "transfer.sources:os": ModuleProxy(os, stat=stat_followed),
        "transfer.sources:READ_FLAGS": os.O_RDONLY | os.O_NONBLOCK,
        "transfer.sources:LIST_FLAGS": os.O_RDONLY | os.O_DIRECTORY}),
    "restored_names": ("The name of a backup member may be any path (inside the test directory).", {
        "transfer.backup:_resolve_member_path": lambda name: Path(name.lstrip("/"))}),
    "database_schema": ("Accept any schema of a database.", {
        "store.schema:_find_difference": lambda _database, _scripts: None}),
    "database_rows": ("Skip the checks of the rows of a restored ledger.", {
        "transfer.backup:check_rows": lambda database, deadline: database.limit_statements(deadline)}),
    "restored_digests": ("The digests of a backup are not checked.", {
        "transfer.backup:_check_manifest": lambda manifest, _found: manifest | {"roots": {}}}),
})
# fmt: on


@wrap_target("transfer.backup:restore")
def restore_deadline(real, *args, deadline, **more):  # noqa: ARG001  ignored on purpose
    """A restore has no deadline."""
    from muniment.kernel.cancel import Deadline

    return real(*args, deadline=Deadline(math.inf), **more)
