"""How the page is written: templates that escape what is put in, markdown that stays text, and a timeline.

W1 Whatever a template puts in is escaped, and what does not show by itself is made visible. Nothing else
   becomes HTML but what `markdown` and `timeline` make, of the same kind.
W2 Of a text of the memory no link can be followed, no picture is shown, no HTML is heeded, and no heading is
   one of the page's own. Its addresses stand there to be read.
W3 Nothing is hidden by how a text is written: where markdown would leave out more than its own marks, as it
   does of cells beside a table and of what is nested too deep, the text is shown as it is.
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
"""Characters of a text up to which it is rendered; a longer one is shown as it is, which is faster."""

DAYS: Final = 60
"""Days of the timeline."""


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """A page (W1); raises where the template asks for what is not there."""
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
        "exact": escape,  # A text as it is, for a form that sends it back.
        "became": BECAME.__getitem__,
        "end": lambda day: f"ended on {day}" if has_ended(day) else f"holds until {day}",
    }
    made.globals["parts"] = made.get_template("parts.html").module
    return made


def _shown(value: object) -> object:
    """What is put in for a value: for eyes, unless it is HTML of ours already."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else visible(str(value))


def _when(at: str) -> Markup:
    """A time for people, with the exact one beside it."""
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(at, f"{at[:10]} {at[11:16]}".strip())


def _ago(at: str) -> Markup:
    """How long ago a time is, with the exact one beside it."""
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
"""White space, and what marks are made of."""

_TAG: Final = re.compile(r'<(?:li value="(\d+)")?[^>]*>')
"""A tag as we write them: of its values, which hold no `>`, a number alone is to be read."""


def markdown(text: str) -> Markup:
    """An entry's body as HTML (W2, W3).

    Cost: some ms a KiB, 40 for the worst.
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
    """markdown-it's, without anything that leads elsewhere, and with all that is written."""

    def heading_open(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """A heading of a text is no heading of the page."""
        return f'<p class="heading" data-level="{int(tokens[idx].tag[1:])}">'

    def heading_close(self, *_: object) -> str:
        """Its end."""
        return "</p>"

    def link_open(self, *_: object) -> str:
        """Where the words of a link begin."""
        return '<span class="link">'

    def link_close(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Where they end: its address, to be read, unless that is what its words are."""
        depth, at = 1, idx
        while depth and at:
            at -= 1
            depth += {"link_close": 1, "link_open": -1}.get(tokens[at].type, 0)
        return "</span>" if tokens[at].info == "auto" else f"</span>{_address(tokens[at], 'href')}"

    def image(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """A picture in words."""
        token = tokens[idx]
        return f'<span class="link picture">{escape(token.content)}</span>{_address(token, "src")}'

    def fence(self, tokens: Sequence[Token], idx: int, _options: OptionsDict, _env: EnvType) -> str:
        """Code, below what it says it is."""
        token = tokens[idx]
        info = f'<p class="info">{escape(token.info.strip())}</p>' if token.info.strip() else ""
        return f"{info}<pre><code>{escape(token.content)}</code></pre>\n"

    def list_item_open(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        """An item of a list, with the number that it has in the text."""
        number = tokens[idx].info
        return f'<li value="{escape(number)}">' if number else "<li>"

    def ordered_list_open(self, *_: object) -> str:
        """A list whose items tell their numbers."""
        return "<ol>\n"

    def th_open(self, *_: object) -> str:
        """A cell, which markdown-it gives a style, and the page's policy none."""
        return "<th>"

    def td_open(self, *_: object) -> str:
        """Likewise."""
        return "<td>"


def _address(token: Token, name: str) -> Markup:
    """Where a link or a picture leads, and what it says of that."""
    title = (
        Markup(' <span class="link">{}</span>').format(token.attrGet("title"))
        if token.attrGet("title")
        else ""
    )
    return Markup(" <code>{}</code>{}").format(str(token.attrGet(name) or ""), title)


class _Parser(MarkdownIt):
    """markdown-it's, which leaves addresses as they are written."""

    def normalizeLink(self, url: str) -> str:  # noqa: N802  markdown-it's name
        """The address."""
        return url

    def normalizeLinkText(self, link: str) -> str:  # noqa: N802  likewise
        """The address."""
        return link


@cache
def _parser() -> MarkdownIt:
    made = _Parser("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    # What these would take away is shown: definitions of addresses, and how a character is spelled.
    return made.disable(["reference", "entity"])


# -- timeline ----------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _BAR = 720, 160, 9


def timeline(
    counts: Iterable[tuple[str, str, int]], scopes: Sequence[str], today: date
) -> Mapping[str, object]:
    """Draw counts by day and scope up to today; those of other days are left out.

    Returns:
        `bars` of one scope on one day each, with the number that its scope has a colour and a pattern by;
        `most`, the changes of the day that has most; `labels`, a day every two weeks with where it stands;
        `days` on which something changed, the newest first, with the changes of each scope; and measures.
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
                bars.append({"x": x, "y": y, "height": count * scale, "number": number, "told": told})
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
