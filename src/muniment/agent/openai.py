"""The adapter to servers with OpenAI's Chat Completions API; the only module that imports `openai`.

This module treats the server and its model as hostile:

N1 No request is sent, and no wait continues, after the deadline or the cancellation of a run. The waiting
   thread measures the time, and the socket is closed. This includes retries and fallbacks.
N2 Texts are only sent to `base_url`. Redirects are not followed. Proxies, and `OPENAI_*` and `SSL_CERT_*` of
   the environment, are ignored. TLS certificates are verified with the certificate store of the system.
N3 Only the headers of an allow-list are sent: none that the library or the environment adds, and no cookies.
N4 A response is read up to `MAX_ANSWER_BYTES`, counted after decompression.
N5 The key is only sent as the bearer token. If a reply or an error contains a secret key, the key is removed.
N6 A server's own words appear only in errors and notes, shortened to one printable line.
N7 After an invalid reply, `auto` falls back by one step in the same run: from `tools` to `json`, then to
   `decide`.

The form of requests that a server supports is found by trying the forms in `LADDERS` in order. The result is
cached as long as the object exists, for its base URL and its model.

Not covered: how the server uses the data. If an application logs `httpcore2` at DEBUG, its log contains the
headers of the server, with any content. The system is responsible for name resolution and for TLS in general,
which has other variables (`OPENSSL_CONF`). Attacked by `tests/units/agent/test_openai*.py`, over real
sockets.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from muniment import events
from muniment.agent.chat import (
    DECISION_TOKENS,
    Document,
    Form,
    add_actions,
    apply_update,
    build_body,
    create_decision_query,
    create_first_reply,
    create_job_message,
    create_later_reply,
    create_update_query,
    decide_if_sure,
    find_near_entry,
    limit_tokens,
    list_tools,
    parse_decision,
)
from muniment.agent.complaint import Complaint, parse_complaint
from muniment.agent.filing import RuleWriter
from muniment.agent.model import (
    Brief,
    ContextOverflow,
    ModelError,
    ModelRequest,
    Reply,
    ScopeBrief,
    SystemMessage,
    UserMessage,
)
from muniment.agent.model_settings import ProtocolName, check_model_name, check_protocol
from muniment.agent.response import FirstChoice, create_reply, parse_response
from muniment.cancelling import Cancel
from muniment.errors import ConfigInvalid, DeadlineExceeded, printable
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Scope
from muniment.names import ContextMode, __version__
from muniment.types import Usage

if TYPE_CHECKING:
    import httpx2
    import openai


# -- address -----------------------------------------------------------------------------------------
#
# The address of a model's server, and its key: checked before anything is sent.

MAX_URL_CHARS: Final = 2_000
"""Maximum characters of a base URL."""


def check_base_url(base_url: str) -> str:
    """Return `base_url` without a slash at its end.

    Raises:
        ConfigInvalid: `base_url` is not an `http` or `https` URL, is the address of a single call, or
            contains a password, a query or a fragment.

    Cost: 0.1 s the first time, to load an HTTP library.
    """
    if "@" in base_url:
        raise ConfigInvalid(
            "invalid base URL: it contains a user or password; pass a key with --api-key-file"
        )
    problem = _find_url_problem(base_url)
    if problem is not None:
        raise ConfigInvalid(f"invalid base URL {printable(base_url)!r}: {problem}")
    return base_url.rstrip("/")


def check_key(api_key: str | None) -> str | None:
    """Return `api_key` if it can be sent in a header; None stays None.

    Raises:
        ConfigInvalid: the key is invalid. The message does not contain the key.
    """
    if api_key is not None and not (api_key and all("!" <= char <= "~" for char in api_key)):
        raise ConfigInvalid("invalid API key: use one word of printable ASCII characters")
    return api_key


def _find_url_problem(base_url: str) -> str | None:
    import httpx2

    not_a_url = "use http:// or https://, such as http://127.0.0.1:8080/v1"
    if len(base_url) > MAX_URL_CHARS or not base_url.isprintable() or " " in base_url:
        return not_a_url
    if "?" in base_url or "#" in base_url:
        return "it has a query or fragment; remove everything from ? or # on"
    try:
        host, _ = urlsplit(base_url).hostname, urlsplit(base_url).port
        url = httpx2.URL(base_url)
    except (ValueError, httpx2.InvalidURL):
        return not_a_url
    if url.scheme not in {"http", "https"} or not host:
        return not_a_url
    if url.path.rstrip("/").endswith("/chat/completions"):
        return "it is the address of one call; remove /chat/completions"
    return None


# -- loop thread -------------------------------------------------------------------------------------
#
# A private asyncio loop in its own thread; other threads give work to it and wait.
#
# L1 `run` returns or raises by the deadline at the latest, because the waiting thread measures the time.
# L2 Work that exceeds its time, or whose caller has cancelled, is cancelled on the loop, which closes its
#    sockets.
# L3 The process can end even if the thread still runs or a name resolution hangs.
#
# Standard library only; attacked by `tests/units/agent/test_loop_thread.py`.

T = TypeVar("T")

CLOSE_SECONDS: Final = 1.0
"""Seconds that `close` waits for the work to end; the thread ends with the process in any case."""


class LoopThread:
    """A private event loop in a thread, which starts with the first work.

    Several threads may share one object; close it at the end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], deadline: Deadline) -> T:
        """Run `work` on the loop, and return its result or raise its exception.

        Args:
            work: called in the thread of the loop's caller; the coroutine that it returns runs on the loop.
            deadline: when it passes or is cancelled, the wait and the work end.

        Raises:
            Cancelled, DeadlineExceeded: as `Deadline.check`.
            ModelError: the object is closed.
        """
        deadline.check()
        with Cancel() as done:  # The callback below may set it after this block has closed it.
            future = self._submit(work)
            future.add_done_callback(lambda _: done.set())
            try:
                deadline.wait(done.fileno(), select.POLLIN)
            except BaseException:
                future.cancel()
                raise
            try:
                return future.result()
            except CancelledError:
                raise _create_closed_error() from None

    def close(self, cleanup: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `cleanup` on the loop, cancel the remaining work, and end the thread.

        If the thread was never started, do nothing.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop, self._thread = None, None
            self._is_closed = True
        if loop is None or thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(cleanup(), loop)
        with suppress(TimeoutError):
            closing.result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)

    def _submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:  # Under the lock, so that `close` cannot close the loop in between.
            if self._is_closed:
                raise _create_closed_error()
            if self._loop is None:
                self._loop = _ResolvingLoop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="muniment-model", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work(), self._loop)


