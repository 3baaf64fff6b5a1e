"""Tokens (K1 to K3), and how a daemon is found: its lock, its document, its sockets (N1 to N4)."""

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

from kit.catching import catch_error
from kit.fleet.engines import ENGINES, StateOpener
from kit.server.raw import start_local_daemon
from kit.threads import run_together
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, NotFound
from muniment.fleet.postgres import HomeLedger
from muniment.kernel.names import Trust
from muniment.server import service
from muniment.server import tokens as subject
from muniment.server.service import ADDRESS_NAME, LOCK_NAME, announce, listen_tcp, listen_unix, lock_directory
from muniment.server.tokens import OWNER_PRINCIPAL, TOKEN_NAME, Principal, Tokens, load_owner_token
from muniment.store.audit import read_records
from muniment.store.database import COMPANIONS, Database
from muniment.store.state import State
from muniment.store.tasks import OWNER

OWNERS = "o" * 43
EDITOR_TOKEN = ("editor", ["editor-1"], Trust.AGENT)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """The database of the ledger, for tests that use it."""
    return request.param


@pytest.fixture
def opening(engine, request):
    return StateOpener(request.getfixturevalue("fleet") if engine == "postgres" else None)


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


# -- K1: the owner token -------------------------------------------------------------------------------


@pytest.mark.usefixtures("_umask")
def test_owner_token_is_created_once_and_private(tmp_path):
    """A lock normally separates daemons; this is the protection without it."""
    (token,) = set(run_together(8, lambda _: load_owner_token(tmp_path)))
    (path,) = tmp_path.iterdir()
    assert (path.name, stat.S_IMODE(path.stat().st_mode)) == (TOKEN_NAME, 0o600)
    assert len(token) >= 43
    assert path.read_text() == f"{load_owner_token(tmp_path)}\n" == f"{token}\n"


def assert_rejected(directory, match=None):
    assert "oooo" not in str(catch_error(ManagedMemoryUnavailable, load_owner_token, directory, match=match))


def test_token_file_shared_with_others_is_rejected_and_kept(tmp_path):
    """It does not wait for the writer of a pipe."""
    path, outside = tmp_path / TOKEN_NAME, tmp_path / "elsewhere"
    outside.write_text(f"{OWNERS}\n")
    outside.chmod(0o600)
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
        assert_rejected(tmp_path)
        assert (path.lstat(), sorted(tmp_path.iterdir())) == (before, sorted([path, outside]))
        path.unlink()


def test_file_without_token_is_rejected_and_not_quoted(tmp_path):
    path = tmp_path / TOKEN_NAME
    load_owner_token(tmp_path)
    for content in (
        *(b"", b"\n", b"short\n", b"o" * 129, b"o" * 43 + b"\n" + b"p" * 43 + b"\n", b"token: " + b"o" * 43),
        *(b"o" * 20 + b" " + b"o" * 20, b"o" * 42 + b"\xe9", b"\x00" * 43, b"\xff\xfe" + b"o\x00" * 43),
    ):
        path.write_bytes(content)
        assert_rejected(tmp_path, "does not contain a token; delete it")
        assert path.read_bytes() == content
    assert_rejected(tmp_path / "missing", "cannot be created: No such file")
    if os.geteuid() == 0:  # Only root can change the owner of a file.
        os.chown(path, 4242, 4242)
        assert_rejected(tmp_path, "not a private file of this user")


# -- K2: tokens of clients -----------------------------------------------------------------------------


def test_client_token_has_ids_and_trust_and_is_not_stored(tokens, state):
    token = tokens.add("editor", ["editor-2", "editor-1"], Trust.EXTERNAL)
    found = tokens.find_principal(token, OWNERS)
    expected = Principal("editor", Trust.EXTERNAL, frozenset({"editor-1", "editor-2"}), found.digest)
    assert (found, tokens.list_principals()) == (expected, (expected,))
    assert found.digest not in repr(found)
    assert tokens.find_principal(OWNERS, OWNERS) is OWNER_PRINCIPAL
    assert (found.is_owner, OWNER_PRINCIPAL.is_owner) == (False, True)
    tokens.revoke("editor")
    for path in state.directory.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path
    bodies = [record.body for record in read_records(state) if record.kind == "token"]
    found = [(each.get("added"), each.get("revoked")) for each in bodies]
    assert found == [("editor", None), (None, "editor")]
    assert (bodies[0]["trust"], sorted(bodies[0]["clients"])) == ("external", ["editor-1", "editor-2"])
    assert token not in json.dumps(bodies)


