"""Hostile text in the page: nothing runs, nothing leaves the page, and all of it can be read.

The oracles: the browser's own record of what ran, of its requests and of the width of the page; without a
browser, Python's HTML parser over every view and over rendered markdown.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import cycle
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.browser import emulate, needs_browser, read_console, read_requests, sign_in, wait_for_element
from kit.locations import REPOSITORY
from kit.server.page_clients import SignedInClient, remove_whitespace
from kit.server.process import write_policy
from kit.server.raw import start_local_daemon
from muniment.server.page.rendering import MAX_RENDERED_CHARS, render_markdown
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

RUN = "window.hit=1"
AWAY = "http://evil.test/"
TAGS = f"<script>{RUN}</script><img src={AWAY}a onerror={RUN}><svg onload={RUN}><script>{RUN}</script></svg>"
LEAVING = f"\"><base href={AWAY}><a href='{AWAY}' onmouseover={RUN}>' autofocus onfocus={RUN} x='"
FRAMES = (
    f"<iframe src={AWAY}></iframe><object data={AWAY}></object><embed src={AWAY}>"
    f"<link rel=stylesheet href={AWAY}><meta http-equiv=refresh content='0;url={AWAY}'>"
    f"<style>@import '{AWAY}'</style><details open ontoggle={RUN}>"
)
LINKS = (
    f"[a](javascript:{RUN}) ![b](data:image/svg+xml,x) ![c]({AWAY}c.png) [d]({AWAY}d 'told') <{AWAY}e>"
    f" <javascript:{RUN}> [f](data:text/html,x) [![g]({AWAY}g)](//evil.test/h)"
)
TEXTS = {  # The attack, and a part of it that must be readable in every view.
    "tags": (TAGS, f"<script>{RUN}</script>"),
    "frames": (FRAMES, f"<iframe src={AWAY}>"),
    "ends": (
        f"</script></textarea></pre></article></main></title></style>--><script>{RUN}</script>",
        "</textarea>",
    ),
    "quotes": (LEAVING, f"onmouseover={RUN}"),
    "links": (LINKS, f"{AWAY}c.png"),
    "definitions": ("[x]: http://evil.test/ 'told below'\n\nSee [x] and ![x].", "told below"),
    "fence": (f"```js <b>of\n</code></pre><script>{RUN}</script>\n```\n", "</code></pre>"),
    "templates": ("{{ 7*7 }}{% raw %}{{ workspace }}{# no #}${7*7}<%= 7*7 %>", "{{ workspace }}{# no #}"),
    "entities": (f"&lt;script&gt; &#60;script&#62;{RUN} &#x3c;/textarea&#x3e; &amp;lt;", "&#60;script&#62;"),
    "override": (
        "the file \u202egnp.exe\u202c \u2066isolated, \u061cmarked",
        "the file \\u{202e}gnp.exe\\u{202c}",
    ),
    "invisible": ("zero\u200bwidth \ufeff tag\U000e0041 \x1b[31m bell\x07 nothing\0", "zero\\u{200b}width"),
    "table": ("|a|b|\n|:-:|-|\n|one|two|beside the table|\n", "beside the table"),
    "deep": (
        ">" * 300 + " deep down\n" + "".join("  " * each + f"- item{each}\n" for each in range(60)),
        "deep down",
    ),
    "headings": ("".join(f"# heading {each}\n" for each in range(1_000)), "heading 999"),
    "line": ("x" * 65_536 + "end", "xend"),
}
NAME = f"</title><script>{RUN}</script><img src=http://evil.test/ onerror={RUN}>{{{{7*7}}}}\u202e"
ODD_NAMES = (
    *(f"<img src=x onerror={RUN}>.md", "a\u202egnp.md", '"onfocus=x autofocus.md', "{{7*7}}.md"),
    "x" * 200 + ".md",
)


class World:
    """A daemon in which all content of the page is hostile.

    Attributes:
        views: view and query by name.
    """

    def __init__(self, daemon):
        self.daemon = daemon
        for name, (text, _) in TEXTS.items():
            path = daemon.get_root() / "hostile" / f"{name}.md"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(
                f'---\nname: "{one_line(NAME)}"\ndescription: {one_line(text)[:300]}\n---\n{text}'.encode()
            )
        for name in ODD_NAMES:
            (daemon.get_root() / name).write_text("odd\n")
        own_task = daemon.run_task("remember", {"content": f"The user said {TAGS}", "scope": "user"})
        source = {"trust": "external", "ref": TAGS}
        pending = daemon.run_task("remember", {"content": f"Mail {TAGS}", "scope": "user", "source": source})
        failed = daemon.run_task("forget", {"query": TAGS})
        assert failed["status"] == "failed", failed
        self.review = pending["reviewId"]
        assert own_task["status"] == "completed", own_task
        self.paths = {name: f"user/hostile/{name}.md" for name in TEXTS}
        self.views = {
            "memory": ("memory", {}),
            "folder": ("memory", {"scope": "user", "topic": "hostile"}),
            "search": ("search", {"q": f"{TAGS} script"}),
            "reviews": ("reviews", {}),
            "review": ("review", {"id": self.review}),
            "tasks": ("tasks", {}),
            "task": ("task", {"id": own_task["taskId"]}),
            "pending task": ("task", {"id": pending["taskId"]}),
            "failed task": ("task", {"id": failed["taskId"]}),
            "timeline": ("timeline", {}),
            "audit": ("audit", {"verify": "1"}),
            "health": ("health", {}),
            "policy": ("policy", {"path": f"user/{NAME}", "verb": "read"}),
            "problem": ("entry", {"path": NAME}),
            "problem with a folder": ("memory", {"scope": NAME}),
            "missing folder": ("memory", {"scope": "user", "topic": NAME, "after": NAME}),
            "own entry": ("entry", {"path": own_task["result"]["filesTouched"][0]}),
        }
        for name in TEXTS:
            path = self.paths[name]
            self.views |= {
                f"entry: {name}": ("entry", {"path": path}),
                f"file: {name}": ("entry", {"path": path, "raw": "1"}),
                f"edit: {name}": ("edit", {"path": path}),
            }


def one_line(text):
    return re.sub(r'[\n"\0]', " ", text)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    base = tmp_path_factory.mktemp("hostile")
    options = {
        "reject": "[]",
        "instructions": '"allow"',
        "untrusted_sources": '"quarantine"',
        "require": '"none"',
    }
    policy = write_policy(base, **options, description=f"'''{TAGS}{LEAVING.replace(chr(39), '')}'''")
    text = policy.read_text(encoding="utf-8")
    policy.write_text(re.sub(r'why = "[^"]*"', lambda _: f"why = '''{TAGS}'''", text), encoding="utf-8")
    content = f"---\nname: 'N {TAGS}'\ntype: user\n---\nThe user said {TAGS}\n"
    path = cycle(("user/ours/ours.md", "user/held/held.md"))
    steps = (reply_with_calls(make_call("write_file", path=next(path), content=content)) for _ in cycle("x"))
    wrong = reply_with_calls(make_call("read_file", path=NAME), make_call(f"no_tool{TAGS}", path=TAGS))
    model = ScriptedModel(
        (step for write in steps for step in (wrong, write, reply_with_text(f"Saved. {TAGS}"))),
        name=f"m{TAGS}",
    )
    other = base / f"<img src=x onerror={RUN}>{{{{7*7}}}}'\" onfocus={RUN} \u202e"
    (other / ".git").mkdir(parents=True)
    options = {"policy": policy, "workspaces": (other,), "on_model_failure": "fail"}
    with start_local_daemon(base, model, **options) as daemon:
        yield World(daemon)


# -- without a browser ------------------------------------------------------------------------------------

SKELETON = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "body",
        "header",
        "nav",
        "main",
        "footer",
        "section",
        "article",
    ),
    *(
        "h1",
        "h2",
        "p",
        "span",
        "a",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "div",
        "pre",
        "code",
        "ins",
        "del",
        "time",
        "strong",
    ),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure", "figcaption"),
    *("form", "label", "input", "textarea", "select", "option", "button"),
    *("svg", "defs", "pattern", "path", "rect", "line", "text"),
}
MARKDOWN = {
    *("p", "span", "code", "pre", "em", "strong", "ul", "ol", "li", "blockquote", "hr", "br"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
MARKDOWN_ATTRIBUTES = {("class", "heading"), ("class", "link"), ("class", "link picture"), ("class", "info")}
ADDRESSES = {
    *("href", "src", "action", "formaction", "data", "content", "poster", "srcset", "background"),
    "xlink:href",
}


class ParsedPage(HTMLParser):
    """The elements with attributes and the text of a page; comments count as elements."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.text = [], ""
        self.feed(str(page))
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, attributes))

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        self.elements.append(("!--", [("data", data)]))

    unknown_decl = handle_pi = handle_comment


