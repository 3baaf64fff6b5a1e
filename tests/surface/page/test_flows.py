"""What people do at the page, in a real browser; what came of it is looked up in the files and the API."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from kit.browser import console, emulate, needs_browser, shown, signed_in, waited
from kit.server.process import BASE, HeldModel, policy_file
from kit.server.raw import running

FACT = "The user prefers quince jam to marmalade"
NAME = "Prefers quince jam to marmalade"
pytestmark = needs_browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    base = tmp_path_factory.mktemp("flows")
    with running(base, policy=policy_file(base, require='"none"')) as served:
        yield served


@pytest.fixture
def page(chromium, daemon):
    """The first view, signed in; afterwards nothing was refused to the page, and no script failed."""
    chromium.root = f"{signed_in(chromium, daemon)}/w/{daemon.key}"
    yield chromium
    assert [each for each in console(chromium) if "status of 4" not in each] == []


@contextmanager
def second_window(driver, url):
    """Another window, which is looked at as well, of the same person; goes when the block ends."""
    first = driver.current_window_handle
    driver.switch_to.new_window("window")
    second = driver.current_window_handle
    emulate(driver)
    driver.get(url)
    shown(driver, "main")
    try:
        yield first, second
    finally:
        driver.switch_to.window(second)
        driver.close()
        driver.switch_to.window(first)


def fill(driver, selector, text):
    """Write a text in the place of what a field holds."""
    field = shown(driver, selector)
    field.send_keys(Keys.CONTROL + "a")
    field.send_keys(text)
    return field


def press(driver, text, within="main"):
    """Press the button, or follow the link, that says just this, and wait for another view of the page."""
    old = driver.find_element(By.TAG_NAME, "html")

    def found(_):
        matching = driver.find_elements(By.CSS_SELECTOR, f"{within} button, {within} a, {within} summary")
        return next((each for each in matching if each.is_displayed() and each.text == text), None)

    element = waited(driver, found)
    stays = element.tag_name == "summary"
    element.click()
    if not stays:
        waited(driver, lambda _: driver.find_element(By.TAG_NAME, "html") != old)
        shown(driver, "main")


async def other_sessions(daemon, sessions):
    """Let there be no sessions but these, and those who follow notice it at once; those that there were."""
    door = daemon.core.door
    before, door._sessions = door._sessions, sessions
    daemon.core.stream.ask_again()
    return before


def told(driver):
    return shown(driver, ".notice").text


def saved(daemon, fact, **more):
    """Have a fact remembered; its path."""
    (path,) = daemon.done("remember", {"content": fact, **more})["result"]["filesTouched"]
    return path


def text_of(daemon, path):
    scope, _, rel = path.partition("/")
    return daemon.files(scope).get(rel)


# -- remember, read, edit, undo ---------------------------------------------------------------------------


def test_a_fact_is_remembered_appears_in_every_window_is_edited_undone_and_gone(page, daemon):
    with second_window(page, f"{page.root}/memory") as (first, second):
        page.switch_to.window(first)
        fill(page, "#content", FACT)
        Select(shown(page, "#scope")).select_by_visible_text("user")
        press(page, "Remember")
        assert re.fullmatch(r"Accepted as remember-\S+; Tasks shows the result\.", told(page))
        for window in first, second:
            page.switch_to.window(window)
            shown(page, "#lately li", "quince-jam")
            shown(page, "#listing .entries a", NAME)
        press(page, NAME, within="#listing")
        assert shown(page, "h1").text == NAME
        path = shown(page, "#entry .quiet").text
        before = text_of(daemon, path)
        assert FACT in before

        press(page, "Edit")
        fill(page, "#body", "The user prefers plum jam, always")
        press(page, "Save")
        assert told(page).startswith("Saved; to revert it, undo edit-")
        edited = shown(page, "#entry .quiet").text  # Its name was made of what it no longer says.
        assert "The user prefers plum jam, always" in text_of(daemon, edited)
        assert (edited == path, text_of(daemon, path)) == (False, None)
        newest = shown(page, "#history + details")
        assert "+ The user prefers plum jam, always" in [
            each.text for each in newest.find_elements(By.TAG_NAME, "ins")
        ]
        assert "by edit, decided by owner, trust owner" in newest.text

        press(page, "Undo this")
        assert re.match(r"Undid edit-\w+; to restore it, undo undo-", told(page))
        assert (text_of(daemon, path), text_of(daemon, edited)) == (before, None)
        assert FACT in shown(page, "article").text

        page.find_element(By.CSS_SELECTOR, "dl a").click()
        shown(page, "h1", "Remember")
        press(page, "Undo")
        assert (text_of(daemon, path), shown(page, "h1").text) == (None, "Memory")
        page.switch_to.window(first)
        waited(page, lambda _: not page.find_elements(By.LINK_TEXT, NAME))
        page.get(f"{page.root}/entry?path={path}")
        assert "This entry no longer exists." in shown(page, "main").text


@pytest.mark.slow
def test_a_try_shows_where_a_fact_would_go_and_writes_nothing(page, daemon):
    before = [daemon.files(scope) for scope in ("user", "project")], daemon.get(f"{BASE}/tasks").json()
    fill(page, "#content", "The user keeps bees </textarea>")
    press(page, "Preview")
    assert shown(page, "h1").text == "Preview"
    assert re.search(r"new \S*the-user-keeps-bees|new \S*bees\S*\.md", shown(page, "main").text)
    assert "Nothing was written." in shown(page, "main").text
    assert shown(page, "#content").get_attribute("value") == "The user keeps bees </textarea>"
    assert (
        [daemon.files(scope) for scope in ("user", "project")],
        daemon.get(f"{BASE}/tasks").json(),
    ) == before


@pytest.mark.slow
def test_an_entry_is_pinned_taken_back_and_forgotten(page, daemon):
    path, other = (
        saved(daemon, "The user waters the fern on Mondays", scope="user"),
        saved(daemon, "Ferns like shade"),
    )
    before = text_of(daemon, path)
    page.get(f"{page.root}/entry?path={path}")
    press(page, "Pin")
    pinned = f"user/pinned/{path.removeprefix('user/')}"
    assert told(page) == f"The entry is now {pinned}."
    assert (text_of(daemon, path), bool(text_of(daemon, pinned))) == (None, True)
    assert "pinned" in shown(page, ".badges").text
    assert not [
        each for each in page.find_elements(By.CSS_SELECTOR, ".row *") if each.text in {"Edit", "Forget"}
    ]
    press(page, "Unpin")
    assert told(page) == f"The entry is now {path}."
    assert (
        text_of(daemon, path).partition("---\n")[2].partition("---\n")[2]
        == before.partition("---\n")[2].partition("---\n")[2]
    )
    press(page, "Forget")
    shown(page, "#forget p", "You can undo it")
    press(page, "Forget this entry")
    shown(page, "#task", "completed")
    assert (text_of(daemon, path), bool(text_of(daemon, other))) == (None, True)
    press(page, "Undo")
    assert bool(text_of(daemon, path))


@pytest.mark.slow
def test_an_edit_that_cannot_be_saved_keeps_what_was_written_and_says_why(page, daemon):
    path = saved(daemon, "The user takes the early train", scope="user")
    page.get(f"{page.root}/edit?path={path}")
    fill(page, "#body", "What I wrote at length")
    file = daemon.root() / path.removeprefix("user/")
    by_hand = file.read_text(encoding="utf-8") + "and this by hand\n"
    file.write_text(by_hand, encoding="utf-8")
    press(page, "Save")
    assert re.match(r"Not saved: .*\[store_conflict\]", told(page))
    assert shown(page, "#body").get_attribute("value") == "What I wrote at length"
    assert file.read_text(encoding="utf-8") == by_hand
    page.get(f"{page.root}/edit?path={path}")
    fill(page, "#body", "ghp_" + "016C7d9fXq2LrT4vBz8KwYh3JmNs5PaEuGcR")
    press(page, "Save")
    assert re.match(r"Not saved: .*\[remember_refused\]", told(page))
    assert file.read_text(encoding="utf-8") == by_hand


# -- reviews -----------------------------------------------------------------------------------------------


def hold(daemon, fact):
    """Have a stranger say something, which waits for the owner; the id of its review."""
    source = {"trust": "external", "ref": "mail"}
    return daemon.done("remember", {"content": fact, "scope": "user", "source": source})["reviewId"]


def waiting(daemon):
    return [each["reviewId"] for each in daemon.get(f"{BASE}/review").json()["reviews"]]


def read_policy_anew(daemon, old, new):
    """Change the policy's file, and have the daemon read it: it does where a root is another directory."""
    policy = daemon.base / "policy.toml"
    written = policy.read_text(encoding="utf-8")
    assert old in written
    policy.write_text(written.replace(old, new), encoding="utf-8")
    root = daemon.root("project")
    root.rename(root.with_name("old"))
    root.mkdir(mode=0o700)
    assert daemon.problem("GET", f"{BASE}/review") == (409, "managed_memory_unavailable")