def open_connection(ledger):
    """Open another connection to the ledger."""
    return (
        ledger.with_epoch(0) if isinstance(ledger, HomeLedger) else Database(ledger.path, synchronous="FULL")
    )


def test_revoked_token_is_unknown_at_once_on_other_connection(tokens, state):
    with closing(open_connection(state.ledger)) as reads:
        other_tokens, old_token = Tokens(state, reads), tokens.add(*EDITOR_TOKEN)
        assert (before := other_tokens.find_principal(old_token, OWNERS)) is not None
        tokens.revoke("editor")
        assert (other_tokens.find_principal(old_token, OWNERS), other_tokens.list_principals()) == (None, ())
        new_token = tokens.add("editor", ["editor-1"], Trust.OWNER)  # The name can be used for another token.
        assert other_tokens.find_principal(old_token, OWNERS) is None
        assert other_tokens.find_principal(new_token, OWNERS).trust is Trust.OWNER
        tokens.revoke("editor")
        after = other_tokens.find_principal(tokens.add(*EDITOR_TOKEN), OWNERS)
        assert before != after
        assert other_tokens.list_principals() == (after,)


def test_invalid_token_name_or_client_id_is_rejected(tokens, state):
    for name in ("", OWNER, "a b", "-a", ".a", "a/b", "a\n", "a" * 65, "é", "a\x00"):
        catch_error(ConfigInvalid, tokens.add, name, ["editor-1"], Trust.AGENT, match="invalid token name")
    for each in ("", "a b", "-a", "a,b", "a/b", "a\n", "a" * 129, "é", 'a"', "a\r\nX: y"):
        ids = ["editor-1", each]
        catch_error(ConfigInvalid, tokens.add, "editor", ids, Trust.AGENT, match="invalid client id")
    catch_error(NotFound, tokens.revoke, "editor", match="muniment token list")
    assert (tokens.list_principals(), [each for each in read_records(state) if each.kind == "token"]) == (
        (),
        [],
    )


def test_concurrent_adds_of_one_name_create_one_token(opening, tmp_path):
    def add_token(number):
        with opening(tmp_path / "state") as state:
            try:
                return Tokens(state).add(f"name-{number % 2}", ["shared"], Trust.AGENT)
            except ConfigInvalid:
                return None

    with opening(tmp_path / "state"):
        assert len([each for each in run_together(6, add_token) if each is not None]) == 1


# -- K3: comparison ------------------------------------------------------------------------------------


def test_inexact_token_has_no_principal(tokens, opening, tmp_path):
    with opening(tmp_path / "other") as other:
        foreign_token = Tokens(other).add(*EDITOR_TOKEN)
    own_token = tokens.add(*EDITOR_TOKEN)
    sent = [
        "",
        "x",
        "o" * 1_000_000,
        "\u00e9" * 43,
        "' OR 1=1 --" + "o" * 40,
        "%" * 43,
        "_" * 43,
        foreign_token,
    ]
    for whole in (own_token, OWNERS):
        sent += [whole[:-1], f"{whole}o", whole.swapcase(), f" {whole}", f"{whole}\n", f"{whole}\x00"]
    assert [each[:50] for each in sent if tokens.find_principal(each, OWNERS) is not None] == []


def test_tokens_are_compared_by_digest_in_constant_time(tokens, state, monkeypatch):
    compared, real_compare = [], subject.hmac.compare_digest
    monkeypatch.setattr(
        subject.hmac, "compare_digest", lambda *digests: compared.append(digests) or real_compare(*digests)
    )
    token = tokens.add(*EDITOR_TOKEN)
    principals = [
        tokens.find_principal(sent, OWNERS)
        for sent in (token, OWNERS, "x" * 43, f"{OWNERS}\n", "\uff4f" * 43)
    ]
    assert [each and each.name for each in principals] == ["editor", OWNER, *[None] * 3]
    assert [{len(each) for each in digests} for digests in compared] == [{64}] * 4
    # If the comparison of the ledger accepted more, the digest would be compared again.
    rows = state.ledger.rows("SELECT name, trust, clients, digest FROM token")
    monkeypatch.setattr(tokens, "_reads", type("Lax", (), {"rows": lambda *_: rows}))
    assert tokens.find_principal("x" * 43, OWNERS) is None


def test_ledger_copied_to_other_key_knows_no_token(tmp_path):
    """A backup that another user restores grants no access."""
    with State(tmp_path / "state") as state:
        token, path = Tokens(state).add(*EDITOR_TOKEN), state.ledger.path
    with State(tmp_path / "other") as other:
        target = other.ledger.path
    for companion in COMPANIONS:
        target.with_name(target.name + companion).unlink(missing_ok=True)
    target.write_bytes(path.read_bytes())
    with State(tmp_path / "other") as other:
        assert [each.name for each in Tokens(other).list_principals()] == ["editor"]
        assert Tokens(other).find_principal(token, OWNERS) is None


