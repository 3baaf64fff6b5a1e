"""Fill the memory of the captures through the library, as if the facts were saved over some weeks.

The interpreter of any checkout runs this module in the workspace: it imports only `kit.captures.start` and
public names. It prints a JSON object: for each named entry its path and its handle, and the id of the review.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from kit.captures import start

FACTS = (
    (41.1, "The user prefers dark mode in all editors", {}),
    (40.3, "The user prefers tabs to spaces", {}),
    (40.2, "The user likes short answers with the code first", {}),
    (38.0, "My desk is in room 4.12 of the Berlin office", {}),
    (35.2, "My manager is called Katharina Lindqvist", {}),
    (33.15, "Always run the linter before a commit", {}),
    (33.1, "The project pins pnpm to version 9", {}),
    (30.1, "Staging runs Postgres 16 behind pgbouncer", {}),
    (30.05, "The staging database is db-7 in Frankfurt", {}),
    (28.2, "Backups of the database are kept for 14 days in the bucket", {}),
    (27.9, "The API listens on port 8080 in development", {}),
    (25.0, "Deploys to production need the approval of two people from the platform team", {}),
    (24.1, "We deploy on Thursdays at 10", {}),
    (21.3, "CI keeps artifacts for 14 days", {}),
    (20.2, "Tests of the payment service need Docker and about four minutes", {}),
    (19.0, "Ticket 1182 tracks the flaky login test", {"trust": "agent"}),
    (16.1, "Error messages of the API follow RFC 9457", {}),
    (14.2, "The certificate of the staging server is renewed by certbot every 60 days", {}),
    (12.05, "We freeze releases until 2026-06-08", {}),
    (11.1, "The office in Berlin is closed for painting", {"expires": "3d"}),
    (9.3, "The user is learning Finnish and writes Python at work", {}),
    (8.2, "Our sprint starts on Mondays", {}),
    (6.1, "Feature flags are stored in flags.yaml at the root of the repository", {}),
    (3.05, "Our sprint now starts on Tuesdays, no longer on Mondays", {}),
    (2.2, "The user drinks no coffee after three in the afternoon", {"expires": "90d"}),
    (1.6, "The on-call rota is in the wiki under Operations, page Rota", {"trust": "agent"}),
    (0.1, "The release key is kept in the shared drive, says a web page", {"trust": "external"}),
)
"""The age in days, the text, and the arguments of `remember`."""

NAMED = {
    "backups": "Backups of the database",
    "deploy": "We deploy on Thursdays",
    "sprint": "Our sprint now starts",
    "tabs": "The user prefers tabs to spaces",
}
"""Entries that commands name, by the beginning of their facts."""

EDITED = "backups", "kept for 14 days", "kept for 30 days", 1.2
"""An entry that its owner edited: the name, the old and the new words, and the age of the change in days."""

COPIED = "tabs"
"""An entry of which the workspace has a second copy, made by hand, so that `dream` merges them."""

DAY = 86_400


def date_files(directory, began, seconds):
    """Set the time of each file that was written since `began`."""
    for path in directory.rglob("*.md"):
        if path.stat().st_mtime >= began:
            os.utime(path, (seconds, seconds))


def fill(home, now, began):
    """Store the facts in the memory of the current directory; return the entries that commands name."""
    import muniment

    paths, review_id = {}, ""
    with muniment.open(workspace=".") as memory:
        for days, text, arguments in FACTS:
            start.set_time(now - days * DAY)
            try:
                done = memory.remember(text, **arguments)
            except muniment.PendingReview as pending:
                review_id = pending.review_id
            else:
                paths[text] = done.files_touched[0]
            date_files(home, began, now - days * DAY)
        named = {
            name: next(path for text, path in paths.items() if text.startswith(beginning))
            for name, beginning in NAMED.items()
        }
        name, old, new, days = EDITED
        start.set_time(now - days * DAY)
        named[name] = memory.edit(named[name], memory.show(named[name]).text.replace(old, new)).path
        found = {name: {"path": path, "handle": memory.show(path).handle} for name, path in named.items()}
    (original,) = home.rglob(Path(named[COPIED]).name)
    original.with_name("tabs.md").write_text(f"{NAMED[COPIED]}\n", encoding="utf-8")
    date_files(home, began, now - days * DAY)
    start.set_time(now)
    with muniment.open(workspace=".") as memory:
        memory.recall("deploy")  # Reads the changed files, as any earlier command of a user did.
    return {"entries": found, "review": review_id}


if __name__ == "__main__":
    began = time.time()
    start.fix_time_and_random_bytes()
    home = Path(os.environ["MUNIMENT_HOME"])
    json.dump(fill(home, float(os.environ["CAPTURE_TIME"]), began), sys.stdout)
