"""Tokens (K1 to K3), and where a daemon is found: its lock, its document, its sockets (N1 to N4)."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kit.fleet.engines import ENGINES, Opening
from kit.raising import raised
from kit.server.raw import running
from kit.threads import together
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, NotFound
from muniment.fleet.postgres import HomeLedger
from muniment.kernel.names import Trust
from muniment.server import service
from muniment.server import tokens as subject
from muniment.server.service import ADDRESS_NAME, LOCK_NAME, alone, announce, listen_tcp, listen_unix
from muniment.server.tokens import THE_OWNER, TOKEN_NAME, Principal, Tokens, owner_token
from muniment.store.audit import records
from muniment.store.database import COMPANIONS, Database
from muniment.store.state import State
from muniment.store.tasks import OWNER

OWNERS = "o" * 43
EDITOR = ("editor", ["editor-1"], Trust.AGENT)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """What the ledger is kept in, for the tests that ask for one."""
    return request.param


@pytest.fixture
def opening(engine, request):
    return Opening(request.getfixturevalue("fleet") if engine == "postgres" else None)


@pytest.fixture
def state(opening, tmp_path):
    with opening(tmp_path / "state") as made:
        yield made


@pytest.fixture
def tokens(state):
    return Tokens(state)


@pytest.fixture
def _umask():
    before = os.umask(0)
    yield
    os.umask(before)


# -- K1: the owner's -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("_umask")
def test_the_owners_token_is_made_once_alone_on_a_line_and_ours_alone(tmp_path):
    """Daemons are kept apart by a lock before; this is what is left if somebody were not."""
    (token,) = set(together(8, lambda _: owner_token(tmp_path)))
    (path,) = tmp_path.iterdir()
    assert (path.name, stat.S_IMODE(path.stat().st_mode)) == (TOKEN_NAME, 0o600)
    assert len(token) >= 43
    assert path.read_text() == f"{owner_token(tmp_path)}\n" == f"{token}\n"


def refused(directory, match=None):
    assert "oooo" not in str(raised(ManagedMemoryUnavailable, owner_token, directory, match=match))


def test_a_token_that_others_may_read_or_write_or_that_is_no_plain_file_is_refused_and_left(tmp_path):
    """Nor does it wait for who would write into a pipe."""
    path, elsewhere = tmp_path / TOKEN_NAME, tmp_path / "elsewhere"
    elsewhere.write_text(f"{OWNERS}\n")
    elsewhere.chmod(0o600)
    fifo, sock, plain = stat.S_IFIFO | 0o600, stat.S_IFSOCK | 0o600, (0o644, 0o640, 0o604, 0o620, 0o601)
    for node in (*plain, fifo, sock, "elsewhere", "nowhere"):
        if isinstance(node, str):
            path.symlink_to(node)
        else:
            os.mknod(path, node)
            if node in plain:
                path.write_text(f"{OWNERS}\n")
            path.chmod(stat.S_IMODE(node))
        before = path.lstat()
        refused(tmp_path)
        assert (path.lstat(), sorted(tmp_path.iterdir())) == (before, sorted([path, elsewhere]))
        path.unlink()


def test_a_file_that_holds_no_token_is_refused_and_not_quoted(tmp_path):
    path = tmp_path / TOKEN_NAME
    owner_token(tmp_path)
    for content in (
        *(b"", b"\n", b"short\n", b"o" * 129, b"o" * 43 + b"\n" + b"p" * 43 + b"\n", b"token: " + b"o" * 43),
        *(b"o" * 20 + b" " + b"o" * 20, b"o" * 42 + b"\xe9", b"\x00" * 43, b"\xff\xfe" + b"o\x00" * 43),
    ):
        path.write_bytes(content)
        refused(tmp_path, "does not contain a token; delete it")
        assert path.read_bytes() == content
    refused(tmp_path / "missing", "cannot be created: No such file")
    if os.geteuid() == 0:  # Only root may give a file away.
        os.chown(path, 4242, 4242)
        refused(tmp_path, "not a private file of this user")


# -- K2: those of clients ------------------------------------------------------------------------------


def test_a_clients_token_is_known_with_its_ids_and_its_trust_and_stands_nowhere(tokens, state):
    token = tokens.add("editor", ["editor-2", "editor-1"], Trust.EXTERNAL)
    found = tokens.principal(token, OWNERS)
    expected = Principal("editor", Trust.EXTERNAL, frozenset({"editor-1", "editor-2"}), found.digest)
    assert (found, tokens.all()) == (expected, (expected,))
    assert found.digest not in repr(found)
    assert tokens.principal(OWNERS, OWNERS) is THE_OWNER
    assert (found.is_owner, THE_OWNER.is_owner) == (False, True)
    tokens.revoke("editor")
    for path in state.directory.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path
    bodies = [record.body for record in records(state) if record.kind == "token"]
    found = [(each.get("added"), each.get("revoked")) for each in bodies]
    assert found == [("editor", None), (None, "editor")]
    assert (bodies[0]["trust"], sorted(bodies[0]["clients"])) == ("external", ["editor-1", "editor-2"])
    assert token not in json.dumps(bodies)


def elsewhere(ledger):
    """Another connection to it."""
    return ledger.at(0) if isinstance(ledger, HomeLedger) else Database(ledger.path, synchronous="FULL")


def test_a_revoked_token_is_nobodys_at_once_also_for_who_reads_by_another_connection(tokens, state):
    with closing(elsewhere(state.ledger)) as reads:
        asked, old = Tokens(state, reads), tokens.add(*EDITOR)
        assert (before := asked.principal(old, OWNERS)) is not None
        tokens.revoke("editor")
        assert (asked.principal(old, OWNERS), asked.all()) == (None, ())
        new = tokens.add("editor", ["editor-1"], Trust.OWNER)  # The name can be given again, to another one.
        assert asked.principal(old, OWNERS) is None
        assert asked.principal(new, OWNERS).trust is Trust.OWNER
        tokens.revoke("editor")
        after = asked.principal(tokens.add(*EDITOR), OWNERS)
        assert before != after
        assert asked.all() == (after,)


def test_a_name_or_an_id_that_cannot_be_one_is_refused_and_leaves_nothing(tokens, state):
    for name in ("", OWNER, "a b", "-a", ".a", "a/b", "a\n", "a" * 65, "é", "a\x00"):
        raised(ConfigInvalid, tokens.add, name, ["editor-1"], Trust.AGENT, match="invalid token name")
    for each in ("", "a b", "-a", "a,b", "a/b", "a\n", "a" * 129, "é", 'a"', "a\r\nX: y"):
        ids = ["editor-1", each]
        raised(ConfigInvalid, tokens.add, "editor", ids, Trust.AGENT, match="invalid client id")
    raised(NotFound, tokens.revoke, "editor", match="muniment token list")
    assert (tokens.all(), [each for each in records(state) if each.kind == "token"]) == ((), [])


def test_of_many_who_take_one_name_or_one_id_at_once_one_has_it(opening, tmp_path):
    def take(number):
        with opening(tmp_path / "state") as state:
            try:
                return Tokens(state).add(f"name-{number % 2}", ["shared"], Trust.AGENT)
            except ConfigInvalid:
                return None

    with opening(tmp_path / "state"):
        assert len([each for each in together(6, take) if each is not None]) == 1


# -- K3: comparing -------------------------------------------------------------------------------------


def test_what_is_not_exactly_a_token_is_nobodys(tokens, opening, tmp_path):
    with opening(tmp_path / "other") as other:
        theirs = Tokens(other).add(*EDITOR)
    mine = tokens.add(*EDITOR)
    sent = ["", "x", "o" * 1_000_000, "\u00e9" * 43, "' OR 1=1 --" + "o" * 40, "%" * 43, "_" * 43, theirs]
    for whole in (mine, OWNERS):
        sent += [whole[:-1], f"{whole}o", whole.swapcase(), f" {whole}", f"{whole}\n", f"{whole}\x00"]
    assert [each[:50] for each in sent if tokens.principal(each, OWNERS) is not None] == []


def test_tokens_are_compared_by_digests_of_one_length_in_constant_time(tokens, state, monkeypatch):
    compared, real = [], subject.hmac.compare_digest
    monkeypatch.setattr(subject.hmac, "compare_digest", lambda *both: compared.append(both) or real(*both))
    token = tokens.add(*EDITOR)
    told = [
        tokens.principal(sent, OWNERS) for sent in (token, OWNERS, "x" * 43, f"{OWNERS}\n", "\uff4f" * 43)
    ]
    assert [each and each.name for each in told] == ["editor", OWNER, *[None] * 3]
    assert [{len(each) for each in both} for both in compared] == [{64}] * 4
    # Should the ledger's own comparison be laxer than bytes: the digest is compared once more.
    rows = state.ledger.rows("SELECT name, trust, clients, digest FROM token")
    monkeypatch.setattr(tokens, "_reads", type("Lax", (), {"rows": lambda *_: rows}))
    assert tokens.principal("x" * 43, OWNERS) is None


def test_a_ledger_that_was_copied_beside_another_key_knows_no_token(tmp_path):
    """A backup that somebody else restores gives nobody access."""
    with State(tmp_path / "state") as state:
        token, path = Tokens(state).add(*EDITOR), state.ledger.path
    with State(tmp_path / "other") as other:
        place = other.ledger.path
    for companion in COMPANIONS:
        place.with_name(place.name + companion).unlink(missing_ok=True)
    place.write_bytes(path.read_bytes())
    with State(tmp_path / "other") as other:
        assert [each.name for each in Tokens(other).all()] == ["editor"]
        assert Tokens(other).principal(token, OWNERS) is None


DOCUMENT = {"url": "http://127.0.0.1:1", "socket": None, "pid": 4242, "epoch": "0"}


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def second_is_refused(directory, match=None):
    """Somebody serves the directory: whoever comes second is told so."""
    raised(ManagedMemoryUnavailable, alone(directory).__enter__, match=match)


# -- N1: the lock --------------------------------------------------------------------------------------


def test_the_second_daemon_of_a_directory_refuses_and_says_where_the_first_is_if_it_is_announced(tmp_path):
    with alone(tmp_path):
        second_is_refused(tmp_path, "starting or stopping")
        for content in (b"", b"{}", b"[]", b"\xff", b'{"pid": "x", "url": 1}'):
            (tmp_path / ADDRESS_NAME).write_bytes(content)
            second_is_refused(tmp_path, "starting or stopping")
        announce(tmp_path, DOCUMENT)
        second_is_refused(tmp_path, r"process 4242 at http://127\.0\.0\.1:1")
    with alone(tmp_path):
        pass


def test_a_lock_is_not_inherited_by_what_its_holder_starts(tmp_path):
    with alone(tmp_path):
        program = [sys.executable, "-c", "print(flush=True); input()"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen(program, **pipes, close_fds=False)
    with child:
        assert child.stdout.readline() == b"\n"
        with alone(tmp_path):
            child.stdin.write(b"\n")


# -- N2: the document ----------------------------------------------------------------------------------


def test_no_link_is_followed_to_the_lock_nor_to_the_document(tmp_path):
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "nowhere")
    second_is_refused(tmp_path)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "elsewhere").write_text("mine")
    for name in (ADDRESS_NAME, f"{ADDRESS_NAME}.unfinished"):
        (tmp_path / name).symlink_to("elsewhere")
    announce(tmp_path, DOCUMENT)
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert not (tmp_path / ADDRESS_NAME).is_symlink()
    assert json.loads((tmp_path / ADDRESS_NAME).read_text()) == DOCUMENT


def test_a_daemon_that_stopped_leaves_its_token_and_its_lock_and_no_address(tmp_path):
    with running(tmp_path) as daemon:
        state, told = daemon.state, (daemon.state / ADDRESS_NAME).read_text()
        found = {"url": daemon.url, "socket": daemon.unix, "pid": os.getpid()}
        assert json.loads(told) == json.loads(told) | found
        assert daemon.token not in told
    assert [each.exists() for each in (state / ADDRESS_NAME, tmp_path / "d.sock")] == [False] * 2
    assert [mode_of(state / name) for name in ("token", LOCK_NAME)] == [0o600] * 2


# -- N3, N4: the sockets -------------------------------------------------------------------------------


@pytest.mark.usefixtures("_umask")
def test_a_socket_is_ours_alone_from_the_moment_that_it_has_a_name(tmp_path, monkeypatch):
    seen = []

    def bind(self, address):
        socket.socket.bind(self, address)
        seen.append(mode_of(Path(address)))

    monkeypatch.setattr(service.Listener, "bind", bind)
    listen_unix(tmp_path / "d.sock").close()
    assert seen == [0o600]


def test_a_socket_is_replaced_where_nobody_answers_on_it_any_more_and_stays_where_somebody_does(tmp_path):
    place = tmp_path / "d.sock"
    listen_unix(place).close()
    assert place.is_socket()
    with listen_unix(place) as first:
        raised(ConfigInvalid, listen_unix, place, match="Address already in use; use another --socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
            first.accept()[0].close()
    place.unlink()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(place))  # Its owner is too busy to answer.
        busy.listen(0)
        waiting.connect(str(place))
        raised(ConfigInvalid, listen_unix, place, match="use another --socket")
    assert place.is_socket()


def test_connections_are_taken_a_few_at_a_time_and_nothing_is_tried_where_none_can_be(monkeypatch):
    with listen_tcp("127.0.0.1", 0) as listener, ExitStack() as held:
        listener.setblocking(False)
        for _ in range(service.ACCEPTED_AT_ONCE + 3):
            held.enter_context(socket.create_connection(listener.getsockname()))

        def take():
            try:
                held.enter_context(listener.accept()[0])
            except OSError as error:
                return type(error)
            return None

        assert [len(list(iter(take, BlockingIOError))) for _ in range(3)] == [service.ACCEPTED_AT_ONCE, 3, 0]

        def lacking(_):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket.socket, "accept", lacking)
        assert [take() for _ in range(4)] == [OSError, BlockingIOError] * 2