def find_problems(page):
    """Return the parts of a page that could run, leave the page or change its style."""
    found = []
    for tag, attributes in ParsedPage(page).elements:
        names = [name for name, _ in attributes]
        if tag not in SKELETON | MARKDOWN or len(names) != len(set(names)):
            found.append((tag, attributes))
        if tag == "script" and dict(attributes) not in (
            {"type": "module", "src": f"/static/{name}.js"} for name in ("page", "sign-in")
        ):
            found.append((tag, attributes))
        for name, value in attributes:
            is_address = name in ADDRESSES and tag != "meta"
            if is_address and not re.fullmatch(r"(/(?!/)|#)[\w/.?=&%+~-]*", value or "", re.ASCII):
                found.append((tag, name, value))
            if name.startswith("on") or name in {
                "style",
                "srcdoc",
                "autofocus",
                "accesskey",
                "ping",
                "target",
            } - ({"autofocus"} if dict(attributes).get("id") in {"q", "code"} else set()):
                found.append((tag, name, value))
    return found


def test_views_contain_nothing_that_runs_or_leaves_page(world, subtests):
    visitor = SignedInClient(world.daemon)
    for name, (view, query) in world.views.items():
        with subtests.test(name):
            answer = visitor.get(view, **query)
            expected = {"problem": {400, 404, 422}, "edit: invisible": {409}}  # A form cannot contain NUL.
            assert answer.status in expected.get("problem" if name.startswith("problem") else name, {200})
            page = answer.body.decode()
            assert find_problems(page) == []
            if view not in {"edit", "search", "policy"}:  # Their fields repeat the input.
                assert not INVISIBLE.search(page)
    preview = visitor.post("remember", content=f"Mail {TAGS}{NAME}</textarea>", **{"try": "1"})
    assert (preview.status, find_problems(preview.body.decode())) == (200, [])
    changed = visitor.post("edit", path=world.paths["tags"], digest="0", body=f"</textarea>{TAGS}")
    assert (changed.status, find_problems(changed.body.decode())) == (409, [])
    assert f"</textarea>{TAGS}" in ParsedPage(changed.body.decode()).text


