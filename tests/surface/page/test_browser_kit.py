"""The browser of the tests reports requests, errors and problems; else every page would seem harmless."""

from __future__ import annotations

import hashlib

from selenium.webdriver.common.by import By

from kit.browser import (
    AXE,
    find_axe_violations,
    needs_browser,
    read_console,
    read_requests,
    read_tab_order,
    wait_for_element,
)
from kit.http_server import html_response, serve_http

PAGE = """<!doctype html><html lang="en"><title>Page</title><main><h1>Page</h1><img src="http://image.test/">
<link rel="dns-prefetch" href="http://name.invalid/"><link rel="preconnect" href="http://ahead.test:9/">
<script>document.title = "ran"</script><a href="#here">first</a><label>second<input></label>
<a href="http://tab.test:9/" target="_blank">third</a></main>"""
STRICT = "default-src 'self'; trusted-types 'none'; require-trusted-types-for 'script'"


@needs_browser
def test_browser_reports_requests_errors_and_problems(chromium):
    with serve_http(lambda _: html_response(PAGE, **{"Content-Security-Policy": STRICT})) as port:
        url = f"http://m-0123.localhost:{port}"
        chromium.get(url)
        wait_for_element(chromium, "main")
        assert {"http://image.test/", "http://name.invalid", "http://ahead.test:9/"} <= set(
            read_requests(chromium)
        )
        messages = "\n".join(read_console(chromium))
        assert "inline script violates the following Content Security Policy" in messages
        assert chromium.title == "Page"
        assert [(rule, target) for rule, target, _ in find_axe_violations(chromium)] == [("image-alt", "img")]
        assert read_tab_order(chromium) == [("a", "first"), ("input", "second"), ("a", "third")]
        # The inspection itself sends none.
        assert [each for each in read_requests(chromium) if not each.startswith(url)] == []
        assert read_console(chromium) == []
        chromium.find_element(By.LINK_TEXT, "third").click()
        assert "http://tab.test:9/" in read_requests(chromium)


def test_axe_core_has_published_digest():
    page = AXE.with_name("README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() in page
