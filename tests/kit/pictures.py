"""Create the screenshots of docs/page.md: each view of a page over a small memory, in Chromium.

PYTHONPATH=tests .venv/bin/python -m kit.pictures
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

from kit.browser import emulate, sign_in, start_browser, wait_for_element
from kit.locations import REPOSITORY
from kit.server.process import BASE
from kit.server.raw import start_local_daemon
from muniment.store.audit import timestamp
from muniment.store.database import Database

FOLDER = REPOSITORY / "docs" / "page"
WIDTH, HEIGHT, PHONE_WIDTH = 1000, 720, 390
DAYS = 55

FACTS = (
    "The user prefers dark mode in all editors",
    "The user prefers tabs to spaces",
    "Always run the linter before a commit",
    "We deploy on Thursdays at 10",
    "Staging runs Postgres 16 behind pgbouncer",
    "The API listens on port 8080 in development",
    "CI keeps artifacts for 14 days",
    "My desk is in room 4.12 of the Berlin office",
    "Backups of the database are kept for 30 days",
    "The user likes short answers with the code first",
    "Ticket 1182 tracks the flaky login test",
    "The project pins pnpm to version 9",
)
CHANGE = "We deploy on Wednesdays at 10, no longer on Thursdays"
STRANGE = "The release key is kept in the shared drive, says a web page"


VIEWS = {
    "memory": "memory",
    "search": "search?q=deploy",
    "timeline": "timeline",
    "audit": "audit?verify=1",
    "health": "health",
    "policy": "policy?verb=create&path=user/pinned/rules.md",
}


def main() -> None:
    """Fill a memory and take the screenshots."""
    FOLDER.mkdir(exist_ok=True)
    base = Path(tempfile.gettempdir(), "me")  # Its name is visible in the screenshots.
    base.mkdir()
    try:
        with start_local_daemon(base, workers=True) as daemon, start_browser(base) as driver:
            here = f"{sign_in(driver, daemon)}/w/{daemon.key}"
            _take_pictures(driver, here, {"empty": "memory"})
            more = _fill_memory(daemon)
            _take_pictures(driver, here, VIEWS | more)
            _take_pictures(driver, here, {"phone": "memory"}, width=PHONE_WIDTH)
            _take_pictures(driver, here, {"dark": "memory"}, dark=True)
    finally:
        shutil.rmtree(base)


def _fill_memory(daemon) -> dict[str, str]:
    """Remember the facts, and return the views of single entries, reviews and tasks."""
    done = [daemon.run_task("remember", {"content": fact}) for fact in FACTS]
    _spread(daemon.core.state.ledger, [each["taskId"] for each in done])
    changed = daemon.run_task("remember", {"content": CHANGE})
    daemon.run_task("remember", {"content": STRANGE, "source": {"trust": "external"}})
    (entry,) = changed["result"]["filesTouched"]
    (waiting,) = daemon.get(f"{BASE}/review").json()["reviews"]
    return {
        "entry": f"entry?{urlencode({'path': entry})}",
        "reviews": "reviews",
        "review": f"review?id={waiting['reviewId']}",
        "tasks": "tasks",
        "task": f"task?id={changed['taskId']}",
    }


def _take_pictures(driver, here: str, views: dict[str, str], *, width: int = WIDTH, dark: bool = False):
    """Save a screenshot of each view under its name."""
    emulate(driver, width=width, height=HEIGHT, dark=dark)
    for name, view in views.items():
        driver.get(f"{here}/{view}")
        wait_for_element(driver, "main")
        driver.save_screenshot(str(FOLDER / f"{name}.png"))


def _spread(ledger: Database, tasks: list[str]) -> None:
    """Distribute the changes over the last weeks, so that the timeline is not empty."""
    now = datetime.now(UTC)
    with ledger.transaction() as connection:
        for number, task in enumerate(tasks):
            day = now - timedelta(days=(len(tasks) - number) ** 2 * DAYS / len(tasks) ** 2)
            connection.execute("UPDATE change_set SET done = ? WHERE task = ?", (timestamp(day), task))


if __name__ == "__main__":
    main()
