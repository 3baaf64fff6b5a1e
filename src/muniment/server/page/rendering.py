"""Rendering of the page: templates with escaping, markdown without links or HTML, and a timeline.

W1 Every value in a template is escaped, and invisible characters are made visible. The only other sources of
   HTML are `render_markdown` and `build_timeline`, with the same guarantees.
W2 A text of the memory renders no link, picture or HTML, and its headings are not headings of the page.
   Addresses in it are displayed as text.
W3 Markdown cannot hide text. If rendering would omit more than markup characters, for example extra table
   cells or deeply nested text, the text is displayed unrendered.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from muniment.content.expiry import has_ended
from muniment.content.gates import escape_invisible
from muniment.content.moments import format_age
from muniment.store.handles import build_task_handle

MAX_RENDERED_CHARS: Final = 32_768
"""Maximum characters of a text that is rendered. A longer text is displayed unrendered, which is faster."""

DAYS: Final = 60
"""Number of days that the timeline shows."""


def render(template: str, context: Mapping[str, Any]) -> str:
    """Render a template with the values in `context`. Every value is escaped.

    Raises:
        jinja2.UndefinedError: the template uses a value that `context` does not contain.
    """
    return _create_environment().get_template(template).render(context)


@cache
def _create_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("muniment.server.page"),
        autoescape=True,
        finalize=_make_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "when": _format_time,
        "ago": _format_age,
        "place": _format_place,
        "task_handle": build_task_handle,
        "exact": escape,  # Unchanged text, for a form that sends it back.
        "end": lambda day: f"ended on {day}" if has_ended(day) else f"valid until {day}",
    }
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


def _make_visible(value: object) -> object:
    """Return the text to insert for a value; invisible characters are made visible, except in `Markup`."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else escape_invisible(str(value))


def _format_time(timestamp: str) -> Markup:
    """Return HTML with a readable form of a timestamp; the exact time is its title."""
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        timestamp, f"{timestamp[:10]} {timestamp[11:16]}".strip()
    )


def _format_age(timestamp: str) -> Markup:
    """Return HTML with the age of a timestamp, such as `5 min ago`; the exact time is its title."""
    age = format_age(timestamp, datetime.now(UTC).astimezone())
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(timestamp, age) if age else Markup()


def _format_place(path: str) -> str:
    """Return the scope and the topic of an entry: `user/food/tea.md` becomes `user/food`."""
    return path.rpartition("/")[0]


# -- markdown ----------------------------------------------------------------------------------------


_MARKUP_CHARACTERS: Final = re.compile(r"[\s!-/:-@\[-`{-~]+")
"""White space and characters that markup uses."""

_TAG: Final = re.compile(r'<(?:li value="(\d+)")?[^>]*>')
"""A tag of the generated HTML. The only attribute value that is text of the entry is the number of a list
item.
"""


def render_markdown(text: str) -> Markup:
    """Return the body of an entry as HTML, without links, pictures and headings.

    If rendering would omit text, or the body is long, it is returned unrendered.

    Cost: a few ms per KiB, at most 40 ms per KiB.
    """
    visible_text = escape_invisible(text)
    if len(visible_text) <= MAX_RENDERED_CHARS:
        rendered = _create_parser().render(visible_text)
        if _strip_markup(html.unescape(_TAG.sub(r"\1", rendered))) == _strip_markup(visible_text):
            return Markup(rendered)  # noqa: S704  HTML in it is off, and the renderer escapes text
    return Markup("<pre>{}</pre>").format(visible_text)


def _strip_markup(text: str) -> str:
    return _MARKUP_CHARACTERS.sub("", text)