def test_what_waits_is_approved_by_the_digest_that_was_shown_and_by_no_other(chromium, tmp_path):
    with running(tmp_path) as daemon:
        root = f"{signed_in(chromium, daemon)}/w/{daemon.key}"
        chromium.get(f"{root}/reviews")
        review = hold(daemon, "The stranger prefers cash")  # Seen while the view is open.
        shown(chromium, "#reviews a", "cash").click()
        shown(chromium, "h1", "Review")
        assert "+ The stranger prefers cash" in shown(chromium, ".lines").text
        digest = shown(chromium, "p .digest").text
        assert digest == daemon.get(f"{BASE}/review/{review}").json()["digest"]

        read_policy_anew(daemon, "turns = 6", "turns = 5")
        press(chromium, "Approve")
        assert "review_changed" in told(chromium)
        assert (waiting(daemon), daemon.files()) == ([review], {})
        press(chromium, "Go back")
        assert "the policy has changed since the request" in shown(chromium, ".lines").text
        assert shown(chromium, "p .digest").text != digest

        press(chromium, "Approve")
        assert re.match(f"Approved {review} as approve", told(chromium))
        assert (waiting(daemon), "No pending reviews." in shown(chromium, "main").text) == ([], True)
        assert [text for text in daemon.files().values() if "The stranger prefers cash" in text]


