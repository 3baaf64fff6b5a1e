"""Rendering of the page: templates with escaping, markdown without links or HTML, and a timeline.

W1 Every value in a template is escaped, and invisible characters are made visible. The only other sources of
   HTML are `markdown` and `timeline`, with the same guarantees.
W2 A text of the memory renders no link, picture or HTML, and its headings are not headings of the page.
   Addresses in it are displayed as text.
W3 Markdown cannot hide text: if rendering would omit more than markup characters, as for extra table cells or
   text that is nested too deeply, the text is displayed unrendered.
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
from muniment.content.gates import visible
from muniment.operations.review import BECAME

MAX_RENDERED_CHARS: Final = 32_768
"""Maximum characters of a text that is rendered; a longer one is displayed unrendered, which is faster."""

DAYS: Final = 60
"""Days of the timeline."""


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """Render a template (W1); raises if the template uses an undefined value."""
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("muniment.server.page"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "when": _when,
        "ago": _ago,
        "exact": escape,  # Unchanged text, for a form that sends it back.
        "became": BECAME.__getitem__,
        "end": lambda day: f"ended on {day}" if has_ended(day) else f"valid until {day}",
    }
    made.globals["parts"] = made.get_template("parts.html").module
    return made


def _shown(value: object) -> object:
    """Return the text to insert for a value, with invisible characters made visible; markup is unchanged."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else visible(str(value))


def _when(at: str) -> Markup:
    """Return a readable time, with the exact one as its title."""
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(at, f"{at[:10]} {at[11:16]}".strip())


def _ago(at: str) -> Markup:
    """Return the age of a time, with the exact time as its title."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            told = f"{int(seconds // size)} {word} ago"
            break
    else:
        told = "just now"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(at, told)


# -- markdown ----------------------------------------------------------------------------------------


_SAID_BY_NONE: Final = re.compile(r"[\s!-/:-@\[-`{-~]+")
"""White space and the characters of markup."""

_TAG: Final = re.compile(r'<(?:li value="(\d+)")?[^>]*>')
"""A tag of the generated HTML: the only attribute value that is text of the entry is a number."""


def markdown(text: str) -> Markup:
    """Return an entry's body as HTML (W2, W3).

    Cost: a few ms per KiB, at most 40.
    """
    shown = visible(text)
    if len(shown) <= MAX_RENDERED_CHARS:
        made = _parser().render(shown)
        if _said(html.unescape(_TAG.sub(r"\1", made))) == _said(shown):
            return Markup(made)  # noqa: S704  HTML in it is off, and the renderer escapes text
    return Markup("<pre>{}</pre>").format(shown)


def _said(text: str) -> str:
    return _SAID_BY_NONE.sub("", text)


class _Renderer(RendererHTML):
    """markdown-it's renderer without links, and without omissions."""

    def heading_open(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Open a paragraph instead of a heading, so that the text adds no headings to the page."""
        return f'<p class="heading" data-level="{int(tokens[idx].tag[1:])}">'

    def heading_close(self, *_: object) -> str:
        """Close the paragraph of a heading."""
        return "</p>"

    def link_open(self, *_: object) -> str:
        """Open the text of a link."""
        return '<span class="link">'

    def link_close(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Close the text of a link; add its address as text, unless the text is the address."""
        depth, at = 1, idx
        while depth and at:
            at -= 1
            depth += {"link_close": 1, "link_open": -1}.get(tokens[at].type, 0)
        return "</span>" if tokens[at].info == "auto" else f"</span>{_address(tokens[at], 'href')}"

    def image(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Return the description and the address of a picture as text."""
        token = tokens[idx]
        return f'<span class="link picture">{escape(token.content)}</span>{_address(token, "src")}'

    def fence(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Return a code block, with its info string above it."""
        token = tokens[idx]
        info = f'<p class="info">{escape(token.info.strip())}</p>' if token.info.strip() else ""
        return f"{info}<pre><code>{escape(token.content)}</code></pre>\n"

    def list_item_open(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        """Open a list item, with its number in the text."""
        number = tokens[idx].info
        return f'<li value="{escape(number)}">' if number else "<li>"

    def ordered_list_open(self, *_: object) -> str:
        """Open a list whose items have explicit numbers."""
        return "<ol>\n"

    def th_open(self, *_: object) -> str:
        """Open a header cell without markdown-it's style attribute, which the page's policy forbids."""
        return "<th>"

    def td_open(self, *_: object) -> str:
        """Open a cell without markdown-it's style attribute."""
        return "<td>"


def _address(token: Token, name: str) -> Markup:
    """Return the address and the title of a link or picture, as text."""
    title = (
        Markup(' <span class="link">{}</span>').format(token.attrGet("title"))
        if token.attrGet("title")
        else ""
    )
    return Markup(" <code>{}</code>{}").format(str(token.attrGet(name) or ""), title)


class _Parser(MarkdownIt):
    """markdown-it's parser, with addresses left as written."""

    def normalizeLink(self, url: str) -> str:  # noqa: N802  markdown-it's name
        """Return the address unchanged."""
        return url

    def normalizeLinkText(self, link: str) -> str:  # noqa: N802  markdown-it's name
        """Return the text of the address unchanged."""
        return link


@cache
def _parser() -> MarkdownIt:
    made = _Parser("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    # These rules would remove text: link definitions and the spelling of entities. Displayed instead.
    return made.disable(["reference", "entity"])


# -- timeline ----------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _BAR = 720, 160, 9


def timeline(
    counts: Iterable[tuple[str, str, int]], scopes: Sequence[str], today: date
) -> Mapping[str, object]:
    """Prepare a chart of the counts by day and scope up to today; counts of other days are ignored.

    Returns:
        `bars`, one for each scope and day, with the number that selects colour and pattern of the scope;
        `most`, the changes of the busiest day; `labels`, one every two weeks, with its position; `days` with
        changes, newest first, with the changes of each scope; and measures.
    """
    days = [(today - timedelta(days=DAYS - 1 - each)).isoformat() for each in range(DAYS)]
    found = {day: [0] * len(scopes) for day in days}
    for day, scope, count in counts:
        if day in found:
            found[day][scopes.index(scope)] += count
    most = max(map(sum, found.values()))
    step, scale = _WIDTH / DAYS, _HEIGHT / max(most, 1)
    bars = []
    for place, (day, of_scopes) in enumerate(found.items()):
        below = 0
        for number, count in enumerate(of_scopes):
            if count:
                below += count
                told = f"{day}, {scopes[number]}: {count}"
                x, y = round(place * step, 1), _HEIGHT - below * scale
                bars.append({"x": x, "y": y, "height": count * scale, "number": number, "label": told})
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "bar": _BAR,
        "count": DAYS,
        "most": most,
        "scopes": scopes,
        "bars": bars,
        "labels": [(round(place * step, 1), day[5:]) for place, day in enumerate(days) if place % 14 == 0],
        "days": [(day, of) for day, of in reversed(found.items()) if any(of)],
    }