class _Renderer(RendererHTML):
    """markdown-it's renderer, changed so that it creates no links and omits no text."""

    def heading_open(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Open a paragraph instead of a heading, so that the text adds no headings to the page."""
        return f'<p class="heading" data-level="{int(tokens[idx].tag[1:])}">'

    def heading_close(self, *_: object) -> str:
        """Close the paragraph of a heading."""
        return "</p>"

    def link_open(self, *_: object) -> str:
        """Open the text of a link, without the link itself."""
        return '<span class="link">'

    def link_close(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Close the text of a link, and add its address as text, unless the text already is the address."""
        depth, index = 1, idx
        while depth and index:
            index -= 1
            depth += {"link_close": 1, "link_open": -1}.get(tokens[index].type, 0)
        return (
            "</span>" if tokens[index].info == "auto" else f"</span>{_render_address(tokens[index], 'href')}"
        )

    def image(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Return the description and the address of a picture as text."""
        token = tokens[idx]
        return f'<span class="link picture">{escape(token.content)}</span>{_render_address(token, "src")}'

    def fence(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Return a code block, with the info string (such as its language) above the code."""
        token = tokens[idx]
        info = f'<p class="info">{escape(token.info.strip())}</p>' if token.info.strip() else ""
        return f"{info}<pre><code>{escape(token.content)}</code></pre>\n"

    def list_item_open(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        """Open a list item, with the number from the text if the list is numbered."""
        number = tokens[idx].info
        return f'<li value="{escape(number)}">' if number else "<li>"

    def ordered_list_open(self, *_: object) -> str:
        """Open a numbered list, whose items have explicit numbers."""
        return "<ol>\n"

    def th_open(self, *_: object) -> str:
        """Open a header cell without markdown-it's style attribute, which the page's policy forbids."""
        return "<th>"

    def td_open(self, *_: object) -> str:
        """Open a table cell without markdown-it's style attribute, which the page's policy forbids."""
        return "<td>"


def _render_address(token: Token, name: str) -> Markup:
    """Return the address and the title of a link or picture, as text."""
    title = (
        Markup(' <span class="link">{}</span>').format(token.attrGet("title"))
        if token.attrGet("title")
        else ""
    )
    return Markup(" <code>{}</code>{}").format(str(token.attrGet(name) or ""), title)


class _Parser(MarkdownIt):
    """markdown-it's parser, changed so that addresses stay as they were written."""

    def normalizeLink(self, url: str) -> str:  # noqa: N802  markdown-it's name
        """Return the address unchanged."""
        return url

    def normalizeLinkText(self, link: str) -> str:  # noqa: N802  markdown-it's name
        """Return the text of the address unchanged."""
        return link


@cache
def _create_parser() -> MarkdownIt:
    parser = _Parser("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    # The disabled rules would remove text: link definitions and the spelling of entities. Both are displayed
    # instead.
    return parser.disable(["reference", "entity"])


# -- timeline ----------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _BAR = 720, 160, 9


def build_timeline(
    counts: Iterable[tuple[str, str, int]], scopes: Sequence[str], today: date
) -> Mapping[str, object]:
    """Return the values for a chart of changes by day and scope, for the last `DAYS` days.

    Args:
        counts: day, scope and number of changes; other days are ignored.
        scopes: names of the scopes.
        today: the last day of the chart.

    Returns:
        `bars`, one for each scope and day, with the number that selects colour and pattern of the scope;
        `most`, the changes of the busiest day; `labels`, one every two weeks, with its position; `days`, the
        days with changes, newest first, and their changes by scope; and the sizes of the chart.
    """
    days = [(today - timedelta(days=DAYS - 1 - each)).isoformat() for each in range(DAYS)]
    found = {day: [0] * len(scopes) for day in days}
    for day, scope, count in counts:
        if day in found:
            found[day][scopes.index(scope)] += count
    most = max(map(sum, found.values()))
    step, scale = _WIDTH / DAYS, _HEIGHT / max(most, 1)
    bars = []
    for index, (day, scope_counts) in enumerate(found.items()):
        total = 0
        for number, count in enumerate(scope_counts):
            if count:
                total += count
                label = f"{day}, {scopes[number]}: {count}"
                x, y = round(index * step, 1), _HEIGHT - total * scale
                bars.append({"x": x, "y": y, "height": count * scale, "number": number, "label": label})
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "bar": _BAR,
        "count": DAYS,
        "most": most,
        "scopes": scopes,
        "bars": bars,
        "labels": [(round(index * step, 1), day[5:]) for index, day in enumerate(days) if index % 14 == 0],
        "days": [(day, of) for day, of in reversed(found.items()) if any(of)],
    }
