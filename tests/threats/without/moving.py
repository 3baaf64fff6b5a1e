"""Import and restore, without what keeps a file from being believed."""

import os
from pathlib import Path

from threats.switches import table
from threats.without.writing import Other


def following(path, *, dir_fd, follow_symlinks):  # noqa: ARG001  that is what is left out
    return os.stat(path, dir_fd=dir_fd)


# fmt: off
table({
    "imported_trust": ("An export is trusted as it says.", {
        "jobs.importing:trusted": lambda item, _most: item.trust}),
    "imported_links": ("A link in a folder that is imported is followed.", {
        "jobs.sources:os": Other(os, stat=following), "jobs.sources:READING": os.O_RDONLY | os.O_NONBLOCK,
        "jobs.sources:LISTING": os.O_RDONLY | os.O_DIRECTORY}),
    "restored_names": ("A member of a backup goes where its name says, inside the test's own directory.", {
        "store.backup:_place": lambda name: Path(name.lstrip("/"))}),
    "restored_digests": ("Nobody asks whether a backup is as it was made.", {
        "store.backup:_checked": lambda told, _found: told | {"roots": {}}}),
})
# fmt: on
