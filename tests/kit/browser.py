"""Chromium driven like a user, and what a page did: requests, messages, focus, accessibility.

Uses `/usr/bin/chromium` and `/usr/bin/chromedriver` of Debian, or the programs in `MUNIMENT_CHROMIUM` and
`MUNIMENT_CHROMEDRIVER`. Downloads nothing.
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

from kit.locations import TESTS

CHROMIUM = shutil.which(os.environ.get("MUNIMENT_CHROMIUM", "chromium"))
CHROMEDRIVER = shutil.which(os.environ.get("MUNIMENT_CHROMEDRIVER", "chromedriver"))
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or CHROMEDRIVER is None,
    reason="chromium or chromedriver not found; set MUNIMENT_CHROMIUM and MUNIMENT_CHROMEDRIVER",
)
SECONDS = 30
"""A page that takes longer counts as stuck."""

_HOST_RULES = (
    *("MAP *.test 127.0.0.1", "MAP * ~NOTFOUND"),
    *("EXCLUDE *.invalid", "EXCLUDE *.localhost", "EXCLUDE localhost", "EXCLUDE 127.0.0.1"),
)
"""No name resolves outside this machine: `*.test` is this machine; `*.invalid` only shows the lookup."""

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--no-proxy-server", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-breakpad", f"--host-resolver-rules={', '.join(_HOST_RULES)}"),
)

_REQUEST_EVENTS = ("URL_REQUEST_START_JOB", "HTTP_STREAM_JOB_CONTROLLER", "HOST_RESOLVER_MANAGER_REQUEST")
_INTERNAL_URLS = re.compile(
    r"(data|blob|about|chrome[\w-]*|devtools):|https?://(~notfound|127\.0\.0\.1:\d+$|marker-\d+\.test"
    r"|([\w-]+\.)*(google|googleapis|duckduckgo)\.com[/:])"
)
"""URLs that need no network, mapped names in logs, marker URLs, and requests of the browser itself."""

AXE = TESTS / "vendor" / "axe-core" / "axe.min.js"
_MOST_TABS = 1_000


class NetLog:
    """The network log of a browser, which is written with a delay."""

    def __init__(self, path):
        self._path, self._markers, self._read, self._kinds = path, itertools.count(), 0, frozenset()

    def read_requests(self, driver):
        """Return the URLs and names requested since the last call; complete, because a later marker has been
        logged.
        """
        marker, found = f"http://marker-{next(self._markers)}.test:9/", []
        tab = driver.execute_cdp_cmd("Target.createTarget", {"url": marker, "background": True})
        wait_for(driver, lambda _: found.extend(self._read_new_events()) or marker in found)
        driver.execute_cdp_cmd("Target.closeTarget", tab)
        wait_for(driver, lambda _: tab["targetId"] not in driver.window_handles)
        return found

    def _read_new_events(self):
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
                self._kinds = {kinds[name] for name in _REQUEST_EVENTS}
            elif line.startswith(b'{"params"'):
                event = json.loads(line.rstrip()[:-1])
                params = event["params"] if event["type"] in self._kinds else {}
                found += [params[key] for key in ("url", "host") if key in params]
        return found


@contextmanager
def start_browser(base, *, width=1280, height=900, dark=False):
    """Run a browser with its profile and home under `base`; end it and all its processes afterwards."""
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
            with suppress(ProcessLookupError):  # It has already ended.
                os.killpg(service.process.pid, signal.SIGKILL)
            service.process.wait(SECONDS)


def open_clean_tab(driver):
    """Continue in a new tab, the only one, without any stored, cached or logged data of earlier pages."""
    old = driver.window_handles
    driver.switch_to.new_window("tab")
    new_tab = driver.current_window_handle
    for handle in old:
        driver.switch_to.window(handle)
        driver.close()
    driver.switch_to.window(new_tab)
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    emulate(driver)
    read_requests(driver)
    read_console(driver)


def emulate(driver, *, width=1280, height=900, dark=False):
    """Set the size of the view in CSS pixels and the preferred colours for this tab."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # As the foreground tab.


def wait_for(driver, condition):
    """Return the value of `condition(driver)` when it is true; a missing element counts as false."""
    ignored = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(driver, SECONDS, poll_frequency=0.02, ignored_exceptions=ignored).until(condition)


def wait_for_element(driver, selector, text=""):
    """Wait for a displayed element of a CSS selector that contains a text; return the first."""

    def find_displayed(_):
        matching = driver.find_elements(By.CSS_SELECTOR, selector)
        return next((each for each in matching if each.is_displayed() and text in each.text), None)

    return wait_for(driver, find_displayed)


def sign_in(driver, daemon):
    """Open the page as its owner; return the origin of the page."""
    login = daemon.post("/ui").json()
    driver.get(f"{login['url']}/#{login['code']}")
    wait_for(driver, lambda _: "/w/" in driver.current_url)
    wait_for_element(driver, "main")
    return login["url"]


def read_requests(driver):
    """Return every URL requested by any tab, frame, script or hint since the last call, including failed
    ones.

    From two logs. Only the network log has the first loads of new tabs, and early connections and lookups
    (the last as `http://name:port`). Only the page log has requests that its policy blocked, except frames,
    plugins, media and icons: these are in `read_console`.
    """
    found = driver.net_log.read_requests(driver)
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
        elif message["method"] == "Network.webSocketCreated":
            found.append(message["params"]["url"])
    return [url for url in dict.fromkeys(found) if not _INTERNAL_URLS.match(url)]


def read_console(driver):
    """Return the browser messages since the last call: policy violations, script errors, failed loads."""
    return [entry["message"] for entry in driver.get_log("browser")]


def read_tab_order(driver):
    """Return (tag, name) of each element that gets focus when Tab is pressed, from the top until the cycle
    restarts.

    Raises:
        AssertionError: Tab cycles without returning to the first element.
    """
    driver.execute_script("document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0)")
    visited, order = [], []
    for _ in range(_MOST_TABS):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        now = driver.switch_to.active_element
        if now.tag_name == "body" or now in visited[:1]:
            return order
        assert now not in visited, f"focus is caught at {order[-1]}"
        visited.append(now)
        order.append((now.tag_name, now.accessible_name))
    raise AssertionError(f"more than {_MOST_TABS} elements get focus")


_RUN_AXE = """
const done = arguments[0], options = {resultTypes: ["violations"], preload: false};
axe.run(options).then(done, (error) => done(String(error.stack ?? error)));
"""


@cache
def _read_axe():
    return AXE.read_text(encoding="utf-8")


def find_axe_violations(driver):
    """Return what axe-core reports as serious or critical in the current page: rule, element, fix.

    Raises:
        AssertionError: axe-core itself failed.
    """
    if not driver.execute_script("return 'run' in Object(window.axe)"):
        driver.execute_script(_read_axe())
    found = driver.execute_async_script(_RUN_AXE)
    assert isinstance(found, dict), found
    return [
        (violation["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for violation in found["violations"]
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]
