"""Flows of the page in a real browser; the results are checked in the files and through the API."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from kit.browser import emulate, needs_browser, read_console, sign_in, wait_for, wait_for_element
from kit.server.process import BASE, PausableModel, write_policy
from kit.server.raw import start_local_daemon

FACT = "The user prefers quince jam to marmalade"
NAME = "Prefers quince jam to marmalade"
pytestmark = needs_browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    base = tmp_path_factory.mktemp("flows")
    with start_local_daemon(base, policy=write_policy(base, require='"none"')) as served:
        yield served


@pytest.fixture
def page(chromium, daemon):
    """The browser, signed in, at the first view; after the test, no request was rejected and no script
    failed.
    """
    chromium.root = f"{sign_in(chromium, daemon)}/w/{daemon.key}"
    yield chromium
    assert [each for each in read_console(chromium) if "status of 4" not in each] == []


@contextmanager
def second_window(driver, url):
    """Open another visible window of the same user, and close it after the block."""
    first = driver.current_window_handle
    driver.switch_to.new_window("window")
    second = driver.current_window_handle
    emulate(driver)
    driver.get(url)
    wait_for_element(driver, "main")
    try:
        yield first, second
    finally:
        driver.switch_to.window(second)
        driver.close()
        driver.switch_to.window(first)


def fill(driver, selector, text):
    """Replace the text of a field."""
    field = wait_for_element(driver, selector)
    field.send_keys(Keys.CONTROL + "a")
    field.send_keys(text)
    return field


def press(driver, text, within="main"):
    """Press the button or follow the link with exactly this text, and wait for another view of the page."""
    old = driver.find_element(By.TAG_NAME, "html")

    def find(_):
        matching = driver.find_elements(By.CSS_SELECTOR, f"{within} button, {within} a, {within} summary")
        return next((each for each in matching if each.is_displayed() and each.text == text), None)

    element = wait_for(driver, find)
    is_summary = element.tag_name == "summary"
    element.click()
    if not is_summary:
        wait_for(driver, lambda _: driver.find_element(By.TAG_NAME, "html") != old)
        wait_for_element(driver, "main")


async def replace_sessions(daemon, sessions):
    """Replace all sessions, make the streams check them at once, and return the previous sessions."""
    door = daemon.core.page_access
    before, door._sessions = door._sessions, sessions
    daemon.core.stream.recheck_permissions()
    return before


def read_notice(driver):
    return wait_for_element(driver, ".notice").text


def read_path(driver):
    """Open the details of the displayed entry, and return its path."""
    details = wait_for_element(driver, "#details")
    if not details.get_attribute("open"):
        details.find_element(By.TAG_NAME, "summary").click()
    return details.find_element(By.CSS_SELECTOR, "dd").text


def read_facts(item):
    """Return the lines of the facts in an item of a list of changes."""
    return [each.text for each in item.find_elements(By.CSS_SELECTOR, ".facts > *")]


def read_state(item):
    """Return the text of the button of a change, or its state."""
    return item.find_element(By.CSS_SELECTOR, ".meta button, .meta .kind").text


def remember_fact(daemon, fact, **options):
    """Remember a fact and return its path."""
    (path,) = daemon.run_task("remember", {"content": fact, **options})["result"]["filesTouched"]
    return path


def read_text(daemon, path):
    scope, _, rel = path.partition("/")
    return daemon.read_files(scope).get(rel)


# -- remember, read, edit, undo ---------------------------------------------------------------------------


def test_fact_is_remembered_edited_and_undone_in_all_windows(page, daemon):
    with second_window(page, f"{page.root}/memory") as (first, second):
        page.switch_to.window(first)
        fill(page, "#content", FACT)
        Select(wait_for_element(page, "#scope")).select_by_visible_text("user")
        press(page, "Remember")
        assert read_notice(page).startswith("Accepted. The fact appears under Recent")
        for window in first, second:
            page.switch_to.window(window)
            wait_for_element(page, "#recent ins", f"+ {NAME}")
            wait_for_element(page, "#listing .entries a", NAME)
        press(page, NAME, within="#listing")
        assert wait_for_element(page, "h1").text == NAME
        path = read_path(page)
        before = read_text(daemon, path)
        assert FACT in before

        press(page, "Edit")
        fill(page, "#body", "The user prefers plum jam, always")
        press(page, "Save")
        new_name = "Prefers plum jam, always"
        assert read_notice(page) == f'Saved: "{NAME}" → "{new_name}". To reverse this, use Undo.'
        edited = read_path(page)  # The old name was derived from the old text.
        assert "The user prefers plum jam, always" in read_text(daemon, edited)
        assert (edited == path, read_text(daemon, path)) == (False, None)
        newest = wait_for_element(page, "#history + ul > li")
        assert read_facts(newest) == [f"- {NAME}", f"+ {new_name}"]
        newest.find_element(By.TAG_NAME, "summary").click()
        lines = [each.text for each in newest.find_elements(By.CSS_SELECTOR, ".lines > *")]
        assert {"- The user prefers quince jam to marmalade", "+ The user prefers plum jam, always"} < {
            *lines
        }
        assert re.search(r"Task\nt\w+ \(edit\)\nDecided by\nowner\nTrust\nowner", newest.text)

        press(page, "Undo")
        assert read_notice(page) == f'Undone: "{new_name}" → "{NAME}". To reverse this, use Redo.'
        assert (read_text(daemon, path), read_text(daemon, edited)) == (before, None)
        assert FACT in wait_for_element(page, "article").text

        assert [read_state(each) for each in page.find_elements(By.CSS_SELECTOR, "#history + ul > li")] == [
            "Redo",
            "undone",
            "Undo",
        ]
        page.get(f"{page.root}/memory")
        undo = next(
            each
            for each in page.find_elements(By.CSS_SELECTOR, "#recent li")
            if read_facts(each) == [f"+ {NAME}"]
        ).find_element(By.TAG_NAME, "button")
        assert undo.get_attribute("aria-label") == f"Undo: {NAME}"
        undo.click()
        assert read_notice(page) == f'Undone: removed "{NAME}". To reverse this, use Redo.'
        assert (read_text(daemon, path), wait_for_element(page, "h1").text) == (None, "Memory")
        page.switch_to.window(first)
        wait_for_element(page, "#recent del", f"- {NAME}")
        assert NAME not in page.find_element(By.ID, "listing").text
        page.get(f"{page.root}/entry?path={path}")
        assert "This entry no longer exists." in wait_for_element(page, "main").text


@pytest.mark.slow
def test_preview_shows_result_and_writes_nothing(page, daemon):
    before = [daemon.read_files(scope) for scope in ("user", "project")], daemon.get(f"{BASE}/tasks").json()
    fill(page, "#content", "The user keeps bees </textarea>")
    press(page, "Preview")
    assert wait_for_element(page, "h1").text == "Preview"
    assert read_facts(wait_for_element(page, "main")) == ["+ Keeps bees </textarea>"]
    assert "Nothing was written" in wait_for_element(page, "main").text
    assert ".md" not in wait_for_element(page, "main").text
    assert re.search(r"user/\S*bees\S*\.md", read_path(page))
    assert wait_for_element(page, "#content").get_attribute("value") == "The user keeps bees </textarea>"
    assert (
        [daemon.read_files(scope) for scope in ("user", "project")],
        daemon.get(f"{BASE}/tasks").json(),
    ) == before


@pytest.mark.slow
def test_entry_is_pinned_unpinned_and_forgotten(page, daemon):
    path, other = (
        remember_fact(daemon, "The user waters the fern on Mondays", scope="user"),
        remember_fact(daemon, "Ferns like shade"),
    )
    before = read_text(daemon, path)
    page.get(f"{page.root}/entry?path={path}")
    press(page, "Pin")
    pinned = f"user/pinned/{path.removeprefix('user/')}"
    assert read_notice(page) == 'Pinned: "Waters the fern on Mondays".'
    assert read_path(page) == pinned
    assert (read_text(daemon, path), bool(read_text(daemon, pinned))) == (None, True)
    assert "pinned" in wait_for_element(page, ".meta").text
    assert not [
        each for each in page.find_elements(By.CSS_SELECTOR, ".row *") if each.text in {"Edit", "Forget"}
    ]
    press(page, "Unpin")
    assert read_notice(page) == 'Unpinned: "Waters the fern on Mondays".'
    assert read_path(page) == path
    assert (
        read_text(daemon, path).partition("---\n")[2].partition("---\n")[2]
        == before.partition("---\n")[2].partition("---\n")[2]
    )
    press(page, "Forget")
    wait_for_element(page, "#forget p", "You can undo it")
    press(page, "Forget this entry")
    wait_for_element(page, "#task", "completed")
    assert (read_text(daemon, path), bool(read_text(daemon, other))) == (None, True)
    press(page, "Undo")
    assert bool(read_text(daemon, path))


@pytest.mark.slow
def test_failed_edit_keeps_text_and_shows_reason(page, daemon):
    path = remember_fact(daemon, "The user takes the early train", scope="user")
    page.get(f"{page.root}/edit?path={path}")
    fill(page, "#body", "What I wrote at length")
    file = daemon.get_root() / path.removeprefix("user/")
    by_hand = file.read_text(encoding="utf-8") + "and this by hand\n"
    file.write_text(by_hand, encoding="utf-8")
    press(page, "Save")
    assert re.match(r"Not saved: .*\[store_conflict\]", read_notice(page))
    assert wait_for_element(page, "#body").get_attribute("value") == "What I wrote at length"
    assert file.read_text(encoding="utf-8") == by_hand
    page.get(f"{page.root}/edit?path={path}")
    fill(page, "#body", "ghp_" + "016C7d9fXq2LrT4vBz8KwYh3JmNs5PaEuGcR")
    press(page, "Save")
    assert re.match(r"Not saved: .*\[remember_refused\]", read_notice(page))
    assert file.read_text(encoding="utf-8") == by_hand


# -- reviews -----------------------------------------------------------------------------------------------


def create_review(daemon, fact):
    """Remember an external fact that needs a review, and return the id of the review."""
    source = {"trust": "external", "ref": "mail"}
    return daemon.run_task("remember", {"content": fact, "scope": "user", "source": source})["reviewId"]


def list_reviews(daemon):
    return [each["reviewId"] for each in daemon.get(f"{BASE}/review").json()["reviews"]]


def reload_policy(daemon, old, new):
    """Change the policy file and make the daemon read it, which it does if a root is another directory."""
    policy = daemon.base / "policy.toml"
    written = policy.read_text(encoding="utf-8")
    assert old in written
    policy.write_text(written.replace(old, new), encoding="utf-8")
    root = daemon.get_root("project")
    root.rename(root.with_name("old"))
    root.mkdir(mode=0o700)
    assert daemon.request_problem("GET", f"{BASE}/review") == (409, "managed_memory_unavailable")


def test_review_is_approved_only_by_digest_that_was_shown(chromium, tmp_path):
    with start_local_daemon(tmp_path) as daemon:
        root = f"{sign_in(chromium, daemon)}/w/{daemon.key}"
        chromium.get(f"{root}/reviews")
        review = create_review(daemon, "The stranger prefers cash")  # It appears while the view is open.
        item = wait_for_element(chromium, "#reviews li", "cash")
        assert read_facts(item) == ["+ The stranger prefers cash"]
        assert "It waits because a new entry is external text." in item.text
        press(chromium, "Review")
        wait_for_element(chromium, "h1", "Review")
        assert "+ The stranger prefers cash" in wait_for_element(chromium, ".lines").text
        read_path(chromium)
        digest = wait_for_element(chromium, "dd .digest").text
        assert digest == daemon.get(f"{BASE}/review/{review}").json()["digest"]

        reload_policy(daemon, "turns = 6", "turns = 5")
        press(chromium, "Approve")
        assert "review_changed" in read_notice(chromium)
        assert (list_reviews(daemon), daemon.read_files()) == ([review], {})
        press(chromium, "Go back")
        assert "the policy has changed since the request" in wait_for_element(chromium, ".lines").text
        read_path(chromium)
        assert wait_for_element(chromium, "dd .digest").text != digest

        press(chromium, "Approve")
        assert read_notice(chromium) == 'Approved: "The stranger prefers cash".'
        assert (list_reviews(daemon), "No pending reviews." in wait_for_element(chromium, "main").text) == (
            [],
            True,
        )
        assert [text for text in daemon.read_files().values() if "The stranger prefers cash" in text]


@pytest.mark.slow
def test_review_is_rejected_once_and_conflict_stops_approval(page, daemon):
    rejected, late = (
        create_review(daemon, "The stranger wants a key"),
        create_review(daemon, "The stranger has a dog"),
    )
    with second_window(page, f"{page.root}/review?id={rejected}") as (first, second):
        page.switch_to.window(first)
        page.get(f"{page.root}/review?id={rejected}")
        press(page, "Reject")
        assert read_notice(page) == 'Rejected: "The stranger wants a key". Nothing was written.'
        page.switch_to.window(second)
        press(page, "Approve")
        assert f"review {rejected} is already rejected" in read_notice(page)
    page.get(f"{page.root}/review?id={late}")
    path = re.search(r"user/\S+\.md", wait_for_element(page, ".lines").text)[0]
    file = daemon.get_root() / path.removeprefix("user/")
    file.parent.mkdir(exist_ok=True)
    file.write_text("by hand\n", encoding="utf-8")
    press(page, "Approve")
    assert "store_conflict" in read_notice(page)
    assert (list_reviews(daemon), file.read_text(encoding="utf-8")) == ([late], "by hand\n")


# -- tasks -------------------------------------------------------------------------------------------------


def test_running_task_shows_turns_and_is_cancelled(chromium, tmp_path):
    with PausableModel() as model, start_local_daemon(tmp_path, model) as daemon:
        root = f"{sign_in(chromium, daemon)}/w/{daemon.key}"
        model.pause()
        task = daemon.remember(FACT)
        model.wait_for_requests()
        chromium.get(f"{root}/task?id={task}")
        wait_for_element(chromium, "#task .badge", "running")
        wait_for_element(chromium, "#views .count", "1")
        assert not chromium.find_elements(By.XPATH, "//h2[text()='Turns']")
        request_count, original = len(model.server.requests), model.behavior

        def respond(request):
            if len(model.server.requests) > request_count:
                model.pause()
            return original(request)

        model.behavior = respond
        chromium.execute_script("document.querySelector('#task button').focus()")
        model.resume()
        wait_for_element(chromium, "#task li", "turn 1: ")
        assert chromium.switch_to.active_element.text == "Cancel"  # Although the button was replaced.
        press(chromium, "Cancel")
        assert read_notice(chromium) in {"Cancelled.", "The task is cancelling."}
        wait_for_element(chromium, "#task .badge", "cancelled")
        model.resume()
        assert daemon.wait_for_task(task)["status"] == "cancelled"
        assert (daemon.read_files(), daemon.read_files("project")) == ({}, {})
        wait_for(chromium, lambda _: not chromium.find_elements(By.CSS_SELECTOR, "#views .count"))


# -- search ------------------------------------------------------------------------------------------------


def test_search_updates_while_typing_and_after_back(page, daemon):
    path = remember_fact(daemon, "The lighthouse keeper prefers barley soup", scope="user")
    wait_for_element(page, "#quick").send_keys("barley" + Keys.ENTER)
    wait_for_element(page, "#results a", "lighthouse")
    fill(page, "#q", "lighthouse keep")
    wait_for_element(page, "#results a", "lighthouse").click()
    assert read_path(page) == path
    page.back()
    wait_for(page, lambda _: wait_for_element(page, "#q").get_attribute("value") == "lighthouse keep")
    wait_for_element(page, "#results a", "lighthouse")
    fill(page, "#q", "zeppelin")
    wait_for_element(page, "#results p", "No entry matches.")


@pytest.mark.slow
def test_search_finds_entry_among_ten_thousand(chromium, tmp_path):
    """`benchmarks/page.py` measures the time."""
    top = tmp_path / "home" / "user"
    for number in range(10_000):
        path = top / f"topic-{number // 50}" / f"fact-{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(f"---\nname: Fact {number}\n---\nword{number * 31 % 997} and room {number}\n")
    for private in tmp_path / "home", top:
        private.chmod(0o700)
    with start_local_daemon(tmp_path) as daemon:
        root = f"{sign_in(chromium, daemon)}/w/{daemon.key}"
        assert "10000" in wait_for_element(chromium, "#listing .tabs").text
        assert len(chromium.find_elements(By.CSS_SELECTOR, "#listing .entries li")) == 100
        chromium.get(f"{root}/search")
        for number in 4_711, 9_999, 1_234:
            fill(chromium, "#q", f"fact {number}")
            wait_for(chromium, lambda _, n=number: chromium.find_elements(By.LINK_TEXT, f"Fact {n}"))
        assert read_console(chromium) == []


# -- sessions and workspaces -------------------------------------------------------------------------------


@pytest.mark.slow
def test_sign_out_applies_to_all_windows_and_streams(page, daemon):
    following = daemon.guard.following
    with second_window(page, f"{page.root}/tasks") as (first, second):
        daemon.wait_until(lambda: len(following) == 2)
        page.switch_to.window(first)
        press(page, "Sign out", within="header")
        wait_for_element(page, ".notice", "You have signed out.")
        page.switch_to.window(second)
        wait_for_element(page, "#sign-in")  # Without a reload, because its stream ended.
        daemon.wait_until(lambda: len(following) == 0)
        page.get(f"{page.root}/memory")
        wait_for_element(page, "#sign-in")
        page.switch_to.window(first)
        page.back()
        wait_for_element(page, "#sign-in")


@pytest.mark.slow
def test_page_shows_lost_connection_after_daemon_stops(chromium, tmp_path):
    with start_local_daemon(tmp_path) as daemon:
        url = sign_in(chromium, daemon)
        assert chromium.get_cookie("muniment")
        assert not chromium.find_element(By.ID, "lost").is_displayed()
    assert "muniment ui" in wait_for_element(chromium, "#lost").text
    with start_local_daemon(tmp_path, port=int(url.rpartition(":")[2])) as daemon:
        other = daemon.post("/ui").json()["url"]
        assert other != url
        refused = []  # The event stream, and then the view.
        wait_for(chromium, lambda _: refused.extend(read_console(chromium)) or str(refused).count("421") > 1)
        assert chromium.find_element(By.ID, "lost").is_displayed()
        chromium.get(url)  # The browser sends its cookie, and no page answers at this name.
        assert "memory" not in chromium.page_source.lower() or "misdirected" in chromium.page_source
        chromium.get(other)
        wait_for_element(chromium, "#sign-in")


@pytest.mark.slow
def test_text_survives_end_of_session_and_page_resumes(page, daemon):
    fill(page, "#content", FACT)
    sessions = daemon.run_coroutine(replace_sessions(daemon, {}))
    assert "signed out" in wait_for_element(page, "#out").text
    assert page.find_element(By.ID, "content").get_attribute("value") == FACT
    daemon.run_coroutine(replace_sessions(daemon, sessions))  # As if the user had signed in again.
    wait_for(page, lambda _: not page.find_element(By.ID, "out").is_displayed())
    daemon.run_task("remember", {"content": "The user has come back to the page of the memory"})
    wait_for(page, lambda _: "come back" in page.find_element(By.ID, "listing").text)
    fill(page, "#content", "")


@pytest.mark.slow
def test_code_in_address_signs_in_at_sign_in_form(chromium, daemon):
    address = daemon.post("/ui").json()["url"] + f"/w/{daemon.key}/entry?path=user%2Fnone.md"
    chromium.get(address)
    wait_for_element(chromium, "#sign-in")
    chromium.get(f"{address}#{daemon.post('/ui').json()['code']}")
    wait_for(chromium, lambda _: "in the history" in chromium.find_element(By.TAG_NAME, "main").text)
    assert chromium.current_url == address


@pytest.mark.slow
def test_workspaces_have_separate_memory_and_link_to_each_other(chromium, tmp_path):
    (tmp_path / "other" / ".git").mkdir(parents=True)
    with start_local_daemon(tmp_path, workspaces=(tmp_path / "work", tmp_path / "other")) as daemon:
        root = sign_in(chromium, daemon)
        first, second = daemon.core.workspaces
        fact = {"content": "This project uses tabs", "scope": "project"}
        task = daemon.post(f"/workspaces/{first}/memory/remember", fact).json()["taskId"]
        daemon.get(f"/workspaces/{first}/memory/remember/{task}", prefer="wait=60")
        for key, found in ((first, True), (second, False)):
            chromium.get(f"{root}/w/{key}/memory?scope=project")
            assert ("This project uses tabs" in wait_for_element(chromium, "main").text) == found
        press(chromium, str(tmp_path / "work"), within=".where")
        assert f"/w/{first}/memory" in chromium.current_url