def _create_closed_error() -> ModelError:
    return ModelError("the model was closed in the meantime")


class _ResolvingLoop(asyncio.SelectorEventLoop):
    """An event loop that resolves names in threads for which the process does not wait at exit.

    The interpreter waits at exit for the threads of the default executor, even if a resolver hangs.
    """

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        found: Future[Any] = Future()
        # Otherwise, cancelling the wait would cancel this future, and `resolve` would fail.
        found.set_running_or_notify_cancel()

        def resolve() -> None:
            try:
                found.set_result(socket.getaddrinfo(*args, **kwargs))
            except (OSError, UnicodeError) as error:
                found.set_exception(error)

        threading.Thread(target=resolve, name="muniment-resolve", daemon=True).start()
        return await asyncio.wrap_future(found, loop=self)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run `loop` until it is stopped; then cancel the remaining tasks and wait for their end."""
    asyncio.set_event_loop(loop)
    loop.run_forever()
    running = asyncio.all_tasks(loop)
    for task in running:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


# -- openai ------------------------------------------------------------------------------------------

LADDERS: Final[dict[ProtocolName, tuple[Form, ...]]] = {
    "auto": ("tools", "json", "text"),
    "tools": ("tools",),
    "json": ("json",),
    "text": ("text",),
    "decide": ("json", "text"),
}
"""For each protocol, the forms to try in order.