def test_entry_views_show_complete_text(world, subtests):
    visitor = SignedInClient(world.daemon)
    for name, (text, readable) in TEXTS.items():
        with subtests.test(name):
            rendered = ParsedPage(visitor.get("entry", path=world.paths[name]).body.decode()).text
            assert remove_whitespace(readable) in remove_whitespace(rendered)
            raw = ParsedPage(visitor.get("entry", path=world.paths[name], raw="1").body.decode()).text
            assert remove_whitespace(escape_invisible(text)) in remove_whitespace(raw)
            edited = ParsedPage(visitor.get("edit", path=world.paths[name]).body.decode()).text
            expected = "it contains NUL" if "\0" in text else text  # A form cannot send it back.
            assert remove_whitespace(expected) in remove_whitespace(edited)


QUERY_FIELDS = {
    "memory": "scope topic after",
    "entry": "path raw",
    "edit": "path",
    "search": "q",
    "review": "id",
    "tasks": "before",
    "task": "id",
    "policy": "verb path",
}
FORM_FIELDS = {
    "remember": "content scope try",
    "forget": "path",
    "edit": "path digest body",
    "pin": "path",
    "undo": "task path",
    "approve": "id digest",
    "reject": "id",
    "cancel": "id",
    "nothing": "path",
}
VALUES = (
    *(
        NAME,
        "\0",
        "..",
        "user/../../x",
        "user/" + "a/" * 300 + "b.md",
        "user/\u202e.md",
        "x" * 4_000,
        "9" * 30,
    ),
    *(
        "-1",
        "",
        " ",
        "user/hostile/tags.md",
        "user/hostile",
        "/etc/passwd",
        "project:user",
        "\ud7ff\ue000",
        "é" * 300,
    ),
)
EXPECTED_STATUS = {200, 400, 403, 404, 409, 422}


