"""Pages of other origins get nothing from the page, in a browser that is signed in to it.

The daemon, the other server and the browser itself record the attempts.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.by import By

from kit.browser import needs_browser, sign_in, wait_for, wait_for_element
from kit.http_server import html_response, serve_http
from kit.server.process import BASE
from kit.server.raw import start_local_daemon
from muniment.server.guard import SESSION, Guard

ATTACK = """<!doctype html><html lang="en"><title>Another page</title><body><script>
const {views, posts, events, text} = JSON.parse(decodeURIComponent(location.hash.slice(1)));
const got = window.got = {};
const tried = [];
function attempt(name, how) {
  tried.push(new Promise((done) => {
    const report = (what) => { got[name] = String(what); done(); };
    try { how(report); } catch (error) { report("refused"); }
  }));
}
const body = () => new URLSearchParams(text);
function add(tag, name, attributes, read) {
  attempt(`${tag} ${name}`, (report) => {
    const element = Object.assign(document.createElement(tag), attributes);
    element.onload = () => { try { report(read(element)); } catch (error) { report("refused"); } };
    element.onerror = () => report("refused");
    document.body.append(element);
    // The others report a load or an error, however slow the server is.
    if (["object", "embed"].includes(tag)) setTimeout(element.onload, 1500);
  });
}
const inside = (element) => element.contentDocument?.body?.innerText || "refused";
for (const [name, url] of Object.entries(views)) {
  for (const mode of ["cors", "no-cors"]) for (const credentials of ["include", "omit"]) {
    attempt(`fetch ${mode} ${credentials} ${name}`, (report) => fetch(url, {mode, credentials}).then(
      (answer) => answer.text().then((reply) => report(reply || "refused")), () => report("refused")));
  }
  add("iframe", name, {src: url}, inside);
  add("object", name, {data: url, type: "text/html"}, inside);
  add("embed", name, {src: url, type: "text/html"}, (element) => element.getSVGDocument() || "refused");
  add("script", name, {src: url}, () => "ran");
  add("img", name, {src: url}, (element) => element.naturalWidth || "refused");
}
for (const [name, url] of Object.entries(posts)) {
  for (const mode of ["cors", "no-cors"]) {
    const how = {method: "POST", mode, credentials: "include", body: body()};
    attempt(`post ${mode} ${name}`, (report) => fetch(url, how).then(
      (answer) => answer.text().then((reply) => report(reply || "refused")), () => report("refused")));
  }
  attempt(`beacon ${name}`, (report) => { navigator.sendBeacon(url, body()); report("refused"); });
  attempt(`form ${name}`, (report) => {
    const frame = Object.assign(document.createElement("iframe"), {name: `in ${name}`});
    const form = document.createElement("form");
    Object.assign(form, {method: "post", action: url, target: frame.name});
    for (const [key, value] of Object.entries(text)) {
      form.append(Object.assign(document.createElement("input"), {name: key, value}));
    }
    document.body.append(frame, form);
    frame.onload = () => { try { report(inside(frame)); } catch (error) { report("refused"); } };
    form.submit();
    setTimeout(() => report("refused"), 1500);
  });
}
attempt("events", (report) => {
  const stream = new EventSource(events, {withCredentials: true});
  stream.onopen = () => report("open");
  stream.onerror = () => { stream.close(); report("refused"); };
});
attempt("window", (report) => {
  const other = window.open(Object.values(views)[0]);
  setTimeout(() => {
    try { report(other.document.body.innerText || "refused"); } catch (error) { report("refused"); }
    other?.close();
  }, 500);
});
Promise.all(tried).then(() => { got.done = "refused"; });
</script></body></html>"""


@contextmanager
def foreign_server():
    """Run another server on this machine; yield its port, and the hosts and cookies that it received."""
    seen = []

    def attack(request):
        seen.append((request.headers["Host"], request.headers.get("Cookie", "")))
        return html_response(ATTACK)

    with serve_http(attack) as port:
        yield port, seen


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with start_local_daemon(tmp_path_factory.mktemp("page")) as served:
        yield served


@pytest.fixture
def door_requests(monkeypatch):
    """Record each request to the door: path, cookie, referring page, and whether it has a session."""
    seen, original = [], Guard._admit_to_page

    def record_request(guard, scope):
        headers, has_session = dict(scope["headers"]), False
        try:
            state = original(guard, scope)
            has_session = state[SESSION] is not None
            return state
        finally:
            values = (headers.get(name, b"").decode() for name in (b"cookie", b"referer"))
            seen.append((scope["raw_path"].decode(), *values, has_session))

    monkeypatch.setattr(Guard, "_admit_to_page", record_request)
    return seen


def run_attack(driver, daemon, page, origin):
    """Open a page at an origin that tries everything; return the result of each attempt."""
    base = f"{page}/w/{daemon.key}"
    targets = {
        "views": {"memory": f"{base}/memory", "start": f"{page}/", "file": f"{page}/static/page.js"},
        "posts": {each: f"{base}/{each}" for each in ("remember", "forget", "approve")}
        | {"sign-in": f"{page}/sign-in", "sign-out": f"{page}/sign-out"},
        "events": f"{base}/events",
        "text": {"content": "The user prefers dark mode", "path": "user/a.md", "id": "x", "code": "x"},
    }
    driver.get("about:blank")
    driver.get(f"{origin}/#{json.dumps(targets)}")
    return wait_for(driver, lambda _: driver.execute_script("return window.got?.done && window.got"))


@needs_browser
@pytest.mark.sweep(1)
@pytest.mark.parametrize("host", ["NAME", "evil.test", "127.0.0.1", "localhost"])
def test_foreign_page_cannot_read_post_frame_or_open(chromium, daemon, door_requests, host):
    page = sign_in(chromium, daemon)
    wait_for(chromium, lambda _: chromium.execute_script("return document.readyState") == "complete")
    name = urlsplit(page).hostname
    with foreign_server() as (port, seen):
        door_requests.clear()
        origin = f"http://{host.replace('NAME', name)}:{port}"
        results = run_attack(chromium, daemon, page, origin)
        assert {attempt: result for attempt, result in results.items() if result != "refused"} == {}
        assert len(results) > 30
        # Our own page also sends requests, before it is left and in the window. It names itself, which no
        # other page can.
        foreign_requests = [
            (path, cookie, known)
            for path, cookie, referrer, known in door_requests
            if not referrer.startswith(f"{page}/")
        ]
        assert len(foreign_requests) > 20
        assert [path for path, _, is_known in foreign_requests if is_known] == []
        has_cookie = any("muniment=" in cookie for _, cookie in seen)
        assert has_cookie == (host == "NAME")  # Cookies do not know ports: see T-API-16.
        assert any("muniment=" in cookie for _, cookie, _ in foreign_requests) == (host == "NAME")
        assert len(daemon.guard.following) == 0
        # A link leads to the sign-in form, and from there the page itself leads back to the view.
        script = (
            "const a = document.createElement('a'); a.href = arguments[0]; document.body.append(a); a.click()"
        )
        chromium.execute_script(script, f"{page}/w/{daemon.key}/timeline")
        wait_for_element(chromium, "#sign-in")
        chromium.find_element(By.ID, "go-on").click()
        wait_for_element(chromium, "h1", "Timeline")
    assert daemon.get(f"{BASE}/tasks").json()["tasks"] == []
    cookies = chromium.execute_cdp_cmd("Storage.getCookies", {})["cookies"]
    assert [(each["name"], each["domain"], each["httpOnly"], each["sameSite"]) for each in cookies] == [
        ("muniment", name, True, "Strict")
    ]


@needs_browser
@pytest.mark.slow
def test_ui_open_signs_in_and_removes_code_from_address(chromium, run_command, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    with start_local_daemon(tmp_path):
        assert run_command("ui", "--open")[0] == 0
        chromium.get(opened[0])
        wait_for_element(chromium, "h1", "Memory")
        assert "#" not in chromium.current_url
        chromium.back()
        assert "#" not in chromium.current_url
