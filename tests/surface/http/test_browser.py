"""The permissions of pages in a real browser."""

from __future__ import annotations

import json
import queue

import pytest

from kit.browser import browser, needs_browser
from kit.pages import answering, html
from kit.server.raw import running

SECONDS = 60

SCRIPT = """<meta charset="utf-8"><script>
const daemon = %s, headers = {Authorization: "Bearer " + %s}, results = {origin: self.origin};
const json = {...headers, "Content-Type": "application/json", "Idempotency-Key": "one"};
const tries = {
  async health() { return (await fetch(daemon + "/health", {headers})).json(); },
  async tokenless() { return (await (await fetch(daemon + "/health")).json()).code; },
  async cookies() { return (await fetch(daemon + "/health", {headers, credentials: "include"})).status; },
  async other() { return (await fetch(daemon + "/health", {method: "PUT", headers})).status; },
  async remembered() {
    const events = (await fetch(daemon + "/workspace/memory/events", {headers})).body.getReader();
    const body = JSON.stringify({content: "The user reads pages"});
    const sent = await fetch(daemon + "/workspace/memory/remember", {method: "POST", headers: json, body});
    for (let seen = ""; !seen.includes('"memory_changed"'); ) {
      seen += new TextDecoder().decode((await events.read()).value);
    }
    const waiting = {headers: {...headers, Prefer: "wait=20"}};
    return (await (await fetch(daemon + sent.headers.get("Location"), waiting)).json()).status;
  },
};
(async () => {
  for (const [name, attempt] of Object.entries(tries)) results[name] = await attempt().catch(() => "blocked");
  top.postMessage(JSON.stringify(results), "*");
})();
onmessage = (event) => fetch("/results", {method: "POST", body: event.data});
</script>"""
FRAME = """<iframe sandbox="allow-scripts" src="/"></iframe>
<script>onmessage = (event) => fetch("/results", {method: "POST", body: event.data});</script>"""


@pytest.mark.slow
@needs_browser
def test_only_page_of_allowed_origin_uses_daemon(tmp_path):
    results, answers = queue.Queue(), {}

    def answer(request):
        if request.command == "POST":
            results.put(json.loads(request.sent))
        return html(answers.get(request.path, "") if request.command == "GET" else "")

    with answering(answer) as port:
        allowed = f"http://good.test:{port}"
        with running(tmp_path, allow_origins=(allowed,)) as daemon, browser(tmp_path) as chromium:
            answers |= {"/": SCRIPT % (json.dumps(daemon.url), json.dumps(daemon.token)), "/framed": FRAME}
            seen = {}
            pages = (
                ("good.test", ""),
                ("evil.test", ""),
                ("good.test.evil.test", ""),
                ("good.test", "framed"),
            )
            for name, path in pages:
                chromium.get(f"http://{name}:{port}/{path}")
                found = results.get(timeout=SECONDS)
                seen[found.pop("origin")] = found
        good = seen.pop(allowed)
        expected = {"health": {"status": "ok"}, "tokenless": "token_required", "remembered": "completed"}
        assert good == {**expected, "cookies": "blocked", "other": "blocked"}
        origins = {f"http://{name}:{port}" for name in ("evil.test", "good.test.evil.test")}
        assert seen == dict.fromkeys((*origins, "null"), dict.fromkeys(good, "blocked"))
