"""`muniment ui`: the address of the page with and without a daemon, and the errors."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kit.cli.process import SECONDS, launch
from kit.server.page_clients import FORM, SAME
from kit.server.process import start_daemon_process
from kit.server.raw import Connection, start_local_daemon

HINT = "  open it within 60 s; it works once; for a new address: muniment ui"
NOT_SERVED = "page not available: The daemon does not serve this workspace; start it with one `--workspace"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with start_local_daemon(tmp_path_factory.mktemp("daemon")) as served:
        yield served


@pytest.fixture
def ui(cli, daemon):
    """Return a function that runs `muniment ui` in the home of a running daemon and returns its lines."""

    def run(*arguments, workspace=None, **more):
        where = f"--workspace={workspace or daemon.work}"
        return cli.run_for_lines("ui", where, *arguments, bound=False, MUNIMENT_HOME=str(daemon.home), **more)

    return run


@pytest.fixture
def start_ui(tmp_path):
    """Return a function that starts `muniment ui` without a daemon; it returns the process and its first
    lines.
    """
    processes = []

    def start(*arguments, base=tmp_path, lines=3, **environment):
        process = launch(base, "ui", *arguments, **environment)
        processes.append(process)
        return process, [process.stdout.readline().decode().rstrip("\n") for _ in range(lines)]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=SECONDS)


def send_request(address, method, path, *headers, body=b""):
    """Send a request to the port of an address, independently of its name, and return the answer."""
    host = urlsplit(address).netloc
    lines = f"{method} {path} HTTP/1.1", f"Host: {host}", SAME, f"Content-Length: {len(body)}", *headers
    with Connection(("127.0.0.1", urlsplit(address).port)) as line:
        line.send("\r\n".join([*lines, "", ""]).encode() + body)
        return line.read_answer()


def does_sign_in(address):
    """Return whether an address shows the memory to its opener, once."""
    page, _, code = address.partition("#")
    origin, path = f"http://{urlsplit(page).netloc}", urlsplit(page).path
    form = f"Origin: {origin}", FORM
    answers = [
        send_request(address, "POST", "/sign-in", *form, body=f"code={code}&to={path}".encode()) for _ in "12"
    ]
    if [each.status for each in answers] != [303, 401]:
        return False
    (cookie,) = answers[0].get_header_values("set-cookie")
    (view,) = answers[0].get_header_values("location")
    return (view, send_request(address, "GET", view, f"Cookie: {cookie.partition(';')[0]}").status) == (
        path,
        200,
    )


# -- with a daemon -------------------------------------------------------------------------------------


def test_ui_with_daemon_prints_address_that_signs_in_once(ui, daemon):
    address, *rest = ui()
    assert rest == [HINT]
    assert re.fullmatch(
        rf"http://m-[0-9a-f]{{32}}\.localhost:{daemon.port}/w/{daemon.key}/memory#[\w-]{{22}}", address
    )
    assert does_sign_in(address)
    (line,) = ui("--json")
    document = json.loads(line)
    assert sorted(document) == ["address", "code", "seconds", "url"]
    assert document["address"] == f"{document['url']}/w/{daemon.key}/memory#{document['code']}"
    assert document["seconds"] == 60
    assert does_sign_in(document["address"])
    assert not (daemon.state / "ui.html").exists()


def test_ui_for_unserved_workspace_fails(ui, tmp_path):
    (tmp_path / "other").mkdir()
    (line,) = ui(workspace=tmp_path / "other", code=1)
    assert line.startswith(NOT_SERVED)
    assert line.endswith("[untrusted_workspace]")
    (line,) = ui("--json", workspace=tmp_path / "other", code=1)
    assert json.loads(line)["error"]["code"] == "untrusted_workspace"


def test_ui_without_extra_prints_install_command(ui, cli, tmp_path, monkeypatch):
    real, missing = importlib.util.find_spec, []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else real(name))
    monkeypatch.setattr("muniment.cli.daemon.find_spec", importlib.util.find_spec)
    for name in "jinja2", "markdown_it":
        missing[:] = [name]
        (line,) = ui(code=1)
        assert "pip install 'muniment[ui]' at the daemon and restart it" in line
        assert line.startswith("page not available: ")
        (line,) = cli.run_for_lines("ui", f"--workspace={tmp_path}", bound=False, code=1)
        needs = "the page needs the extra `ui`: pip install 'muniment[ui]'"
        assert line == f"page not available: {needs} [config_invalid]"


def test_ui_rejects_daemon_file_shared_with_others(ui, daemon):
    address_file = daemon.state / "daemon.json"
    address_file.chmod(0o644)
    try:
        (line,) = ui(code=1)
    finally:
        address_file.chmod(0o600)
    assert line.startswith(f"page not available: {address_file}: is not a private file of this user")


def test_ui_opens_browser_with_private_file_without_code(ui, daemon, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    (daemon.state / "ui.html").write_text("of an older run")
    (daemon.state / "ui.html").chmod(0o644)
    address, *rest = ui("--open")
    assert rest == [HINT]
    file = daemon.state / "ui.html"
    assert opened == [file.as_uri()]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().count(address) == 2
    assert f'http-equiv="refresh" content="0; url={address}"' in file.read_text()
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    *_, note = ui("--open")
    assert note == "note: no browser was opened (none was found, or it failed); open the address yourself"
    assert json.loads(ui("--open", "--json")[0])["seconds"] == 60
    file.unlink()
    file.mkdir()
    try:
        *_, note = ui("--open")
        assert note.startswith(f"note: no browser was opened ({file} cannot be written: ")
    finally:
        file.rmdir()


# -- without a daemon ----------------------------------------------------------------------------------


def test_ui_without_daemon_starts_one_and_ctrl_c_ends_both(start_ui, tmp_path):
    process, lines = start_ui()
    address, *rest = lines
    assert rest == [HINT, "  started a daemon for the page; Ctrl-C stops both"]
    assert does_sign_in(address)
    assert (tmp_path / "home" / "state" / "daemon.json").exists()
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 0
    assert not (tmp_path / "home" / "state" / "daemon.json").exists()
    log = process.stderr.read().decode()
    assert "Traceback" not in log
    assert urlsplit(address).fragment not in log


@pytest.mark.slow
def test_ui_after_daemon_was_killed_starts_another(start_ui, tmp_path):
    with start_daemon_process(tmp_path) as daemon:
        daemon.kill()
        assert (tmp_path / "home" / "state" / "daemon.json").exists()
        process, (address, *_) = start_ui("--json", lines=1)
        assert does_sign_in(json.loads(address)["address"])
        process.terminate()
        assert process.wait(SECONDS) == 0


BROWSER = """#!{python}
import re, socket, sys, urllib.parse
with open({argv!r}, "w") as file:
    file.write(" ".join(sys.argv[1:]))
