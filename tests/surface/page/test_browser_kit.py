"""The browser of the tests reports requests, errors and problems; else every page would seem harmless."""

from __future__ import annotations

import hashlib

from selenium.webdriver.common.by import By

from kit.browser import AXE, axe, console, needs_browser, requests, shown, tab_order
from kit.pages import answering, html

PAGE = """<!doctype html><html lang="en"><title>Page</title><main><h1>Page</h1><img src="http://image.test/">
<link rel="dns-prefetch" href="http://name.invalid/"><link rel="preconnect" href="http://ahead.test:9/">
<script>document.title = "ran"</script><a href="#here">first</a><label>second<input></label>
<a href="http://tab.test:9/" target="_blank">third</a></main>"""
STRICT = "default-src 'self'; trusted-types 'none'; require-trusted-types-for 'script'"


@needs_browser
def test_browser_reports_requests_errors_and_problems(chromium):
    with answering(lambda _: html(PAGE, **{"Content-Security-Policy": STRICT})) as port:
        url = f"http://m-0123.localhost:{port}"
        chromium.get(url)
        shown(chromium, "main")
        assert {"http://image.test/", "http://name.invalid", "http://ahead.test:9/"} <= set(
            requests(chromium)
        )
        messages = "\n".join(console(chromium))
        assert "inline script violates the following Content Security Policy" in messages
        assert chromium.title == "Page"
        assert [(rule, target) for rule, target, _ in axe(chromium)] == [("image-alt", "img")]
        assert tab_order(chromium) == [("a", "first"), ("input", "second"), ("a", "third")]
        # The inspection itself sends none.
        assert [each for each in requests(chromium) if not each.startswith(url)] == []
        assert console(chromium) == []
        chromium.find_element(By.LINK_TEXT, "third").click()
        assert "http://tab.test:9/" in requests(chromium)


def test_axe_core_has_published_digest():
    page = AXE.with_name("README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() in page