If the user chose a form, only this form is tried. There is one exception:
a decision may also be requested without a schema, because this cannot do more harm.
"""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of a response: the largest fact with every character escaped twice, and as much thinking."""

CONNECT_SECONDS: Final = 10.0
"""Seconds to connect.

All other steps may take until the deadline: the first byte comes only when the model has answered.
"""

PAUSES: Final = (0.5, 1.0)
"""Seconds to wait before the second and the third attempt of a request."""

MIN_SECRET_CHARS: Final = 16
"""Minimum characters of a key that counts as a secret; it must also contain a digit.

Other keys are ordinary words such as `ollama`, which servers without keys require. A reply may contain such a
word for other reasons.
"""

_Limit = Literal["max_tokens", "max_completion_tokens"]
_NEXT_LIMIT: Final[dict[_Limit, _Limit | None]] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": None,
}
_ENCODINGS: Final = frozenset({"", "identity", "gzip"})


@dataclass(frozen=True, slots=True)
class _ServerSettings:
    """The settings that work with a server.

    Attributes:
        step: the index of the form in the forms to try.
        limit: the name of the token limit in a request; None: send no limit.
    """

    step: int = 0
    limit: _Limit | None = "max_tokens"


class OpenAIModel:
    """A language model at a base URL, as a `Model`. Threads may share one object; close it at the end.

    Args:
        name: the name that the server uses for the model, see `check_model_name`.
        base_url: URL such as `http://127.0.0.1:8080/v1`; `/chat/completions` is appended.
        api_key: the key, in printable ASCII characters; None: no key is sent.
        protocol: one of `PROTOCOLS`; `auto`: use the first form that the server accepts.

    Raises:
        ConfigInvalid: an argument is invalid.

    Cost: 0.1 s to load an HTTP library. The first request connects, and loads `openai` (0.5 s).

    Example: `muniment.open(model=OpenAIModel("qwen3-4b", base_url="http://127.0.0.1:8080/v1"))`
    """

    def __init__(
        self, name: str, *, base_url: str, api_key: str | None = None, protocol: str = "auto"
    ) -> None:
        self.name = check_model_name(name)
        self.protocol = check_protocol(protocol)
        self._endpoint = _Endpoint(check_base_url(base_url), check_key(api_key))
        self._loop = LoopThread()
        self._lock = threading.Lock()
        self._settings: dict[tuple[Form, ...], _ServerSettings] = {}

    def respond(self, request: ModelRequest) -> Reply:
        """Return the reply for one turn, see `Model.respond`.

        Cost: one request to the server, or more after errors. After a decision, later turns need none.
        """
        deadline = Deadline(time.monotonic() + request.seconds_left, request.cancel)
        if self._uses_decision(request):
            return self._reply_by_decision(request, deadline)
        answer, form = self._request_choice(request, deadline)
        if request.schema is not None:
            return self._redact_key(Reply(answer.text, usage=answer.usage))
        return self._redact_key(create_reply(answer, request, form))

    def send_once(self, request: ModelRequest, form: Form, deadline: Deadline) -> FirstChoice | Complaint:
        """Send one request, without token limit, retry or fallback. Raises as `Deadline.check`.

        Args:
            request: the request.
            form: the form in which it is sent.
            deadline: ends the wait.

        Returns:
            The completion, or the problem that the server reported.
        """
        return self._post(self._build_document(request, form), deadline)

    def close(self) -> None:
        """Close the connections, and end the thread of the loop; a request in progress fails."""
        self._loop.close(self._endpoint.close)

    def _reply_by_decision(self, request: ModelRequest, deadline: Deadline) -> Reply:
        later = create_later_reply(request)
        if later is not None:
            return later
        if not request.tools or not request.brief.writable:
            return Reply("Not saved: no writable scope, or no turn left for a write.")
        # If the protocol is not `decide`, the model has failed to act: let it decide, even if the rules are
        # sure.
        decisions = decide_if_sure(request.brief) if self.protocol == "decide" else ()
        decided_by, usage = RuleWriter.name if decisions else "", Usage()
        if not decisions:
            answer, _ = self._request_choice(request, deadline)
            decisions, usage = parse_decision(answer.text, request.brief), answer.usage
        if (entry := find_near_entry(decisions, request.brief)) is not None:
            answer, _ = self._request_choice(create_update_query(request, entry), deadline)
            decisions, decided_by = (apply_update(decisions[0], answer.text, entry),), ""
            usage = usage.add(answer.usage)
        reply = create_first_reply(decisions, request) if decisions else Reply()
        return self._redact_key(replace(reply, usage=usage, decided_by=decided_by))

    def _redact_key(self, reply: Reply) -> Reply:
        """Return `reply` without the key, if the key is a secret and the reply contains it."""
        endpoint = self._endpoint
        calls = tuple(
            replace(
                call,
                id=endpoint.redact_key(call.id),
                tool=endpoint.redact_key(call.tool),
                arguments=arguments,
            )
            for call in reply.calls
            for arguments in [json.loads(endpoint.redact_key(json.dumps(call.arguments)))]
        )
        return replace(reply, text=endpoint.redact_key(reply.text), calls=calls)

    def _request_choice(self, request: ModelRequest, deadline: Deadline) -> tuple[FirstChoice, Form]:
        """Return the first valid completion, and the form of the request that led to it.

        If the server reports a problem, the request is retried, or sent with other settings, as far as this
        may help.
        """
        ladder = self._select_forms(request)
        with self._lock:
            settings = self._settings.get(ladder, _ServerSettings())
        is_permanent = True
        while True:
            form = ladder[settings.step]
            document = self._build_document(request, form)
            if settings.limit is not None:
                decides = self._uses_decision(request)
                document[settings.limit] = DECISION_TOKENS if decides else limit_tokens(request.brief.fact)
            outcome = self._post_with_retry(document, deadline)
            if isinstance(outcome, FirstChoice):
                if is_permanent:
                    self._cache_settings(ladder, settings)
                return outcome, form
            is_permanent &= outcome.kind not in {
                "failed",
                "overflow",
            }  # Problems of these kinds are temporary, or concern only this request.
            settings = _adapt_settings(settings, outcome, len(ladder))

    def _select_forms(self, request: ModelRequest) -> tuple[Form, ...]:
        """Return the forms to try for a request, in order.

        A query with a schema uses the forms of the protocol `decide`.
        """
        is_query = request.schema is not None and self.protocol != "text"
        if is_query or self._uses_decision(request):
            return LADDERS["decide"]
        return LADDERS[self.protocol][1:] if self._count_fallbacks(request) else LADDERS[self.protocol]

    def _uses_decision(self, request: ModelRequest) -> bool:
        """Return whether the model only decides: it was configured so, or its run fell back to that (N7)."""
        return request.schema is None and (self.protocol == "decide" or self._count_fallbacks(request) > 1)

    def _count_fallbacks(self, request: ModelRequest) -> int:
        """Return how many reminders the run has sent.

        With `auto`, this is the number of steps to fall back.
        """
        if self.protocol != "auto" or request.schema is not None:
            return 0
        return sum(isinstance(message, UserMessage) for message in request.messages) - 1

    def _cache_settings(self, ladder: tuple[Form, ...], settings: _ServerSettings) -> None:
        with self._lock:
            is_new = settings != self._settings.get(ladder, _ServerSettings())
            self._settings[ladder] = settings
        if is_new:
            events.emit("model_adapted", model=self.name, form=ladder[settings.step], limit=settings.limit)

    def _build_document(self, request: ModelRequest, form: Form) -> Document:
        if self._uses_decision(request):
            request = create_decision_query(request)
        elif request.schema is None and form != "tools":
            request = add_actions(request)
        return build_body(request, form, self.name)

    def _post_with_retry(self, document: Document, deadline: Deadline) -> FirstChoice | Complaint:
        """Send `document`, and return the response; after a temporary problem, retry after a pause."""
        for pause in PAUSES:
            outcome = self._post(document, deadline)
            if isinstance(outcome, FirstChoice) or outcome.kind not in {"busy", "failed"}:
                return outcome
            seconds = max(pause, outcome.wait)
            if time.monotonic() + seconds >= deadline.expires_at:
                seconds_left = deadline.expires_at - time.monotonic()
                problem = (
                    f"no retry: it would start in {seconds:.0f} s, but only {seconds_left:.0f} s are left"
                )
                return Complaint("final", f"{outcome.message}; {problem}")
            self._loop.run(partial(asyncio.sleep, seconds), deadline)
        return self._post(document, deadline)

    def _post(self, document: Document, deadline: Deadline) -> FirstChoice | Complaint:
        sent = self._loop.run(lambda: self._endpoint.post(document), deadline)
        # Parse in this thread: megabytes take seconds, and would block the loop.
        outcome = sent if isinstance(sent, Complaint) else self._endpoint.parse_response(sent)
        if isinstance(outcome, Complaint):
            return replace(outcome, message=self._endpoint.redact_key(outcome.message))
        return outcome


