"""The adapter over real sockets: where the text goes, what comes back, and when it ends (N1 to N6)."""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
import tracemalloc
from dataclasses import replace

import pytest

from kit.agent.servers import KEY, asked, hasty, logged, serving
from kit.where import TESTS
from muniment.agent.model import ModelError
from muniment.agent.openai import MAX_ANSWER_BYTES, OpenAIModel
from muniment.confine.cancel import Cancel
from muniment.errors import Cancelled, ConfigInvalid, DeadlineExceeded
from muniment.testing.chat_server import (
    ChatServer,
    Response,
    always,
    bomb,
    completion,
    document,
    endless,
    failure,
    late,
    misbehaviours,
    raw,
    redirect,
    stalls,
    tool_call,
    tool_calls,
    words,
)

__all__ = ["hasty", "logged"]
pytestmark = pytest.mark.usefixtures("hasty")

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"
DEADLINE = 1.0
STALLS = stalls()
OTHERS = [name for name in misbehaviours() if name not in STALLS]


# -- N1: it ends on time -------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", [*STALLS, "first byte a minute late", "busy for a minute"])
def test_a_stalling_server_ends_on_the_deadline_and_its_socket_is_closed(name):
    more = {
        "first byte a minute late": late(60, words("Late.")),
        "busy for a minute": late(60, failure(503, "")),
    }
    with serving(always({**STALLS, **more}[name])) as (server, model):
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            model.respond(asked(DEADLINE))
        took = time.monotonic() - started
        assert DEADLINE <= took <= DEADLINE + 0.5
        assert server.requests[0].hung_up.wait(5)
        assert len(server.requests) == 1


def test_a_cancel_ends_it_and_closes_the_socket():
    with serving(always(raw(math.inf))) as (server, model), Cancel() as cancel:
        threading.Thread(target=lambda: server.wait_for_requests() and cancel.set()).start()
        with pytest.raises(Cancelled):
            model.respond(replace(asked(60), cancel=cancel))
        assert server.requests[0].hung_up.wait(5)


@pytest.mark.parametrize("wait", ["120", "Fri, 31 Dec 2100 23:59:59 GMT"])
def test_nothing_is_asked_again_when_that_would_be_too_late(wait):
    with serving(always(failure(429, "slow down", retry_after=wait))) as (server, model):
        started = time.monotonic()
        with pytest.raises(
            ModelError, match=r"slow down; another try in \d+ s would be too late, 20 s are left"
        ):
            model.respond(asked(20))
        assert time.monotonic() - started < 5
        assert len(server.requests) == 1


@pytest.mark.slow
def test_the_tries_of_a_busy_server_end_on_the_deadline_too():
    with serving(always(late(0.4, failure(503, "busy", retry_after=0)))) as (_, model):
        started = time.monotonic()
        with pytest.raises((DeadlineExceeded, ModelError)):
            model.respond(asked(DEADLINE))
        assert time.monotonic() - started <= DEADLINE + 0.5


@pytest.mark.sweep(4)
@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_asked_for_twice_more(status):
    answers = [failure(status, "not now", retry_after=0)] * 2
    with serving([*answers, words("Saved.")]) as (server, model):
        assert model.respond(asked()).text == "Saved."
        assert len(server.requests) == 3
        assert len({request.raw for request in server.requests}) == 1
    with serving([*answers, *answers, words("Saved.")], "tools") as (server, model):
        with pytest.raises(ModelError, match=f"{status}: not now"):
            model.respond(asked())
        assert len(server.requests) == 3


@pytest.mark.slow
def test_a_retry_after_is_kept_to():
    with serving([failure(429, "slow down", retry_after=1), words("Saved.")]) as (_, model):
        started = time.monotonic()
        assert model.respond(asked()).text == "Saved."
        assert time.monotonic() - started >= 1


