"""Capture the screens of the commands and the views of the page, and write docs/captures.md and its pictures.

    PYTHONPATH=tests .venv/bin/python -m kit.captures [OTHER]

OTHER is another checkout with a `.venv`: its output is shown as "before", that of this checkout as "after".
Takes about two minutes. Needs Chromium and its driver (`kit.browser`), and no network. Uses only `/tmp/ann`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kit.browser import start_browser
from kit.captures.commands import CAPTURES, capture
from kit.captures.document import build_pages
from kit.captures.fill import FACTS
from kit.captures.views import SIZES, VIEWS, take_pictures
from kit.captures.world import BASE, NOW, Edition, create_world
from kit.locations import REPOSITORY

DOCS = REPOSITORY / "docs"
PICTURES = DOCS / "captures"
WIDTHS = 80, 120


def main():
    """Capture one or two editions, and write the pages."""
    others = [Path(each).resolve() for each in sys.argv[1:]]
    editions = [Edition("After" if others else "", sys.executable)]
    editions += [Edition("Before", other / ".venv" / "bin" / "python") for other in others]
    PICTURES.mkdir(exist_ok=True)
    results = []
    with create_world(), start_browser(BASE) as driver:
        for old in PICTURES.glob("*.webp"):
            old.unlink()
        for edition in editions:
            edition.fill_memory()
            results.append([capture(edition, each, WIDTHS) for each in CAPTURES])
            take_pictures(edition, driver, PICTURES)
    commands = [(each.title, [of[number] for of in results]) for number, each in enumerate(CAPTURES)]
    narrow, wide = build_pages(
        commands,
        [edition.title for edition in editions],
        [(view.name, view.title) for view in VIEWS],
        sizes=list(SIZES),
        now=f"{NOW:%Y-%m-%d %H:%M}",
        count=len(FACTS),
    )
    (DOCS / "captures.md").write_text(narrow, encoding="utf-8")
    (DOCS / "captures-wide.md").write_text(wide, encoding="utf-8")


if __name__ == "__main__":
    main()