def _adapt_settings(settings: _ServerSettings, complaint: Complaint, steps: int) -> _ServerSettings:
    """Return the settings for the next request, after the server has reported a problem.

    Args:
        settings: the settings of the failed request.
        complaint: the reported problem.
        steps: the number of forms that may be tried.

    Raises:
        ContextOverflow: the request needs fewer messages.
        ModelError: no other request can succeed.
    """
    match complaint.kind:
        case "overflow" if settings.limit is None:
            raise ContextOverflow(f"the model's context is too small: {complaint.message}")
        case "overflow":  # Some servers count the tokens that a response may have.
            return replace(settings, limit=None)
        case "limit" if settings.limit is not None:
            return replace(settings, limit=_NEXT_LIMIT[settings.limit])
        case "limit" | "form" | "failed" if settings.step + 1 < steps:
            return replace(settings, step=settings.step + 1)
        case _:
            raise ModelError(complaint.message)


class _Endpoint:
    """Sends requests to one base URL with one key. The `async` methods run on the loop."""

    def __init__(self, base_url: str, key: str | None) -> None:
        self._base_url, self._key = base_url, key
        self._client: openai.AsyncOpenAI | None = None

    async def post(self, document: Document) -> httpx2.Response | Complaint:
        """Send one request; return its response with the complete body, or the problem that prevented it."""
        import httpx2
        import openai

        if self._client is None:
            self._client = _create_client(self._base_url, self._key)
        host = urlsplit(self._base_url).netloc
        try:
            return await self._client.post("/chat/completions", cast_to=httpx2.Response, body=document)
        except openai.APIStatusError as error:
            return error.response
        except openai.APIConnectionError as error:
            return _create_connection_complaint(error, host)
        except ModelError as problem:
            return Complaint("final", f"{host} sent a response {problem}")
        except Exception as error:  # noqa: BLE001  foreign code and text: the type is enough
            raise ModelError(f"a request to {host} failed with {type(error).__name__}") from None

    def parse_response(self, response: httpx2.Response) -> FirstChoice | Complaint:
        """Return the completion in a response, or the problem that it reports.

        Only status and body are used.
        """
        if response.is_success:
            return parse_response(response.content)
        retry_after = response.headers.get("retry-after", "")
        return parse_complaint(
            response.status_code, response.content, retry_after, has_key=self._key is not None
        )

    def redact_key(self, text: str) -> str:
        """Return `text` with a secret key replaced by `[key]`."""
        key = self._key
        if key is None or len(key) < MIN_SECRET_CHARS or not any(char.isdigit() for char in key):
            return text
        return text.replace(key, "[key]").replace(json.dumps(key)[1:-1], "[key]")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _create_connection_complaint(error: BaseException, host: str) -> Complaint:
    """Return the problem that prevented a response.

    The message is written by this program, because the message of a library may quote any text.

    Args:
        error: the error of the library.
        host: the host of the base URL.
    """
    import httpx2

    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
        return Complaint(
            "final",
            f"this system does not trust the certificate of {host}; check the base URL, or install its CA",
        )
    if any(isinstance(each, httpx2.ConnectError | httpx2.ConnectTimeout) for each in causes):
        if any(isinstance(each, ssl.SSLError) for each in causes):
            return Complaint("final", f"{host} does not support TLS correctly; check the base URL")
        return Complaint("busy", f"no connection to {host}; check that the server is running there")
    return Complaint("busy", f"the connection to {host} ended before the response was complete")


