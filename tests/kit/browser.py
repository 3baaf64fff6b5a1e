"""Chromium, driven as people use it, and what it tells of a page: requests, messages, focus, accessibility.

`/usr/bin/chromium` and `/usr/bin/chromedriver` as Debian ships them, or those that `MUNIMENT_CHROMIUM` and
`MUNIMENT_CHROMEDRIVER` name. Nothing is downloaded.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
from contextlib import contextmanager, suppress
from functools import cache

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from kit.where import TESTS

CHROMIUM = shutil.which(os.environ.get("MUNIMENT_CHROMIUM", "chromium"))
CHROMEDRIVER = shutil.which(os.environ.get("MUNIMENT_CHROMEDRIVER", "chromedriver"))
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or CHROMEDRIVER is None,
    reason="there is no chromium or chromedriver, and MUNIMENT_CHROMIUM and MUNIMENT_CHROMEDRIVER name none",
)
SECONDS = 30
"""After which a page counts as stuck."""

_NAMES = (
    *("MAP *.test 127.0.0.1", "MAP * ~NOTFOUND"),
    *("EXCLUDE *.invalid", "EXCLUDE *.localhost", "EXCLUDE localhost", "EXCLUDE 127.0.0.1"),
)
"""No name leads off this machine: `*.test` is this machine, and of `*.invalid` the look-up alone shows."""

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--no-proxy-server", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-breakpad", f"--host-resolver-rules={', '.join(_NAMES)}"),
)

_ASKED = ("URL_REQUEST_START_JOB", "HTTP_STREAM_JOB_CONTROLLER", "HOST_RESOLVER_MANAGER_REQUEST")
_OWN = re.compile(
    r"(data|blob|about|chrome[\w-]*|devtools):|https?://(~notfound|127\.0\.0\.1:\d+$|marker-\d+\.test"
    r"|([\w-]+\.)*(google|googleapis|duckduckgo)\.com[/:])"
)
"""What needs no network, how names above are logged, our markers, and what the browser asks for by itself."""

AXE = TESTS / "vendor" / "axe-core" / "axe.min.js"
_MOST_TABS = 1_000


class NetLog:
    """What the network of a browser did for whomever: its own log, which it writes some events late."""

    def __init__(self, path):
        self._path, self._markers, self._read, self._kinds = path, itertools.count(), 0, frozenset()

    def asked(self, driver):
        """The URLs and names that were asked for since the last call; all, since a later one shows."""
        marker, found = f"http://marker-{next(self._markers)}.test:9/", []
        tab = driver.execute_cdp_cmd("Target.createTarget", {"url": marker, "background": True})
        waited(driver, lambda _: found.extend(self._news()) or marker in found)
        driver.execute_cdp_cmd("Target.closeTarget", tab)
        waited(driver, lambda _: tab["targetId"] not in driver.window_handles)
        return found

    def _news(self):
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        found = []
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            if line.startswith(b'{"constants"'):
                kinds = json.loads(line.rstrip()[:-1] + b"}")["constants"]["logEventTypes"]
                self._kinds = {kinds[name] for name in _ASKED}
            elif line.startswith(b'{"params"'):
                event = json.loads(line.rstrip()[:-1])
                params = event["params"] if event["type"] in self._kinds else {}
                found += [params[key] for key in ("url", "host") if key in params]
        return found


@contextmanager
def browser(base, *, width=1280, height=900, dark=False):
    """A browser with a profile and a home of its own below `base`; it and all its processes end with it."""
    home = base / "browser"
    home.mkdir()
    log = home / "network.json"
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={home / 'profile'}", f"--log-net-log={log}"):
        options.add_argument(flag)
    environment = {**os.environ, "HOME": str(home), "SE_OFFLINE": "true"}
    service = ChromeService(CHROMEDRIVER, env=environment, popen_kw={"start_new_session": True})
    try:
        driver = Chrome(options, service)
        driver.net_log = NetLog(log)
        emulate(driver, width=width, height=height, dark=dark)
        yield driver
        driver.quit()
    finally:
        if service.process is not None:
            with suppress(ProcessLookupError):  # It went by itself, as it should.
                os.killpg(service.process.pid, signal.SIGKILL)
            service.process.wait(SECONDS)


def afresh(driver):
    """Go on in a new tab, the only one, with nothing of what was before stored, cached or logged."""
    old = driver.window_handles
    driver.switch_to.new_window("tab")
    kept = driver.current_window_handle
    for handle in old:
        driver.switch_to.window(handle)
        driver.close()
    driver.switch_to.window(kept)
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    emulate(driver)
    requests(driver)
    console(driver)


def emulate(driver, *, width=1280, height=900, dark=False):
    """The size of the view in CSS pixels, and the colours that its reader prefers; for this tab."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # It stands in front.


def waited(driver, condition):
    """What `condition(driver)` gives once it is true; an element that is not there counts as false."""
    passing = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(driver, SECONDS, poll_frequency=0.02, ignored_exceptions=passing).until(condition)


def shown(driver, selector, text=""):
    """The first element of a CSS selector that is displayed and holds a text, once there is one."""

    def found(_):
        matching = driver.find_elements(By.CSS_SELECTOR, selector)
        return next((each for each in matching if each.is_displayed() and text in each.text), None)

    return waited(driver, found)


def signed_in(driver, daemon):
    """Open the page as its owner does; the page's origin."""
    told = daemon.post("/ui").json()
    driver.get(f"{told['url']}/#{told['code']}")
    waited(driver, lambda _: "/w/" in driver.current_url)
    shown(driver, "main")
    return told["url"]


def requests(driver):
    """Every URL that any tab, frame, script or hint asked for since the last call, in vain as well.

    Of two logs. That of the network alone has first loads of new tabs, and connections and look-ups ahead of
    need, the last as `http://name:port`. That of the page alone has what its policy blocked, except frames,
    plugins, media and icons: those stand in `console`.
    """
    found = driver.net_log.asked(driver)
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
        elif message["method"] == "Network.webSocketCreated":
            found.append(message["params"]["url"])
    return [url for url in dict.fromkeys(found) if not _OWN.match(url)]


def console(driver):
    """The browser's messages since the last call: what a policy refused, errors of scripts, failed loads."""
    return [entry["message"] for entry in driver.get_log("browser")]


def tab_order(driver):
    """What gets focus by pressing Tab from the top of the page until it starts over: pairs of tag and name.

    Raises:
        AssertionError: Tab turns in a circle that leaves out where it began.
    """
    driver.execute_script("document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0)")
    passed, order = [], []
    for _ in range(_MOST_TABS):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        now = driver.switch_to.active_element
        if now.tag_name == "body" or now in passed[:1]:
            return order
        assert now not in passed, f"focus is caught at {order[-1]}"
        passed.append(now)
        order.append((now.tag_name, now.accessible_name))
    raise AssertionError(f"more than {_MOST_TABS} elements get focus")


_RUN_AXE = """
const done = arguments[0], options = {resultTypes: ["violations"], preload: false};
axe.run(options).then(done, (error) => done(String(error.stack ?? error)));
"""


@cache
def _axe():
    return AXE.read_text(encoding="utf-8")


def axe(driver):
    """What axe-core finds serious or critical in the page as it is now: rule, element, what to mend.

    Raises:
        AssertionError: axe-core itself failed.
    """
    if not driver.execute_script("return 'run' in Object(window.axe)"):
        driver.execute_script(_axe())
    found = driver.execute_async_script(_RUN_AXE)
    assert isinstance(found, dict), found
    return [
        (violation["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for violation in found["violations"]
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]
