"""Write the screens of commands and the pictures of views as pages of the documentation. Pure."""

from __future__ import annotations

import re

COMMAND = "PYTHONPATH=tests .venv/bin/python -m kit.captures [OTHER]"

_HEADER = """<!-- Made by: {command} -->
# {title}

{purpose}

- The memory contains {count} facts and belongs to no person. The time is {now}.
- The answers that a person types are part of the screen. If a screen is long, its middle is omitted.
- {styles}
- Each run of the command below creates the same page: time and random ids are fixed, and durations and the
  release of the kernel are replaced.
- To create this page again, run `{command}`.
  `OTHER` is another checkout with a `.venv`; its output is shown as "before".
"""

_PURPOSES = {
    "narrow": "This page shows the main commands on a terminal of 80 columns, and the views of the page in a "
    "browser. For other widths, see [wide terminals and pipes](captures-wide.md).",
    "wide": "This page shows the output of the main commands on a terminal of 120 columns, and in a "
    "pipe. For 80 columns, see [screens](captures.md).",
}

_MARK = "[… {} more lines …]"


def build_pages(captures, editions, views, *, sizes, now, count):
    """Return the text of the two pages: for 80 columns with the views, and for 120 columns and pipes.

    Args:
        captures: for each command its title, and for each edition its result.
        editions: the titles of the editions, such as "After"; one empty title if nothing is compared.
        views: the name and the title of each view.
        sizes: the names of the sizes of the pictures.
        now: the time of the captures.
        count: the number of facts.
    """
    styles = describe_styles(captures, editions)
    values = {"command": COMMAND, "now": now, "count": count, "styles": styles}
    narrow = _HEADER.format(
        title="Screens of the commands and the page", purpose=_PURPOSES["narrow"], **values
    )
    wide = _HEADER.format(title="Wide terminals and pipes", purpose=_PURPOSES["wide"], **values)
    narrow += "\n## Commands at 80 columns\n"
    for title, results in captures:
        narrow += f"\n### {title}\n"
        wide += f"\n## {title}\n"
        for edition, result in _merge_same(editions, results):
            narrow += _format_screen(edition, "", result.line, result.by_columns[80], most=40)
            wide += _format_screen(edition, "120 columns", result.line, result.by_columns[120], most=20)
            if result.piped.lines == result.by_columns[120].lines:
                wide += f"\n{_join_label(edition, 'in a pipe', 'the same')}.\n"
            else:
                wide += _format_screen(edition, "in a pipe", f"{result.line} | cat", result.piped, most=20)
    return narrow + _format_views(views, editions, sizes), wide


def _merge_same(editions, results):
    """Return each title with its result; equal results have one title, such as "After and before"."""
    found = []
    for edition, result in zip(editions, results, strict=True):
        if found and found[0][1] == result:
            found[0] = f"{found[0][0]} and {edition.lower()}", result
        else:
            found.append((edition, result))
    return found


def describe_styles(captures, editions):
    """Return a sentence about the colours, which the pages omit."""
    parts = []
    for number, edition in enumerate(editions):
        screens = [screen for _, results in captures for screen in results[number].by_columns.values()]
        found = ", ".join(sorted(frozenset().union(*(each.styles for each in screens)))) or "none"
        parts.append(f"{edition.lower()}: {found}" if edition else found)
    return f"Colours are omitted. The commands use these on a terminal: {'; '.join(parts)}."


def shorten(lines, most):
    """Return at most `most` lines; a mark replaces the middle."""
    if len(lines) <= most:
        return list(lines)
    tail = most // 4
    head = most - tail - 1
    return [*lines[:head], _MARK.format(len(lines) - head - tail), *lines[-tail:]]


def _join_label(*parts):
    text = ", ".join(filter(None, parts))
    return text[:1].upper() + text[1:]


def _format_screen(edition, way, line, screen, *, most):
    text = "\n".join((f"$ {line}", *shorten(screen.lines, most)))
    label = _join_label(edition, way, f"exit code {screen.code}" if screen.code else "")
    fence = "`" * (max((len(run) for run in re.findall("`{3,}", text)), default=2) + 1)
    return (f"\n{label}:\n" if label else "") + f"\n{fence}text\n{text}\n{fence}\n"


def _format_views(views, editions, sizes):
    text = "\n## Views of the page\n"
    for name, title in views:
        text += f"\n### {title}\n"
        rows = [[(size, edition) for edition in editions] for size in sizes]
        if len(editions) == 1:
            rows = [[(size, editions[0]) for size in sizes]]
        for row in rows:
            heads = (", ".join(filter(None, (edition.lower(), size))) for size, edition in row)
            cells = (_format_picture(name, title, size, edition) for size, edition in row)
            text += f"\n| {' | '.join(heads)} |\n|{'---|' * len(row)}\n| {' | '.join(cells)} |\n"
    return text


def _format_picture(name, title, size, edition):
    label = f"{title}, {size}, {edition.lower()}" if edition else f"{title}, {size}"
    return f"![{label}](captures/{build_picture_name(name, size, edition)})"


def build_picture_name(name, size, edition):
    """Return the file name of a picture."""
    return "-".join(filter(None, (name, size, edition.lower()))) + ".webp"