@pytest.mark.parametrize("status", [401, 402, 403, 404, 410, 451])
def test_what_does_not_pass_is_asked_for_once(status):
    with serving(always(failure(status, "no"))) as (server, model):
        with pytest.raises(ModelError, match=str(status)):
            model.respond(asked())
        assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    model = OpenAIModel("scripted", base_url=f"http://127.0.0.1:{port}/v1")
    with pytest.raises(
        ModelError, match=f"no connection to 127.0.0.1:{port}; check that the server is running there"
    ):
        model.respond(asked())
    model.close()


def attempted(model):
    """The reply of a model, or its clean error; anything else is raised."""
    try:
        return model.respond(asked(15))
    except ModelError as error:
        return error


# -- nothing that a server does is more than an error ----------------------------------------------------


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", OTHERS)
def test_every_misbehaviour_is_an_answer_or_one_clean_error(name):
    with serving(always(misbehaviours()[name])) as (server, model):
        outcome = attempted(model)
        if isinstance(outcome, ModelError):
            assert str(outcome).isprintable()
            assert len(str(outcome)) < 400
            assert outcome.__suppress_context__ or outcome.__context__ is None
        else:
            assert len(outcome.calls) <= 32
            assert len(outcome.text) <= 8_000
            assert len({call.id for call in outcome.calls}) == len(outcome.calls)
        assert len(server.requests) <= 15


@pytest.mark.parametrize("name", ["call cut off", "call that is whole at the limit", "endless repetition"])
def test_what_was_cut_off_is_no_call(name):
    with serving(always(misbehaviours()[name])) as (_, model):
        assert model.respond(asked()).calls == ()


# -- N2, N3: where it goes, and what goes ----------------------------------------------------------------


@pytest.mark.threat("T-RUN-05", control="one_address")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_never_followed(status):
    with ChatServer(always(words("Caught."))) as elsewhere:
        target = f"{elsewhere.base_url}/chat/completions"
        with serving(always(redirect(target, status))) as (server, model):
            with pytest.raises(ModelError, match=rf"redirect \({status}\), which is never followed"):
                model.respond(asked())
            assert len(server.requests) == 1
        assert elsewhere.requests == []


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.mark.threat("T-RUN-05", control="one_address")
def test_proxies_and_the_variables_of_the_library_are_not_heeded(monkeypatch):
    with ChatServer(always(words("Caught."))) as trap:
        for name in PROXIES:
            monkeypatch.setenv(name, trap.base_url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("OPENAI_BASE_URL", trap.base_url)
        for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
            monkeypatch.setenv(name, "canary-of-the-environment")
        custom = "Authorization: canary-of-the-environment\nX-Custom: canary-of-the-environment"
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", custom)
        with serving(always(words("Saved."))) as (server, model):
            assert model.respond(asked()).text == "Saved."
            (sent,) = server.requests
        assert trap.requests == []
    assert "canary-of-the-environment" not in repr(dict(sent.headers))
    assert sent.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "custom",
    [
        "Host: evil.example",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Content-Type: text/plain",
        "Connection: close",
        "Cookie: x=1",
        "X-Name: \u00e4 \u2603",
        "no colon",
        ": nothing",
        "Authorization: Bearer other",
    ],
)
def test_no_header_of_the_environment_is_sent(monkeypatch, custom):
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", custom)
    with serving(always(words("Saved."))) as (server, model):
        assert model.respond(asked()).text == "Saved."
        (sent,) = server.requests
        assert sent.headers["host"] == server.base_url.split("/")[2]
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["content-type"] == "application/json"
    assert int(sent.headers["content-length"]) == len(sent.raw)
    assert set(sent.headers) == {
        "host", "content-type", "content-length", "accept", "accept-encoding", "user-agent", "authorization",
    }  # fmt: skip


