"""What sessions of a hook were told: for how long it counts, and how much of it is kept."""

from datetime import UTC, datetime, timedelta

import pytest

from kit.fleet.engines import ENGINES
from muniment.kernel.cancel import Patience
from muniment.store import told
from muniment.store.told import SESSION_DAYS, HookSession
from muniment.types.keys import EntryKey

NOW = datetime(2026, 11, 26, tzinfo=UTC)
FOREVER = Patience(float("inf"))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """What the ledger is kept in."""
    return request.param


def entry(number, digest="d"):
    return EntryKey("root", f"{number}.md", digest)


@pytest.fixture
def state(opening):
    with opening() as opened:
        yield opened


def test_what_a_session_was_told_counts_for_some_days_and_not_where_it_lies_ahead(state):
    one = HookSession(state, "one")
    one.tell([entry(1)], NOW)
    for later, counts in (
        (0, True),
        (SESSION_DAYS, True),
        (SESSION_DAYS + 0.01, False),
        (-0.9, True),
        (-2, False),
    ):
        assert (one.told(NOW + timedelta(days=later), FOREVER) == (entry(1),)) is counts, later
    HookSession(state, "other").tell([], NOW + timedelta(days=SESSION_DAYS + 1))
    assert one.told(NOW, FOREVER) == ()


def test_of_an_entry_counts_what_was_told_last_and_of_a_session_the_last_of_them(state, monkeypatch):
    monkeypatch.setattr(told, "MAX_TOLD", 3)
    one = HookSession(state, "one")
    one.tell([entry(number) for number in range(3)], NOW)
    one.tell([entry(0, "e")], NOW)
    assert set(one.told(NOW, FOREVER)) == {entry(1), entry(2), entry(0, "e")}
    one.tell([entry(3)], NOW)
    assert set(one.told(NOW, FOREVER)) == {entry(2), entry(0, "e"), entry(3)}


def test_no_more_sessions_are_kept_than_a_bound_and_the_one_that_is_told_is_among_them(state, monkeypatch):
    monkeypatch.setattr(told, "MAX_SESSIONS", 2)
    for number in range(3):
        HookSession(state, f"session {number}").tell([entry(number)], NOW)
    found = [HookSession(state, f"session {number}").told(NOW, FOREVER) for number in range(3)]
    assert found[2] == (entry(2),)
    assert sum(map(bool, found)) == 2
    HookSession(state, "session 2").clear()
    assert HookSession(state, "session 2").told(NOW, FOREVER) == ()
    told.forget_all(state)
    assert not any(HookSession(state, f"session {number}").told(NOW, FOREVER) for number in range(3))


def test_no_text_of_a_host_is_kept(state):
    HookSession(state, "canary \ud800 ' OR 1=1").tell([entry(1)], NOW)
    rows = state.ledger.rows("SELECT id FROM session")
    assert len(rows) == 1
    assert "canary" not in str(rows)
