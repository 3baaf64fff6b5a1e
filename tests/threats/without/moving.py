"""Import and restore without the checks of untrusted files."""

import math
import os
from dataclasses import replace
from pathlib import Path

from muniment.kernel.decide import Rule
from muniment.kernel.names import Verb
from threats.switches import around, table
from threats.without.writing import Other


def following(path, *, dir_fd, follow_symlinks):  # noqa: ARG001  the omitted check
    return os.stat(path, dir_fd=dir_fd)


def allowing_all(policy):
    everything = Rule("all", tuple(sorted(Verb)), ("/**",))
    layers = (replace(each, allow=(everything,), deny=()) for each in policy.layers)
    return replace(policy, layers=tuple(layers))


# fmt: off
table({
    "imported_trust": ("Trust the claims of an export.", {
        "transfer.importing:trusted": lambda item, _most: item.trust}),
    "export_denies": ("Let an export create every path.", {
        "transfer.importing:grant_readable": allowing_all}),
    "imported_links": ("Follow links in an imported folder.", {
        "transfer.sources:os": Other(os, stat=following),
        "transfer.sources:READING": os.O_RDONLY | os.O_NONBLOCK,
        "transfer.sources:LISTING": os.O_RDONLY | os.O_DIRECTORY}),
    "restored_names": ("Extract a backup member to the path in its name, inside the test directory.", {
        "transfer.backup:_place": lambda name: Path(name.lstrip("/"))}),
    "database_schema": ("Accept any schema of a database.", {
        "store.schema:_difference": lambda _database, _scripts: None}),
    "database_rows": ("Skip the checks of the rows of a restored ledger.", {
        "transfer.backup:examine": lambda database, patience: database.limit(patience)}),
    "restored_digests": ("Skip the integrity check of a backup.", {
        "transfer.backup:_checked": lambda told, _found: told | {"roots": {}}}),
})
# fmt: on


@around("transfer.backup:restore")
def restore_deadline(real, *args, patience, **more):  # noqa: ARG001  the omitted check
    """Run a restore without a time limit."""
    from muniment.kernel.cancel import Patience

    return real(*args, patience=Patience(math.inf), **more)