@pytest.mark.slow
def test_what_waits_is_rejected_once_and_what_it_rests_on_may_not_have_changed(page, daemon):
    rejected, late = hold(daemon, "The stranger wants a key"), hold(daemon, "The stranger has a dog")
    with second_window(page, f"{page.root}/review?id={rejected}") as (first, second):
        page.switch_to.window(first)
        page.get(f"{page.root}/review?id={rejected}")
        press(page, "Reject")
        assert told(page) == f"Rejected {rejected}; nothing was written."
        page.switch_to.window(second)
        press(page, "Approve")
        assert f"review {rejected} is already rejected" in told(page)
    page.get(f"{page.root}/review?id={late}")
    path = re.search(r"user/\S+\.md", shown(page, ".lines").text)[0]
    file = daemon.root() / path.removeprefix("user/")
    file.parent.mkdir(exist_ok=True)
    file.write_text("by hand\n", encoding="utf-8")
    press(page, "Approve")
    assert "store_conflict" in told(page)
    assert (waiting(daemon), file.read_text(encoding="utf-8")) == ([late], "by hand\n")


# -- tasks -------------------------------------------------------------------------------------------------


def test_a_task_is_seen_as_it_goes_on_turn_by_turn_and_is_cancelled(chromium, tmp_path):
    with HeldModel() as model, running(tmp_path, model) as daemon:
        root = f"{signed_in(chromium, daemon)}/w/{daemon.key}"
        model.hold()
        task = daemon.remember(FACT)
        model.wait_until_asked()
        chromium.get(f"{root}/task?id={task}")
        shown(chromium, "#task .badge", "running")
        shown(chromium, "#views .count", "1")
        assert not chromium.find_elements(By.XPATH, "//h2[text()='Turns']")
        asked, answered = len(model.server.requests), model.mind

        def mind(request):
            if len(model.server.requests) > asked:
                model.hold()
            return answered(request)

        model.mind = mind
        chromium.execute_script("document.querySelector('#task button').focus()")
        model.release()
        shown(chromium, "#task li", "turn 1: ")
        assert chromium.switch_to.active_element.text == "Cancel"  # Though it is another one now.
        press(chromium, "Cancel")
        assert told(chromium) in {"Cancelled.", "The task is cancelling."}
        shown(chromium, "#task .badge", "cancelled")
        model.release()
        assert daemon.wait(task)["status"] == "cancelled"
        assert (daemon.files(), daemon.files("project")) == ({}, {})
        waited(chromium, lambda _: not chromium.find_elements(By.CSS_SELECTOR, "#views .count"))


# -- search ------------------------------------------------------------------------------------------------


def test_who_types_sees_what_is_found_at_once_and_may_go_back_to_it(page, daemon):
    path = saved(daemon, "The lighthouse keeper prefers barley soup", scope="user")
    shown(page, "#quick").send_keys("barley" + Keys.ENTER)
    shown(page, "#results a", "lighthouse")
    fill(page, "#q", "lighthouse keep")
    shown(page, "#results a", "lighthouse").click()
    assert shown(page, "#entry .quiet").text == path
    page.back()
    waited(page, lambda _: shown(page, "#q").get_attribute("value") == "lighthouse keep")
    shown(page, "#results a", "lighthouse")
    fill(page, "#q", "zeppelin")
    shown(page, "#results p", "No entry matches.")