def test_hostile_query_or_form_gets_safe_page(world):
    visitor = SignedInClient(world.daemon)
    for view, fields in QUERY_FIELDS.items():
        for field in fields.split():
            for value in VALUES:
                answer = visitor.get(
                    view, **({"path": "user/a.md"} if view == "policy" else {}) | {field: value}
                )
                assert answer.status in EXPECTED_STATUS, (
                    view,
                    field,
                    value[:40],
                    answer.status,
                )
                assert find_problems(answer.body.decode()) == []
    for raw in (
        "path=%ff%fe",
        "path=%00",
        "path=a&path=b",
        "%00=1",
        "path",
        "path=%F0%9F",
        "&&&",
        "q=%e2%80%ae",
    ):
        answer = visitor.get(f"/w/{world.daemon.key}/entry?{raw}")
        assert answer.status in EXPECTED_STATUS, (raw, answer.status)
        assert find_problems(answer.body.decode()) == []
    for action, fields in FORM_FIELDS.items():
        for value in VALUES[:8]:
            answer = visitor.post(action, **dict.fromkeys(fields.split(), value))
            assert answer.status in EXPECTED_STATUS | {303}, (action, value[:40], answer.status)
            assert find_problems(answer.body.decode()) == []
            assert all(each.startswith("/w/") for each in answer.get_header_values("location"))


INVISIBLE = re.compile("[\0\x07\x1b\u061c\u200b\u202a-\u202e\u2066-\u2069\ufeff\U000e0041]")


def escape_invisible(text):
    """Replace the invisible characters of the texts above as the page shows them to people."""
    return INVISIBLE.sub(lambda it: f"\\u{{{ord(it[0]):x}}}", text)


MARKS = st.sampled_from(
    (
        *(
            "[",
            "]",
            "(",
            ")",
            "![",
            "<",
            ">",
            "*",
            "_",
            "`",
            "```",
            "~~~",
            "#",
            "|",
            "|-|-|",
            "\\",
            "&",
            "&#60;",
        ),
        *(":", "=", "---", "<!--", "-->", "'", '"', "x.y", "9", "wörd", "javascript:", "[a](b)", "![a](b)"),
        *(
            "- ",
            "1. ",
            "007) ",
            "> ",
            "\n",
            "\n\n",
            "    ",
            "\t",
            "\r\n",
            "[a]: b 'c'\n",
            "<http://a>",
            "<b x=y>",
        ),
        *("\u202e", "\0"),
    )
)


@given(st.lists(MARKS | st.text(max_size=4), max_size=40).map("".join))
def test_markdown_creates_plain_elements_and_loses_no_word(text):
    page = ParsedPage(render_markdown(text))
    for tag, attributes in page.elements:
        assert tag in MARKDOWN
        allowed = {*MARKDOWN_ATTRIBUTES, *(("data-level", str(each)) for each in range(1, 7))}
        assert all(
            each in allowed or ((tag, each[0]) == ("li", "value") and each[1].isdecimal())
            for each in attributes
        )
    numbers = [dict(attributes).get("value", "") for tag, attributes in page.elements if tag == "li"]
    visible = page.text + "".join(numbers)
    for letter in set(text) - set(" \t\r\n\f\v\x1c\x1d\x1e\x1f\x85"):
        if letter.isalpha() or letter.isdecimal():
            assert visible.count(letter) >= text.count(letter), letter


