"""Injected entries of hook sessions: for how long they count, and how many are stored."""

from datetime import UTC, datetime, timedelta

import pytest

from kit.fleet.engines import ENGINES
from muniment.kernel.cancel import Deadline
from muniment.store import injected
from muniment.store.injected import SESSION_DAYS, HookSession
from muniment.types.keys import EntryKey

NOW = datetime(2026, 11, 26, tzinfo=UTC)
FOREVER = Deadline(float("inf"))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """The engine of the ledger."""
    return request.param


def make_key(number, digest="d"):
    return EntryKey("root", f"{number}.md", digest)


@pytest.fixture
def state(open_state):
    with open_state() as opened:
        yield opened


def test_injection_counts_for_some_days_and_not_from_the_future(state):
    one = HookSession(state, "one")
    one.record_injected([make_key(1)], NOW)
    for later, counts in (
        (0, True),
        (SESSION_DAYS, True),
        (SESSION_DAYS + 0.01, False),
        (-0.9, True),
        (-2, False),
    ):
        assert (one.read_injected(NOW + timedelta(days=later), FOREVER) == (make_key(1),)) is counts, later
    HookSession(state, "other").record_injected([], NOW + timedelta(days=SESSION_DAYS + 1))
    assert one.read_injected(NOW, FOREVER) == ()


def test_last_injections_of_an_entry_and_a_session_count(state, monkeypatch):
    monkeypatch.setattr(injected, "MAX_INJECTED", 3)
    one = HookSession(state, "one")
    one.record_injected([make_key(number) for number in range(3)], NOW)
    one.record_injected([make_key(0, "e")], NOW)
    assert set(one.read_injected(NOW, FOREVER)) == {make_key(1), make_key(2), make_key(0, "e")}
    one.record_injected([make_key(3)], NOW)
    assert set(one.read_injected(NOW, FOREVER)) == {make_key(2), make_key(0, "e"), make_key(3)}


def test_stored_sessions_are_bounded_and_include_the_latest(state, monkeypatch):
    monkeypatch.setattr(injected, "MAX_SESSIONS", 2)
    for number in range(3):
        HookSession(state, f"session {number}").record_injected([make_key(number)], NOW)
    found = [HookSession(state, f"session {number}").read_injected(NOW, FOREVER) for number in range(3)]
    assert found[2] == (make_key(2),)
    assert sum(map(bool, found)) == 2
    HookSession(state, "session 2").clear()
    assert HookSession(state, "session 2").read_injected(NOW, FOREVER) == ()
    injected.delete_all_sessions(state)
    assert not any(HookSession(state, f"session {number}").read_injected(NOW, FOREVER) for number in range(3))


def test_no_text_of_a_host_is_stored(state):
    HookSession(state, "canary \ud800 ' OR 1=1").record_injected([make_key(1)], NOW)
    rows = state.ledger.rows("SELECT id FROM session")
    assert len(rows) == 1
    assert "canary" not in str(rows)