@pytest.mark.slow
def test_among_ten_thousand_entries_what_is_typed_fast_is_found(chromium, tmp_path):
    """How soon is measured by `benchmarks/page.py`."""
    top = tmp_path / "home" / "user"
    for number in range(10_000):
        path = top / f"topic-{number // 50}" / f"fact-{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(f"---\nname: Fact {number}\n---\nword{number * 31 % 997} and room {number}\n")
    for private in tmp_path / "home", top:
        private.chmod(0o700)
    with running(tmp_path) as daemon:
        root = f"{signed_in(chromium, daemon)}/w/{daemon.key}"
        assert "10000" in shown(chromium, "#listing .tabs").text
        assert len(chromium.find_elements(By.CSS_SELECTOR, "#listing .entries li")) == 100
        chromium.get(f"{root}/search")
        for number in 4_711, 9_999, 1_234:
            fill(chromium, "#q", f"fact {number}")
            waited(chromium, lambda _, n=number: chromium.find_elements(By.LINK_TEXT, f"Fact {n}"))
        assert console(chromium) == []


# -- sessions and workspaces -------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_signs_out_is_out_in_every_window_and_no_stream_goes_on(page, daemon):
    following = daemon.guard.following
    with second_window(page, f"{page.root}/tasks") as (first, second):
        daemon.until(lambda: len(following) == 2)
        page.switch_to.window(first)
        press(page, "Sign out", within="header")
        shown(page, ".notice", "You have signed out.")
        page.switch_to.window(second)
        shown(page, "#sign-in")  # By itself: its stream ended.
        daemon.until(lambda: len(following) == 0)
        page.get(f"{page.root}/memory")
        shown(page, "#sign-in")
        page.switch_to.window(first)
        page.back()
        shown(page, "#sign-in")


@pytest.mark.slow
def test_a_session_ends_with_its_daemon_and_the_page_says_that_what_it_shows_may_be_old(chromium, tmp_path):
    with running(tmp_path) as daemon:
        url = signed_in(chromium, daemon)
        assert chromium.get_cookie("muniment")
        assert not chromium.find_element(By.ID, "lost").is_displayed()
    assert "muniment ui" in shown(chromium, "#lost").text
    with running(tmp_path, port=int(url.rpartition(":")[2])) as daemon:
        other = daemon.post("/ui").json()["url"]
        assert other != url
        refused = []  # What it follows, and what it then looks at.
        waited(chromium, lambda _: refused.extend(console(chromium)) or str(refused).count("421") > 1)
        assert chromium.find_element(By.ID, "lost").is_displayed()
        chromium.get(url)  # With its cookie: nothing stands there any more.
        assert "memory" not in chromium.page_source.lower() or "misdirected" in chromium.page_source
        chromium.get(other)
        shown(chromium, "#sign-in")


@pytest.mark.slow
def test_what_is_being_written_stays_when_the_session_ends_and_the_page_goes_on_after_it(page, daemon):
    fill(page, "#content", FACT)
    sessions = daemon.run(other_sessions(daemon, {}))
    assert "signed out" in shown(page, "#out").text
    assert page.find_element(By.ID, "content").get_attribute("value") == FACT
    daemon.run(other_sessions(daemon, sessions))  # As if there were one again.
    waited(page, lambda _: not page.find_element(By.ID, "out").is_displayed())
    daemon.done("remember", {"content": "The user has come back to the page of the memory"})
    waited(page, lambda _: "come back" in page.find_element(By.ID, "listing").text)
    fill(page, "#content", "")


@pytest.mark.slow
def test_an_address_that_differs_by_its_code_alone_signs_in_where_the_way_in_stands(chromium, daemon):
    address = daemon.post("/ui").json()["url"] + f"/w/{daemon.key}/entry?path=user%2Fnone.md"
    chromium.get(address)
    shown(chromium, "#sign-in")
    chromium.get(f"{address}#{daemon.post('/ui').json()['code']}")
    waited(chromium, lambda _: "in the history" in chromium.find_element(By.TAG_NAME, "main").text)
    assert chromium.current_url == address


@pytest.mark.slow
def test_of_several_workspaces_each_has_its_own_memory_and_one_leads_to_the_other(chromium, tmp_path):
    (tmp_path / "other" / ".git").mkdir(parents=True)
    with running(tmp_path, workspaces=(tmp_path / "work", tmp_path / "other")) as daemon:
        root = signed_in(chromium, daemon)
        first, second = daemon.core.workspaces
        fact = {"content": "This project uses tabs", "scope": "project"}
        task = daemon.post(f"/workspaces/{first}/memory/remember", fact).json()["taskId"]
        daemon.get(f"/workspaces/{first}/memory/remember/{task}", prefer="wait=60")
        for key, found in ((first, True), (second, False)):
            chromium.get(f"{root}/w/{key}/memory?scope=project")
            assert ("This project uses tabs" in shown(chromium, "main").text) == found
        press(chromium, str(tmp_path / "work"), within=".where")
        assert f"/w/{first}/memory" in chromium.current_url