def test_too_long_markdown_is_not_rendered():
    assert render_markdown("*a*" + " b" * MAX_RENDERED_CHARS) == f"<pre>*a*{' b' * MAX_RENDERED_CHARS}</pre>"
    assert "<em>a</em>" in render_markdown("*a*" + " b" * (MAX_RENDERED_CHARS // 2 - 2))


def test_links_show_address_and_lists_keep_numbers():
    rendered = render_markdown("[a](//evil.test/x 'why') ![b](x.png) <http://c.test/%41>\n\n7. d\n3. e\n")
    assert ParsedPage(rendered).text.split() == [
        "a",
        "//evil.test/x",
        "why",
        "b",
        "x.png",
        "http://c.test/%41",
        "d",
        "e",
    ]
    assert [dict(attributes) for tag, attributes in ParsedPage(rendered).elements if tag == "li"] == [
        {"value": "7"},
        {"value": "3"},
    ]
    assert ParsedPage(render_markdown("a<!---->b<?c?>")).text.strip() == "a<!---->b<?c?>"
    assert "text-align" not in render_markdown("|a|\n|:-:|\n|b|")  # The policy of the page rejects a style.


TEMPLATES = sorted((REPOSITORY / "src/muniment/server/page/templates").iterdir())
PLACEHOLDER = "7z7"


def test_templates_put_values_only_in_text_and_safe_attributes():
    assert len(TEMPLATES) > 15
    for template in TEMPLATES:
        text = template.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe|Markup|autoescape|\bon\w+=|\bstyle=|javascript:", text), (
            template.name
        )
        filled = re.sub(
            r"\{\{.*?\}\}", PLACEHOLDER, re.sub(r"\{%.*?%\}", " ", text, flags=re.DOTALL), flags=re.DOTALL
        )
        parser = ParsedPage(filled)
        for tag, attributes in parser.elements:
            assert tag in SKELETON, (template.name, tag)
            whole = re.sub(r'="[^"]*"', "", " ".join(f'{name}="{value}"' for name, value in attributes))
            assert PLACEHOLDER not in whole.replace(f"{PLACEHOLDER}=", "") or (template.name, tag) == (
                "timeline.html",
                "rect",
            ), attributes
        for tag in re.findall(r"<[a-zA-Z][^<>]*>", filled):
            assert PLACEHOLDER not in re.sub(r'"[^"]*"', "", tag) or template.name == "timeline.html", (
                template.name,
                tag,
            )


# -- in a browser ------------------------------------------------------------------------------------------

INSPECT_SCRIPT = """
const wrong = [...document.querySelectorAll("*")].filter((each) =>
  [...each.attributes].some((one) => /^on|^style$|^srcdoc$/i.test(one.name))
  || /^(iframe|frame|object|embed|base|style|img|video|audio|foreignobject|animate|use)$/i.test(each.tagName)
  || (each.tagName === "SCRIPT" && each.src !== location.origin + "/static/page.js")
  || ["href", "action", "formAction", "src"].some((name) => each[name] && typeof each[name] === "string"
      && new URL(each[name], location).origin !== location.origin));
const top = document.scrollingElement;
return {hit: window.hit ?? null, wrong: wrong.map((each) => each.outerHTML.slice(0, 200)),
        wide: Math.max(0, top.scrollWidth - top.clientWidth), title: document.title};
"""
QUICK = ("entry: tags", "review", "search")


def check_view(chromium, world, url, name, widths=(360, 1280)):
    view, query = world.views[name]
    chromium.get(f"{url}/w/{world.daemon.key}/{view}?{urlencode(query)}")
    wait_for_element(chromium, "main")
    for width in widths:
        emulate(chromium, width=width)
        found = chromium.execute_script(INSPECT_SCRIPT)
        assert found | {"title": ""} == {"hit": None, "wrong": [], "wide": 0, "title": ""}, (
            name,
            width,
            found,
        )


def assert_no_request_or_error(chromium, url):
    assert [
        each for each in read_requests(chromium) if f"{each}/".removeprefix(f"{url}/") == f"{each}/"
    ] == []
    messages = [
        each for each in read_console(chromium) if "the server responded with a status of 4" not in each
    ]
    assert messages == []


@needs_browser
def test_browser_runs_nothing_in_entry_review_or_search(chromium, world):
    url = sign_in(chromium, world.daemon)
    for name in QUICK:
        check_view(chromium, world, url, name)
    assert_no_request_or_error(chromium, url)


@needs_browser
@pytest.mark.slow
def test_browser_runs_nothing_in_any_view(chromium, world, subtests):
    url = sign_in(chromium, world.daemon)
    for name in world.views:
        with subtests.test(name):
            check_view(chromium, world, url, name)
            assert_no_request_or_error(chromium, url)
    chromium.get(f"{url}/w/{world.daemon.key}/memory")
    wait_for_element(chromium, "#content").send_keys(TAGS)
    wait_for_element(chromium, "button[name=try]").click()
    wait_for_element(chromium, "h1", "Preview")
    assert chromium.execute_script(INSPECT_SCRIPT)["hit"] is None
    assert_no_request_or_error(chromium, url)
