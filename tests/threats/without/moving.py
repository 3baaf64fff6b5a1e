"""Import and restore, without what keeps a file from being believed."""

import math
import os
from dataclasses import replace
from pathlib import Path

from muniment.kernel.decide import Rule
from muniment.kernel.names import Verb
from threats.switches import around, table
from threats.without.writing import Other


def following(path, *, dir_fd, follow_symlinks):  # noqa: ARG001  that is what is left out
    return os.stat(path, dir_fd=dir_fd)


def allowing_all(policy):
    everything = Rule("all", tuple(sorted(Verb)), ("/**",))
    layers = (replace(each, allow=(everything,), deny=()) for each in policy.layers)
    return replace(policy, layers=tuple(layers))


# fmt: off
table({
    "imported_trust": ("An export is trusted as it says.", {
        "transfer.importing:trusted": lambda item, _most: item.trust}),
    "export_denies": ("An export may create every path.", {
        "transfer.importing:grant_readable": allowing_all}),
    "imported_links": ("A link in a folder that is imported is followed.", {
        "transfer.sources:os": Other(os, stat=following),
        "transfer.sources:READING": os.O_RDONLY | os.O_NONBLOCK,
        "transfer.sources:LISTING": os.O_RDONLY | os.O_DIRECTORY}),
    "restored_names": ("A member of a backup goes where its name says, inside the test's own directory.", {
        "transfer.backup:_place": lambda name: Path(name.lstrip("/"))}),
    "database_schema": ("A database may have any schema.", {
        "store.schema:_difference": lambda _database, _scripts: None}),
    "database_rows": ("The rows of a restored ledger are not checked.", {
        "transfer.backup:examine": lambda database, patience: database.limit(patience)}),
    "restored_digests": ("Nobody asks whether a backup is as it was made.", {
        "transfer.backup:_checked": lambda told, _found: told | {"roots": {}}}),
})
# fmt: on


@around("transfer.backup:restore")
def restore_deadline(real, *args, patience, **more):  # noqa: ARG001  that is what is left out
    """A restore may take as long as it takes."""
    from muniment.kernel.cancel import Patience

    return real(*args, patience=Patience(math.inf), **more)
