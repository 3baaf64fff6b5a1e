"""Measure the page of the daemon: each view of a memory of 10 000 entries, and a thousand views in a row.

    python benchmarks/page.py [ENTRIES]

A separate `muniment ui` over a throwaway home, with one client on the same machine. The entries were listed
once before, as in any used home. CPU is the time of the daemon for one view (medians of `ROUNDS`; the first
view is separate, since it loads the modules of the page). Bytes are the view with the style, the scripts and
the icon that a browser loads for it. If Selenium, Chromium and its driver are installed, search as you type
is measured in the browser: from the event of the last key to the results on the page.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from measuring import create_tree, measure_cpu

ENTRIES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
ROUNDS, VIEWS = 20, 1_000
CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
LOADED = ("/static/page.css", "/static/page.js", "/static/icon.svg")
PROGRAM = (str(Path(sys.executable).with_name("muniment")), "ui", "--json")
TYPED = """
const [field, words, done] = arguments;
const results = document.getElementById("results");
const shown = new MutationObserver(() => {
  if (!results.textContent.includes(words)) return;
  shown.disconnect();
  done(performance.now() - began);
});
shown.observe(results, {childList: true, subtree: true});
field.value = words;
const began = performance.now();
field.dispatchEvent(new InputEvent("input", {bubbles: true}));
"""


class Browser:
    """A signed-in client, like a browser."""

    def __init__(self, info: dict[str, str], pid: int) -> None:
        self.info, self.pid, self._cookie = info, pid, ""
        self.host = urlsplit(info["url"]).netloc
        self._connection = http.client.HTTPConnection("127.0.0.1", urlsplit(info["url"]).port, timeout=60)
        self.request("POST", "/sign-in", {"code": info["code"]})
        self.prefix = re.match("/w/[^/]+", urlsplit(info["address"]).path)[0]  # type: ignore[index]

    def request(self, method: str, path: str, form: dict[str, str] | None = None) -> bytes:
        """Send a request and return the content of the response."""
        headers = {"Host": self.host, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
        headers |= {"Cookie": self._cookie} if self._cookie else {}
        if form is not None:
            headers |= {"Origin": self.info["url"], "Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request(method, path, None if form is None else urlencode(form), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status not in {200, 303}:
            raise SystemExit(f"{path}: {answer.status} {content!r}")
        self._cookie = (answer.getheader("set-cookie") or self._cookie).partition(";")[0]
        return content

    def read_cookie(self) -> str:
        """Return the value of the cookie."""
        return self._cookie.partition("=")[2]

    def measure_cost(self, view: str) -> tuple[float, int]:
        """Return the milliseconds of CPU and the bytes of one view."""
        before = measure_cpu(self.pid)
        content = self.request("GET", f"{self.prefix}/{view}")
        return (measure_cpu(self.pid) - before) * 1000, len(content)

    def read_memory(self) -> float:
        """Return the resident MB of the daemon."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def open_browser(base: Path) -> Iterator[Browser]:
    """Start a daemon over a memory of `ENTRIES`, and yield a signed-in client."""
    create_tree(base / "home" / "user", ENTRIES)
    (base / "work" / ".git").mkdir(parents=True)
    environment = {**os.environ, "MUNIMENT_HOME": str(base / "home")}
    listing = (PROGRAM[0], "ls", "--json")
    subprocess.run(listing, cwd=base / "work", env=environment, stdout=subprocess.DEVNULL, check=True)
    with subprocess.Popen(
        PROGRAM,
        cwd=base / "work",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield Browser(json.loads(process.stdout.readline()), process.pid)  # type: ignore[union-attr]
        finally:
            process.send_signal(signal.SIGTERM)


def measure_views(browser: Browser) -> None:
    """Print the cost of each view."""
    loaded = sum(len(browser.request("GET", path)) for path in LOADED)
    first, size = browser.measure_cost("memory")
    print(f"the first view: {first:.0f} ms of CPU, {(size + loaded) / 1000:.0f} kB with its resources")
    entry = "entry?" + urlencode({"path": "user/topic-3/fact-170.md"})
    search = "search?" + urlencode({"q": "word77 word108"})
    for view in ("memory", "memory?topic=topic-3", entry, search, "tasks", "timeline", "audit", "policy"):
        costs = [browser.measure_cost(view) for _ in range(ROUNDS)]
        middle = statistics.median(cpu for cpu, _ in costs)
        print(f"  {view:40} {middle:6.1f} ms {(costs[0][1] + loaded) / 1000:6.0f} kB")


def measure_memory(browser: Browser) -> None:
    """Print the resident memory during repeated views."""
    sizes = []
    for number in range(VIEWS + 1):
        if number % (VIEWS // 5) == 0:
            sizes.append(browser.read_memory())
        browser.request("GET", f"{browser.prefix}/memory")
    memory_sizes = " ".join(f"{each:.1f}" for each in sizes)
    print(f"resident MB at every {VIEWS // 5} of {VIEWS} views: {memory_sizes}")


def measure_typing(browser: Browser, base: Path) -> None:
    """Print the time from the last key to the results."""
    if find_spec("selenium") is None or not (Path(CHROMIUM).exists() and Path(DRIVER).exists()):
        print("search as you type: not measured, Selenium, Chromium or its driver is missing")
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={base / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get(f"{browser.info['url']}/static/icon.svg")
        driver.add_cookie(
            {"name": "muniment", "value": browser.read_cookie(), "httpOnly": True, "sameSite": "Strict"}
        )
        driver.get(f"{browser.info['url']}{browser.prefix}/search")
        field = driver.find_element("id", "q")
        times = [
            driver.execute_async_script(TYPED, field, f"word{(number * 37) % 997}")
            for number in range(ROUNDS)
        ]
    finally:
        driver.quit()
    print(
        f"search as you type, from the key to the results: median {statistics.median(times):.0f} ms, "
        f"most {max(times):.0f} ms of {ROUNDS}"
    )


def main() -> None:
    """Print all figures."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory).resolve()
        with open_browser(base) as browser:
            print(f"{ENTRIES} entries")
            measure_views(browser)
            measure_memory(browser)
            measure_typing(browser, base)


if __name__ == "__main__":
    main()