def test_only_these_headers_are_sent():
    cookie = document(
        {"choices": [{"message": {"content": "Saved."}}]}, headers={"set-cookie": "track=1; Path=/"}
    )
    with serving(always(cookie)) as (server, model):
        model.respond(asked())
        model.respond(asked())
    for sent in server.requests:
        assert set(sent.headers) == {
            "host",
            "content-type",
            "content-length",
            "accept",
            "accept-encoding",
            "user-agent",
            "authorization",
        }
        assert sent.headers["accept-encoding"] == "identity"
        assert sent.path == "/v1/chat/completions"


def test_without_a_key_none_is_sent():
    with serving(always(words("Saved.")), key=None) as (server, model):
        model.respond(asked())
    assert "authorization" not in server.requests[0].headers


@pytest.mark.threat("T-RUN-05", control="certificates")
def test_an_untrusted_certificate_ends_it_before_anything_is_sent(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    monkeypatch.setenv("SSL_CERT_DIR", str(CERTIFICATE.parent))
    with serving(always(words("Caught.")), certificate=CERTIFICATE) as (server, model):
        with pytest.raises(ModelError, match=r"certificate of 127\.0\.0\.1:[0-9]+ is not trusted"):
            model.respond(asked())
        assert server.requests == []
        trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
        host, port = "localhost", int(server.base_url.rsplit(":", 1)[1].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as plain:
            trusting.wrap_socket(plain, server_hostname=host).close()  # The server itself is fine.


def test_a_server_without_tls_is_no_https_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            client, _ = listener.accept()
            with client:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.recv(65_536)

        thread = threading.Thread(target=answer)
        thread.start()
        model = OpenAIModel("scripted", base_url=f"https://127.0.0.1:{listener.getsockname()[1]}/v1")
        with pytest.raises(ModelError, match="does not speak TLS as it should"):
            model.respond(asked())
        model.close()
        thread.join()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "no URL"),
        ("127.0.0.1:8080/v1", "no URL"),
        ("ftp://host/v1", "no URL"),
        ("http:///v1", "no URL"),
        ("http://host:99999/v1", "no URL"),
        ("http://[::1/v1", "no URL"),
        ("http://ho st/v1", "no URL"),
        ("http://host/v1\nX: y", "no URL"),
        ("http://user:secret@host/v1", "holds a user or password"),
        ("http://host/v1?key=1", "ends before"),
        ("http://host/v1?", "ends before"),
        ("http://host/v1#", "ends before"),
        ("http://[v1.a]/v1", "no URL"),
        ("http://\u00e4..b/v1", "no URL"),
        ("http://\u0661\u0662\u0667.0.0.1/v1", "no URL"),
        ("http://host/" + "x" * 70_000, "no URL"),
        ("http://host/v1#x", "ends before"),
        ("https://host/v1/chat/completions", "ends before /chat/completions"),
        ("https://host/v1/chat/completions/", "ends before /chat/completions"),
    ],
)
def test_what_is_no_base_url_is_refused_at_once(url, problem):
    with pytest.raises(ConfigInvalid, match=problem) as refused:
        OpenAIModel("scripted", base_url=url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://[::1]:8080/v1/", "https://API.example.com:443/openai/v1"])
def test_base_urls_of_every_kind_are_taken(url):
    OpenAIModel("scripted", base_url=url).close()


@pytest.mark.parametrize(
    "arguments",
    [{"name": ""}, {"name": " x"}, {"name": "a\nb"}, {"name": "x" * 201}, {"protocol": "magic"},
     {"api_key": ""}, {"api_key": "two words"}, {"api_key": "line\nbreak"}, {"api_key": "schlüssel"}],
)  # fmt: skip
def test_what_is_no_name_key_or_protocol_is_refused_at_once(arguments):
    with pytest.raises(ConfigInvalid) as refused:
        OpenAIModel(**{"name": "x", "base_url": "http://127.0.0.1:1/v1", **arguments})
    key = arguments.get("api_key")
    assert not key or key not in str(refused.value)


# -- N4: how much comes back -----------------------------------------------------------------------------


@pytest.mark.threat("T-RUN-05", control="answer_size")
@pytest.mark.parametrize(
    "answer",
    [bomb(words("Saved.")), bomb(failure(400, "no")), endless(), Response(b" " * (MAX_ANSWER_BYTES + 1))],
    ids=["bomb", "bomb as an error", "endless", "a little too long"],
)
def test_no_more_is_read_than_an_answer_may_have(answer):
    with serving(always(answer)) as (_, model):
        tracemalloc.start()
        try:
            with pytest.raises(ModelError, match="more than 4194304 bytes"):
                model.respond(asked())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 6 * MAX_ANSWER_BYTES


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
def test_an_encoding_that_nobody_asked_for_is_not_decoded(encoding):
    odd = Response(words("Saved.").body, headers={"content-encoding": encoding})
    with (
        serving(always(odd)) as (_, model),
        pytest.raises(ModelError, match="an encoding that was not asked for"),
    ):
        model.respond(asked())


def test_one_layer_of_gzip_is_read_as_some_proxies_insist_on_it():
    with serving(always(bomb(words("Saved."), size=1000))) as (_, model):
        assert model.respond(asked()).text == "Saved."


# -- N5, N6: the key, and the server's words -------------------------------------------------------------


HIDDEN = KEY.replace("-", "\\u002d", 1)


@pytest.mark.threat("T-LEAK-09", control="hidden_key")
@pytest.mark.parametrize("name", ["echo", "error", "refusal", "broken", "escaped", "split", "call"])
def test_the_key_is_in_no_error_log_or_reply_even_if_the_server_repeats_it(logged, name):
    answer = {
        "echo": completion({"content": f"Your key is {KEY}."}),
        "error": failure(400, f"bad key {KEY}"),
        "refusal": failure(401, f"Incorrect API key provided: {KEY}"),
        "broken": Response(f"<html>{KEY}".encode()),
        "escaped": Response(f'{{"error": {{"message": "bad key {HIDDEN}"}}}}'.encode(), 400),
        "split": failure(400, f"bad key {KEY[:5]}\u200b{KEY[5:]}"),
        "call": Response(
            tool_calls(tool_call("ls", {"path": "KEY"})).body.replace(
                b"KEY", HIDDEN.replace("\\", "\\\\").encode()
            )
        ),
    }[name]
    with serving(always(answer)) as (server, model):
        try:
            said = repr(model.respond(asked()))
        except ModelError as error:
            said = f"{error!r} {error.__cause__!r} {error.__context__!r}"
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in said
        assert KEY not in repr(model) + repr(vars(model))
    assert KEY not in logged.text
    assert logged.records  # There was something to look through.


@pytest.mark.parametrize("key", ["x", "ollama", "EMPTY", "sk-no-key-required"])
def test_a_word_that_stands_in_for_a_key_is_left_in_answers(key):
    with serving(always(words(f"We run x, EMPTY and {key} models.")), key=key) as (server, model):
        assert model.respond(asked()).text == f"We run x, EMPTY and {key} models."
        assert server.requests[0].headers["authorization"] == f"Bearer {key}"


def test_the_words_of_the_fact_are_in_no_log(logged):
    with serving(always(words("Saved."))) as (_, model):
        model.respond(asked())
    assert "dark mode" not in logged.text


def test_a_header_that_is_no_text_is_not_read():
    odd = b"HTTP/1.1 503 x\r\nretry-after: \xe9\r\ncontent-length: 2\r\n\r\n{}"
    with serving(always(raw(odd))) as (_, model), pytest.raises(ModelError, match="503"):
        model.respond(asked())


def test_closing_ends_connections_and_threads():
    with ChatServer(always(words("Saved."))) as server:
        model = OpenAIModel("scripted", base_url=server.base_url)
        model.respond(asked())
        model.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "muniment-model"]
        with pytest.raises(ModelError, match="closed"):
            model.respond(asked())
        model.close()