page = open(urllib.parse.urlsplit(sys.argv[1]).path).read()
host, port = re.search(r"http://([^:/]+):([0-9]+)", page).groups()
with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as line:
    lines = "GET / HTTP/1.1", f"Host: {{host}}:{{port}}", "Sec-Fetch-Mode: navigate", "", ""
    line.sendall("\\r\\n".join(lines).encode())
    answer = line.recv(100)
with open({answer!r}, "wb") as file:
    file.write(answer)
"""


@pytest.mark.slow
def test_ui_serves_while_browser_runs_without_code_in_arguments(start_ui, tmp_path):
    browser, argv, answer = tmp_path / "browser", tmp_path / "argv", tmp_path / "answer"
    browser.write_text(BROWSER.format(python=sys.executable, argv=str(argv), answer=str(answer)))
    browser.chmod(0o700)
    process, (address, *_) = start_ui("--open", BROWSER=str(browser))
    while not answer.exists() or not answer.read_bytes():
        assert process.poll() is None
        response = send_request(address, "GET", "/")
        assert response.status in {200, 401}
    assert answer.read_bytes().startswith(b"HTTP/1.1 200 ")
    assert argv.read_text() == (tmp_path / "home" / "state" / "ui.html").as_uri()
    code = urlsplit(address).fragment
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert code.encode() not in each.read_bytes()
        except OSError:  # The process has ended.
            continue
