"""The views of the page as pictures, at the width of a desktop and of a phone."""

from __future__ import annotations

import base64
import json
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from selenium.webdriver.common.by import By

from kit.browser import emulate, wait_for, wait_for_element
from kit.captures.document import build_picture_name
from kit.captures.world import WORK

SIZES = {"desktop": (1200, 900), "phone": (390, 844)}
SECONDS = 60
"""A daemon that takes longer to end counts as stuck."""

_QUALITY = 60
_WAIT_UNTIL_DRAWN = """
document.activeElement.blur();
scrollTo(0, 0);
requestAnimationFrame(() => requestAnimationFrame(arguments[0]));
"""

FACT = "We deploy on Wednesdays at 10, no longer on Thursdays"


@dataclass(frozen=True)
class View:
    """A view of the page.

    Attributes:
        name: the beginning of the names of its pictures.
        title: what it is for.
        path: its path and query; `{name}` as in `Capture.line`, `{name-path}` is the path of that entry.
        is_empty: whether the memory is empty, as that of a new user.
        fact: a fact that is typed into the form; its preview is shown. Empty: none.
    """

    name: str
    title: str
    path: str
    is_empty: bool = False
    fact: str = ""


VIEWS = (
    View("new", "Home of a new user", "memory", is_empty=True),
    View("home", "Home", "memory"),
    View("search", "Results of a search", "search?q=deploy"),
    View("entry", "An entry", "entry?path={sprint-path}"),
    View("recent", "Changes", "timeline"),
    View("reviews", "Pending reviews", "reviews"),
    View("review", "A pending review", "review?id={review}"),
    View("preview", "Preview of a change", "memory", fact=FACT),
)


def take_pictures(edition, driver, folder):
    """Save a picture of each view at each size in a folder."""
    for is_empty in True, False:
        edition.reset_memory(is_empty=is_empty)
        with _serve_page(edition) as login:
            driver.get(login["address"])
            wait_for(driver, lambda _: "/w/" in driver.current_url and "#" not in driver.current_url)
            prefix = f"{driver.current_url.rpartition('/')[0]}/"
            for size, (width, height) in SIZES.items():
                emulate(driver, width=width, height=height)
                driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
                for view in VIEWS:
                    if view.is_empty == is_empty:
                        _open_view(edition, driver, prefix, view)
                        _save_picture(driver, folder / build_picture_name(view.name, size, edition.title))


def _open_view(edition, driver, prefix, view):
    names = {name: quote(value, safe="") for name, value in edition.names.items()}
    driver.get(prefix + view.path.format_map(names))
    wait_for_element(driver, "main")
    if view.fact:
        wait_for_element(driver, "textarea").send_keys(view.fact)
        driver.find_element(By.XPATH, "//button[contains(., 'Preview')]").click()
        wait_for_element(driver, "h1", "Preview")


def _save_picture(driver, path):
    driver.execute_async_script(_WAIT_UNTIL_DRAWN)
    found = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": _QUALITY})
    path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def _serve_page(edition):
    """Serve the page of an edition for the block; yield the address to sign in."""
    command, env = edition.build_command("ui", "--json")
    with subprocess.Popen(command, cwd=WORK, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(SECONDS)
