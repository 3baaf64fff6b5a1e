"""Accessibility: the findings of axe-core, and use of the page with the keyboard alone."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from kit.browser import (
    emulate,
    find_axe_violations,
    needs_browser,
    read_tab_order,
    sign_in,
    wait_for,
    wait_for_element,
)
from kit.server.process import write_policy
from kit.server.raw import start_local_daemon

LONG = """---
name: How a release goes
description: The steps of a release
---
# Release

Some *emphasis*, a [link](https://example.org/a) and `code`, a table and a quote:

| step | who |
|------|-----|
| tag  | Ada |

> Never on Fridays.

1. first
2. second

```sh
git tag
```

![a picture](https://example.org/a.png)
"""
SIZES = (360, 800, 1600)
pytestmark = needs_browser


class World:
    """A daemon whose memory has content for every view.

    Attributes:
        views: view and query by name.
    """

    def __init__(self, daemon):
        self.daemon = daemon
        facts = ("The user prefers tea", "Never deploy on Fridays", "The staging database runs on port 5433")
        done = [daemon.run_task("remember", {"content": fact, "scope": "user"}) for fact in facts]
        source = {"trust": "external", "ref": "mail"}
        pending = daemon.run_task(
            "remember", {"content": "A stranger likes cash", "scope": "user", "source": source}
        )
        failed = daemon.run_task("forget", {"query": "zeppelin"})
        (daemon.get_root() / "notes").mkdir()
        (daemon.get_root() / "notes" / "release.md").write_text(LONG, encoding="utf-8")
        (daemon.get_root() / "no entry.txt").write_text("odd\n", encoding="utf-8")
        self.path = done[0]["result"]["filesTouched"][0]
        self.views = {
            "memory": ("memory", {}),
            "a folder": ("memory", {"scope": "user", "topic": "notes"}),
            "a scope without entries": ("memory", {"scope": "project"}),
            "an entry": ("entry", {"path": self.path}),
            "a long entry": ("entry", {"path": "user/notes/release.md"}),
            "a file": ("entry", {"path": "user/notes/release.md", "raw": "1"}),
            "edit": ("edit", {"path": self.path}),
            "search": ("search", {"q": "deploy"}),
            "nothing found": ("search", {"q": "zeppelin"}),
            "reviews": ("reviews", {}),
            "a review": ("review", {"id": pending["reviewId"]}),
            "tasks": ("tasks", {}),
            "a task": ("task", {"id": done[0]["taskId"]}),
            "a task that failed": ("task", {"id": failed["taskId"]}),
            "timeline": ("timeline", {}),
            "audit": ("audit", {"verify": "1"}),
            "health": ("health", {}),
            "policy": ("policy", {"verb": "create", "path": "user/.git/config"}),
            "a problem": ("entry", {"path": "user/nothing.md"}),
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    base = tmp_path_factory.mktemp("accessible")
    with start_local_daemon(base, policy=write_policy(base, require='"none"')) as daemon:
        yield World(daemon)


@pytest.fixture
def page(chromium, world):
    """The browser, signed in, at the first view."""
    chromium.root = f"{sign_in(chromium, world.daemon)}/w/{world.daemon.key}"
    return chromium


def open_view(page, world, name):
    view, query = world.views[name]
    page.get(f"{page.root}/{view}?{urlencode(query)}")
    wait_for_element(page, "main")


def press(driver, *keys):
    ActionChains(driver).send_keys(*keys).perform()


def get_focused(driver):
    return driver.switch_to.active_element


# -- axe-core ----------------------------------------------------------------------------------------------


def find_problems(page, widths=SIZES, schemes=(False, True)):
    found = []
    for dark in schemes:
        for width in widths:
            emulate(page, width=width, dark=dark)
            found += [(width, dark, *each) for each in find_axe_violations(page)]
            wide = page.execute_script("return document.scrollingElement.scrollWidth - innerWidth")
            found += [(width, dark, "wider than the window", wide)] * (wide > 0)
    return found


def test_axe_finds_no_problem_in_first_view_and_entry(page, world):
    for name in "memory", "a long entry":
        open_view(page, world, name)
        assert find_problems(page, (360,), (False,)) == find_problems(page, (1600,), (True,)) == []


@pytest.mark.slow
def test_axe_finds_no_problem_in_any_view_width_or_scheme(page, world, subtests):
    for name in world.views:
        with subtests.test(name):
            open_view(page, world, name)
            for closed in page.find_elements(By.CSS_SELECTOR, "details:not([open]) > summary"):
                closed.click()
            assert find_problems(page) == []
    with subtests.test("a preview"):
        open_view(page, world, "memory")
        wait_for_element(page, "#content").send_keys("The user keeps bees")
        wait_for_element(page, "button[name=try]").click()
        wait_for_element(page, "h1", "Preview")
        assert find_problems(page) == []
    with subtests.test("an edit that was not saved"):
        open_view(page, world, "edit")
        page.execute_script("document.querySelector('[name=digest]').value = '0'")
        wait_for_element(page, "main form button").click()
        wait_for_element(page, ".notice", "Not saved")
        assert find_problems(page) == []
    with subtests.test("signed out"):
        wait_for_element(page, "header button.plain").click()
        wait_for_element(page, ".notice", "You have signed out.")
        assert find_problems(page) == []


# -- keys --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tab_visits_all_controls_in_document_order(page, world):
    open_view(page, world, "memory")
    page.execute_script("document.body.focus()")
    order = read_tab_order(page)
    assert order[0] == ("a", "Skip to the content")
    usable = page.execute_script(
        """return [...document.querySelectorAll("a, button, input, select, textarea, summary")]
        .filter((each) => each.checkVisibility() && each.type !== "hidden")
        .map((each) => each.tagName.toLowerCase())"""
    )
    assert [tag for tag, _ in order] == usable
    assert all(name for _, name in order)


@pytest.mark.slow
def test_tab_is_not_trapped_and_focus_is_visible(page, world, subtests):
    for name in world.views:
        with subtests.test(name):
            open_view(page, world, name)
            assert len(read_tab_order(page)) >= 1
    open_view(page, world, "an entry")
    count = len(read_tab_order(page))
    page.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(count):
        press(page, Keys.TAB)
        outline = page.execute_script(
            """const style = getComputedStyle(document.activeElement);
            const box = document.activeElement.getBoundingClientRect();
            const isThere = box.width > 0 && box.top < innerHeight && box.bottom > 0;
            return [style.outlineStyle, parseFloat(style.outlineWidth), isThere]"""
        )
        assert outline == ["solid", 3, True], get_focused(page).get_attribute("outerHTML")


def test_keyboard_remembers_searches_and_keeps_focus(page, world):
    open_view(page, world, "memory")
    page.execute_script("document.activeElement.blur()")
    press(page, Keys.TAB)
    assert wait_for_element(page, ".skip").is_displayed()
    press(page, Keys.ENTER)
    assert get_focused(page).get_attribute("id") == "main"
    press(page, Keys.TAB)
    assert get_focused(page).get_attribute("id") == "content"
    press(page, "The user plays the zither", Keys.TAB, Keys.TAB, Keys.ENTER)
    wait_for_element(page, "#recent a", "zither").send_keys("")
    link = wait_for_element(page, "#recent a", "zither")
    page.execute_script("arguments[0].focus()", link)
    href = link.get_attribute("href")

    world.daemon.run_task("remember", {"content": "The user plays the harp", "scope": "user"})
    wait_for_element(page, "#recent a", "harp")
    wait_for(
        page, lambda _: get_focused(page).get_attribute("href") == href
    )  # Although the list was replaced.

    press(page, "/")
    assert get_focused(page).get_attribute("id") == "quick"
    press(page, "zither/", Keys.ENTER)  # In a field, `/` is a character.
    wait_for_element(page, "#results a", "zither")
    wait_for(page, lambda _: get_focused(page).get_attribute("id") == "q")
    assert get_focused(page).get_attribute("value") == "zither/"
    press(page, Keys.TAB, Keys.TAB, Keys.ENTER)
    assert "zither" in wait_for_element(page, "#entry h1").text


@pytest.mark.slow
def test_memory_change_keeps_text_being_written(page, world):
    open_view(page, world, "memory")
    wait_for_element(page, "#content").send_keys("half a sent")
    world.daemon.run_task("remember", {"content": "The user plays the lute", "scope": "user"})
    wait_for_element(page, "#recent a", "lute")
    press(page, "ence")
    assert wait_for_element(page, "#content").get_attribute("value") == "half a sentence"


@pytest.mark.slow
def test_state_is_not_shown_by_colour_alone(page, world):
    open_view(page, world, "an entry")
    wait_for_element(page, "#history + ul summary").click()
    changed = [(each.tag_name, each.text[:2]) for each in page.find_elements(By.CSS_SELECTOR, ".lines > *")]
    assert {*changed} == {("span", "@ "), ("ins", "+ ")}
    facts = [(each.tag_name, each.text[:2]) for each in page.find_elements(By.CSS_SELECTOR, ".facts > *")]
    assert facts == [("ins", "+ ")]
    open_view(page, world, "reviews")
    assert "external" in wait_for_element(page, ".badge").text
    open_view(page, world, "tasks")
    assert [each.text for each in page.find_elements(By.CSS_SELECTOR, ".badge")] == ["needs review"]
    open_view(page, world, "timeline")
    wait_for_element(page, "#by-day summary").click()
    fills = page.execute_script(
        """return [...document.querySelectorAll(".key rect")].map((each) => each.getAttribute("fill"))"""
    )
    assert fills == [None, "url(#pattern-1)"]
    assert "user" in wait_for_element(page, "thead").text  # The same as numbers.
