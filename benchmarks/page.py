"""What the page costs over 10 000 entries: its first view, a thousand views, a search as one types.

    PYTHONPATH=tests python benchmarks/page.py [ENTRIES]

The daemon is a process of its own over entries of `measuring.lay_out`, fifty in a folder. CPU is that of the
daemon; sizes are what comes over the wire, with no compression. The search is typed in Chromium, with the kit
of the tests: milliseconds from the last key to the found entry in the page, each of `QUERIES` once, with a
pause before the next. Without Chromium that part is left out.
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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from measuring import cpu_of, lay_out

ENTRIES = 10_000
VIEWS, BATCH, ROUNDS = 1_000, 100, 20
QUERIES = 30
PROGRAM = (str(Path(sys.executable).with_name("muniment")), "serve")

TYPED = """
const [number, done] = arguments;
const field = document.getElementById("q"), results = document.getElementById("results");
const whole = `fact ${number}`, wanted = `Fact ${number}`;
const found = () => [...results.querySelectorAll("a")].some((each) => each.textContent === wanted);
let from = 0;
const seen = new MutationObserver(() => {
  if (!from || !found()) return;
  seen.disconnect();
  done(performance.now() - from);
});
seen.observe(results, {childList: true, subtree: true});
const type = (count) => {
  field.value = whole.slice(0, count);
  if (count === whole.length) from = performance.now();
  field.dispatchEvent(new Event("input", {bubbles: true}));
  if (count < whole.length) setTimeout(type, 120, count + 1);
};
type(1);
"""


class Visit:
    """Somebody who has signed in to the page of a daemon."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self.process = process
        self.at = json.loads((home / "state" / "daemon.json").read_text())["url"].removeprefix("http://")
        self.token = (home / "state" / "token").read_text().strip()
        self.line = http.client.HTTPConnection(self.at)
        self.page, code = self.invited()
        origin = {"Host": self.page, "Origin": f"http://{self.page}", "Sec-Fetch-Site": "same-origin"}
        form = {**origin, "Content-Type": "application/x-www-form-urlencoded"}
        signed_in = self.ask("POST", "/sign-in", urlencode({"code": code}), form)
        cookie = signed_in.headers["set-cookie"].partition(";")[0]
        self.headers = {"Host": self.page, "Sec-Fetch-Site": "same-origin", "Cookie": cookie}
        self.root = self.ask("GET", "/", None, self.headers).headers["location"].rpartition("/")[0]

    def invited(self) -> tuple[str, str]:
        """The page's host and a code."""
        answer = self.ask("POST", "/ui", None, {"Host": self.at, "Authorization": f"Bearer {self.token}"})
        told = json.loads(answer.told)
        return told["url"].removeprefix("http://"), told["code"]

    def ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Any:
        """An answer; `told` is its body."""
        self.line.request(method, path, body, headers)
        answer: Any = self.line.getresponse()
        answer.told = answer.read()
        assert answer.status in {200, 303}, (answer.status, answer.told)
        return answer

    def view(self, path: str) -> bytes:
        """A view of the workspace."""
        return bytes(self.ask("GET", f"{self.root}/{path}", None, self.headers).told)

    def cpu(self) -> float:
        """CPU seconds of the daemon so far."""
        return cpu_of(self.process.pid)

    def resident(self) -> float:
        """Resident MB of the daemon."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def served(entries: int) -> Iterator[Visit]:
    """A daemon over so many entries in a throwaway home."""
    with tempfile.TemporaryDirectory() as base:
        home, work = Path(base, "home"), Path(base, "work")
        (work / ".git").mkdir(parents=True)
        home.mkdir(mode=0o700)
        lay_out(home / "user", entries)
        process = subprocess.Popen(
            [*PROGRAM, "--workspace", str(work), "--json"],
            env={**os.environ, "MUNIMENT_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield Visit(process, home)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            process.stdout.close()


def views(visit: Visit) -> None:
    """The first view and others: CPU and bytes; then a thousand of them."""
    started = visit.cpu()
    visit.view("memory")
    print(f"the very first view, which reads every file: {visit.cpu() - started:.2f} s of CPU")
    found = visit.view("search?q=fact")
    path = re.search(r'entry\?path=([^"]+)', found.decode())
    assert path is not None
    for name in (
        "memory",
        "memory?after=topic-100",
        "search?q=fact+4711",
        f"entry?path={path[1]}",
        "timeline",
    ):
        took = []
        for _ in range(ROUNDS):
            before = visit.cpu()
            size = len(visit.view(name))
            took.append((visit.cpu() - before) * 1000)
        print(f"{name:32} {statistics.median(took):6.1f} ms of CPU, {size / 1000:6.1f} kB")
    sizes = []
    for number in range(VIEWS):
        if number % BATCH == 0:
            sizes.append(visit.resident())
        visit.view("memory")
    print("resident MB, each 100 views:", *(f"{size:.0f}" for size in (*sizes, visit.resident())))


def typed(visit: Visit, entries: int) -> None:
    """Milliseconds from the last key to what was meant."""
    kit: Any = import_module("kit.browser")
    if kit.CHROMIUM is None or kit.CHROMEDRIVER is None:
        print("search as one types: left out, there is no Chromium")
        return
    with tempfile.TemporaryDirectory() as base, kit.browser(Path(base)) as driver:
        host, code = visit.invited()
        driver.get(f"http://{host}/#{code}")
        kit.waited(driver, lambda _: "/w/" in driver.current_url)
        driver.get(f"http://{host}{visit.root}/search")
        took = []
        for number in range(QUERIES):
            time.sleep(0.3)
            took.append(driver.execute_async_script(TYPED, (number * 3_331 + 1_234) % entries))
        middle, most = statistics.median(took), statistics.quantiles(took, n=20)[-1]
        print(f"from the last key to what is found: {middle:.0f} ms, 95th percentile {most:.0f} ms")


def main() -> None:
    """Measure."""
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else ENTRIES
    with served(entries) as visit:
        views(visit)
        typed(visit, entries)


if __name__ == "__main__":
    main()