DOCUMENT = {"url": "http://127.0.0.1:1", "socket": None, "pid": 4242, "epoch": "0"}


def read_mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def assert_second_is_rejected(directory, match=None):
    """Check that a second daemon of the directory is rejected."""
    catch_error(ManagedMemoryUnavailable, lock_directory(directory).__enter__, match=match)


# -- N1: the lock --------------------------------------------------------------------------------------


def test_second_daemon_is_rejected_with_address_of_first(tmp_path):
    with lock_directory(tmp_path):
        assert_second_is_rejected(tmp_path, "starting or stopping")
        for content in (b"", b"{}", b"[]", b"\xff", b'{"pid": "x", "url": 1}'):
            (tmp_path / ADDRESS_NAME).write_bytes(content)
            assert_second_is_rejected(tmp_path, "starting or stopping")
        announce(tmp_path, DOCUMENT)
        assert_second_is_rejected(tmp_path, r"process 4242 at http://127\.0\.0\.1:1")
    with lock_directory(tmp_path):
        pass


def test_daemon_lock_is_not_inherited_by_child(tmp_path):
    with lock_directory(tmp_path):
        program = [sys.executable, "-c", "print(flush=True); input()"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen(program, **pipes, close_fds=False)
    with child:
        assert child.stdout.readline() == b"\n"
        with lock_directory(tmp_path):
            child.stdin.write(b"\n")


# -- N2: the document ----------------------------------------------------------------------------------


def test_daemon_files_follow_no_links(tmp_path):
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "nowhere")
    assert_second_is_rejected(tmp_path)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "elsewhere").write_text("mine")
    for name in (ADDRESS_NAME, f"{ADDRESS_NAME}.unfinished"):
        (tmp_path / name).symlink_to("elsewhere")
    announce(tmp_path, DOCUMENT)
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert not (tmp_path / ADDRESS_NAME).is_symlink()
    assert json.loads((tmp_path / ADDRESS_NAME).read_text()) == DOCUMENT


def test_stopped_daemon_leaves_token_and_lock_only(tmp_path):
    with start_local_daemon(tmp_path) as daemon:
        state, document = daemon.state, (daemon.state / ADDRESS_NAME).read_text()
        found = {"url": daemon.url, "socket": daemon.unix, "pid": os.getpid()}
        assert json.loads(document) == json.loads(document) | found
        assert daemon.token not in document
    assert [each.exists() for each in (state / ADDRESS_NAME, tmp_path / "d.sock")] == [False] * 2
    assert [read_mode(state / name) for name in ("token", LOCK_NAME)] == [0o600] * 2


# -- N3, N4: the sockets -------------------------------------------------------------------------------


@pytest.mark.usefixtures("_umask")
def test_unix_socket_is_private_from_creation(tmp_path, monkeypatch):
    seen = []

    def bind(self, address):
        socket.socket.bind(self, address)
        seen.append(read_mode(Path(address)))

    monkeypatch.setattr(service.Listener, "bind", bind)
    listen_unix(tmp_path / "d.sock").close()
    assert seen == [0o600]


def test_unix_socket_is_replaced_only_if_unused(tmp_path):
    path = tmp_path / "d.sock"
    listen_unix(path).close()
    assert path.is_socket()
    with listen_unix(path) as first:
        catch_error(ConfigInvalid, listen_unix, path, match="Address already in use; use another --socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            first.accept()[0].close()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))  # Its owner is too busy to answer.
        busy.listen(0)
        waiting.connect(str(path))
        catch_error(ConfigInvalid, listen_unix, path, match="use another --socket")
    assert path.is_socket()


def test_connections_are_accepted_in_batches(monkeypatch):
    with listen_tcp("127.0.0.1", 0) as listener, ExitStack() as stack:
        listener.setblocking(False)
        for _ in range(service.ACCEPTED_AT_ONCE + 3):
            stack.enter_context(socket.create_connection(listener.getsockname()))

        def accept_connection():
            try:
                stack.enter_context(listener.accept()[0])
            except OSError as error:
                return type(error)
            return None

        assert [len(list(iter(accept_connection, BlockingIOError))) for _ in range(3)] == [
            service.ACCEPTED_AT_ONCE,
            3,
            0,
        ]

        def fail_to_accept(_):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket.socket, "accept", fail_to_accept)
        assert [accept_connection() for _ in range(4)] == [OSError, BlockingIOError] * 2