def _create_client(base_url: str, key: str | None) -> openai.AsyncOpenAI:
    """Return the client of the library, with a restricted transport and without automatic features."""
    import httpx2
    import openai

    address = httpx2.URL(f"{base_url}/chat/completions")
    headers = {
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": f"muniment/{__version__}",
    }
    if key is not None:
        headers["authorization"] = f"Bearer {key}"

    class Guarded(httpx2.AsyncBaseTransport):
        """A transport with the restrictions N2, N3 and N4 of the module docstring.

        It sends only allowed headers, only to the base URL, and reads only responses of limited size.
        """

        def __init__(self) -> None:
            self._inner = httpx2.AsyncHTTPTransport(trust_env=False)

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.url != address:
                raise RuntimeError(f"the text must not be sent to {request.url.host}")
            sent = httpx2.Request("POST", address, headers=headers, content=await request.aread())
            sent.extensions = request.extensions
            response = await self._inner.handle_async_request(sent)
            try:
                content = await _read_body(response)
            finally:
                await response.aclose()
            retry_after = response.headers.get("retry-after", "")
            safe_headers = {"retry-after": retry_after} if retry_after.isascii() else {}
            return httpx2.Response(
                response.status_code, headers=safe_headers, content=content, request=request
            )

        async def aclose(self) -> None:
            await self._inner.aclose()

    class BareClient(openai.AsyncOpenAI):
        """A client that does not add headers from the environment; some of them cannot be sent."""

        @property
        def default_headers(self) -> dict[str, str | openai.Omit]:
            return {}

    return BareClient(
        api_key=key or "none",
        base_url=base_url,
        max_retries=0,
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        http_client=httpx2.AsyncClient(transport=Guarded(), trust_env=False),
    )


