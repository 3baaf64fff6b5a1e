"""What pages of other origins get of the page, in a browser that is signed in to it: nothing.

What they did is told by the daemon, by the other server, and by the browser itself.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.by import By

from kit.browser import needs_browser, shown, signed_in, waited
from kit.pages import answering, html
from kit.server.process import BASE
from kit.server.raw import running
from muniment.server.guard import SESSION, Guard

ATTACK = """<!doctype html><html lang="en"><title>Another page</title><body><script>
const {views, posts, events, text} = JSON.parse(decodeURIComponent(location.hash.slice(1)));
const got = window.got = {};
const tried = [];
function attempt(name, how) {
  tried.push(new Promise((done) => {
    const say = (what) => { got[name] = String(what); done(); };
    try { how(say); } catch (error) { say("refused"); }
  }));
}
const body = () => new URLSearchParams(text);
function add(tag, name, attributes, read) {
  attempt(`${tag} ${name}`, (say) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.onload = () => { try { say(read(made)); } catch (error) { say("refused"); } };
    made.onerror = () => say("refused");
    document.body.append(made);
    setTimeout(made.onload, 1500);
  });
}
const inside = (made) => made.contentDocument?.body?.innerText || "refused";
for (const [name, url] of Object.entries(views)) {
  for (const mode of ["cors", "no-cors"]) for (const credentials of ["include", "omit"]) {
    attempt(`fetch ${mode} ${credentials} ${name}`, (say) => fetch(url, {mode, credentials}).then(
      (answer) => answer.text().then((told) => say(told || "refused")), () => say("refused")));
  }
  add("iframe", name, {src: url}, inside);
  add("object", name, {data: url, type: "text/html"}, inside);
  add("embed", name, {src: url, type: "text/html"}, (made) => made.getSVGDocument() || "refused");
  add("script", name, {src: url}, () => "ran");
  add("img", name, {src: url}, (made) => made.naturalWidth || "refused");
}
for (const [name, url] of Object.entries(posts)) {
  for (const mode of ["cors", "no-cors"]) {
    const how = {method: "POST", mode, credentials: "include", body: body()};
    attempt(`post ${mode} ${name}`, (say) => fetch(url, how).then(
      (answer) => answer.text().then((told) => say(told || "refused")), () => say("refused")));
  }
  attempt(`beacon ${name}`, (say) => { navigator.sendBeacon(url, body()); say("refused"); });
  attempt(`form ${name}`, (say) => {
    const frame = Object.assign(document.createElement("iframe"), {name: `in ${name}`});
    const form = document.createElement("form");
    Object.assign(form, {method: "post", action: url, target: frame.name});
    for (const [key, value] of Object.entries(text)) {
      form.append(Object.assign(document.createElement("input"), {name: key, value}));
    }
    document.body.append(frame, form);
    frame.onload = () => { try { say(inside(frame)); } catch (error) { say("refused"); } };
    form.submit();
    setTimeout(() => say("refused"), 1500);
  });
}
attempt("events", (say) => {
  const stream = new EventSource(events, {withCredentials: true});
  stream.onopen = () => say("open");
  stream.onerror = () => { stream.close(); say("refused"); };
});
attempt("window", (say) => {
  const other = window.open(Object.values(views)[0]);
  setTimeout(() => {
    try { say(other.document.body.innerText || "refused"); } catch (error) { say("refused"); }
    other?.close();
  }, 500);
});
Promise.all(tried).then(() => { got.done = "refused"; });
</script></body></html>"""


@contextmanager
def foreign_server():
    """Somebody else on another port of this machine: it, and the hosts and cookies that were sent there."""
    seen = []

    def attack(asked):
        seen.append((asked.headers["Host"], asked.headers.get("Cookie", "")))
        return html(ATTACK)

    with answering(attack) as port:
        yield port, seen


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("page")) as served:
        yield served


@pytest.fixture
def at_door(monkeypatch):
    """Every request that comes to the door: path, cookie, the page that it is of, whether of a session."""
    seen, real = [], Guard._at_door

    def admitted(guard, scope):
        headers, is_known = dict(scope["headers"]), False
        try:
            state = real(guard, scope)
            is_known = state[SESSION] is not None
            return state
        finally:
            told = (headers.get(name, b"").decode() for name in (b"cookie", b"referer"))
            seen.append((scope["raw_path"].decode(), *told, is_known))

    monkeypatch.setattr(Guard, "_at_door", admitted)
    return seen


def attacked(driver, daemon, page, origin):
    """Have a page at an origin try everything; what it got by what it tried."""
    at = f"{page}/w/{daemon.key}"
    told = {
        "views": {"memory": f"{at}/memory", "start": f"{page}/", "file": f"{page}/static/page.js"},
        "posts": {each: f"{at}/{each}" for each in ("remember", "forget", "approve")}
        | {"sign-in": f"{page}/sign-in", "sign-out": f"{page}/sign-out"},
        "events": f"{at}/events",
        "text": {"content": "The user prefers dark mode", "path": "user/a.md", "id": "x", "code": "x"},
    }
    driver.get("about:blank")
    driver.get(f"{origin}/#{json.dumps(told)}")
    return waited(driver, lambda _: driver.execute_script("return window.got?.done && window.got"))


@needs_browser
@pytest.mark.sweep(1)
@pytest.mark.parametrize("place", ["NAME", "evil.test", "127.0.0.1", "localhost"])
def test_a_page_of_another_origin_reads_posts_frames_opens_and_follows_nothing(
    chromium, daemon, at_door, place
):
    page = signed_in(chromium, daemon)
    waited(chromium, lambda _: chromium.execute_script("return document.readyState") == "complete")
    name = urlsplit(page).hostname
    with foreign_server() as (port, seen):
        at_door.clear()
        origin = f"http://{place.replace('NAME', name)}:{port}"
        got = attacked(chromium, daemon, page, origin)
        assert {what: told for what, told in got.items() if told != "refused"} == {}
        assert len(got) > 30
        # Our own page, before it was left and in the window, asks as well: it names itself, as no other can.
        theirs = [
            (path, cookie, known) for path, cookie, of, known in at_door if not of.startswith(f"{page}/")
        ]
        assert len(theirs) > 20
        assert [path for path, _, is_known in theirs if is_known] == []
        has_cookie = any("muniment=" in cookie for _, cookie in seen)
        assert has_cookie == (place == "NAME")  # Cookies do not know ports: see T-API-16.
        assert any("muniment=" in cookie for _, cookie, _ in theirs) == (place == "NAME")
        assert len(daemon.guard.following) == 0
        # A link leads to the way in, and from there, by the page itself, to where its owner was.
        script = (
            "const a = document.createElement('a'); a.href = arguments[0]; document.body.append(a); a.click()"
        )
        chromium.execute_script(script, f"{page}/w/{daemon.key}/timeline")
        shown(chromium, "#sign-in")
        chromium.find_element(By.ID, "go-on").click()
        shown(chromium, "h1", "Timeline")
    assert daemon.get(f"{BASE}/tasks").json()["tasks"] == []
    cookies = chromium.execute_cdp_cmd("Storage.getCookies", {})["cookies"]
    assert [(each["name"], each["domain"], each["httpOnly"], each["sameSite"]) for each in cookies] == [
        ("muniment", name, True, "Strict")
    ]


@needs_browser
@pytest.mark.slow
def test_the_file_that_a_browser_is_sent_to_leads_in_and_its_code_leaves_the_address(
    chromium, command, tmp_path, monkeypatch
):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    with running(tmp_path):
        assert command("ui", "--open")[0] == 0
        chromium.get(opened[0])
        shown(chromium, "h1", "Memory")
        assert "#" not in chromium.current_url
        chromium.back()
        assert "#" not in chromium.current_url