async def _read_body(response: httpx2.Response) -> bytes:
    """Return the decompressed body of a response.

    Raises:
        ModelError: the body is longer than `MAX_ANSWER_BYTES`, or has an encoding that was not requested.
    """
    if response.headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
        raise ModelError("in an encoding that was not requested")
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if max(len(content), response.num_bytes_downloaded) > MAX_ANSWER_BYTES:
            raise ModelError(f"of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


# -- probe -------------------------------------------------------------------------------------------
#
# The capabilities of a model's server, tested with one small request in each form.
#
# These requests are created by the same code as those of runs. They contain no data of the memory.

_BRIEF: Final = Brief(
    "The user prefers dark mode", (ScopeBrief(Scope("user"), writable=True),), ContextMode.WORKSPACE
)
_SYSTEM: Final = SystemMessage("You list files. Act, do not explain.")
_TASK: Final = UserMessage('List the scopes: use `ls` with the path "user".')

Verdict = Literal["yes", "ignored", "slow", "no"]
"""The result of a test.

`yes`: the model acted as requested. `ignored`: the server responded, but the model did not act. `slow`: no
response in time, so the result is unknown. `no`: the server rejected the request.
"""


@dataclass(frozen=True, slots=True)
class FormFinding:
    """The result of testing one form of requests.

    Attributes:
        form: the form.
        verdict: the result.
        problem: the problem on one line; empty if the form works.
        seconds: seconds from the request to the response.
        tokens_per_second: speed of the response, including the wait for it; None: the server did not count
            tokens.
    """

    form: Form
    verdict: Verdict
    problem: str
    seconds: float
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """The tested capabilities of a server.

    Attributes:
        findings: the result for each form that the protocol allows. The test stops after a problem that would
            be the same in every form.
        will_use: the form that a run will use; None: no form works.
        better_form: a form in which the model acts, if it ignores requests in the form that a run will use.
    """

    findings: tuple[FormFinding, ...]
    will_use: Form | None
    better_form: Form | None

    @property
    def is_working(self) -> bool:
        """Return whether the model acts as requested in the form that a run will use."""
        return any(each.form == self.will_use and each.verdict == "yes" for each in self.findings)


def probe_server(model: OpenAIModel, seconds: float, cancel: Cancel | None = None) -> Probe:
    """Test the forms of requests that `model` may use.

    Args:
        model: the model; the caller closes it.
        seconds: time limit for each request.
        cancel: cancels the test if it becomes set.

    Raises:
        Cancelled: the caller cancelled.

    Cost: at most three requests of a few hundred tokens; for the protocol `decide` at most two.
    """
    findings: list[FormFinding] = []
    for form in LADDERS[model.protocol]:
        started = time.monotonic()
        with events.track_progress("testing the model", detail=f"tools as {form}"):
            verdict, problem, is_final, tokens = _try_form(model, form, Deadline(started + seconds, cancel))
        elapsed = time.monotonic() - started
        findings.append(FormFinding(form, verdict, problem, elapsed, tokens / elapsed if tokens else None))
        if is_final:
            break
    return Probe(
        tuple(findings),
        will_use := next((each.form for each in findings if each.verdict != "no"), None),
        _find_better_form(findings, will_use),
    )


def _find_better_form(findings: list[FormFinding], will_use: Form | None) -> Form | None:
    acts = [each.form for each in findings if each.verdict == "yes"]
    return None if not acts or will_use in acts else acts[0]


def _try_form(model: OpenAIModel, form: Form, deadline: Deadline) -> tuple[Verdict, str, bool, int]:
    """Test one form of requests.

    Returns:
        The result, the problem, whether other forms would fail for the same reason, and the tokens of the
            response.
    """
    decides = model.protocol == "decide"
    request = _create_decision_request() if decides else _create_task_request()
    try:
        outcome = model.send_once(request, form, deadline)
    except DeadlineExceeded:
        return "slow", "no response in time; a model that is being loaded may need a second attempt", False, 0
    if isinstance(outcome, Complaint):
        return "no", outcome.message, outcome.kind in {"final", "busy"}, 0
    tokens = outcome.usage.output_tokens
    if _has_acted(outcome, request, form, decides=decides):
        return "yes", "", False, tokens
    return "ignored", "the server accepts it, but the model did not act as requested", False, tokens


def _has_acted(answer: FirstChoice, request: ModelRequest, form: Form, *, decides: bool) -> bool:
    if decides:
        return bool(parse_decision(answer.text, request.brief))
    return [call.tool for call in create_reply(answer, request, form).calls] == ["ls"]


def _create_task_request() -> ModelRequest:
    tools = tuple(tool for tool in list_tools(ContextMode.WORKSPACE) if tool.name == "ls")
    return ModelRequest(_BRIEF, (_SYSTEM, _TASK), tools, 0.0)


def _create_decision_request() -> ModelRequest:
    return ModelRequest(_BRIEF, (_SYSTEM, create_job_message(_BRIEF, (), "probe")), (), 0.0)
