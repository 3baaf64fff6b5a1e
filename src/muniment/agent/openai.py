"""The adapter to any server that speaks OpenAI's Chat Completions, the only importer of `openai`.

The server and the model behind it are hostile as far as this module is concerned:

N1 Nothing is asked, and nothing waited for, past the deadline or cancellation of a run: the waiting thread
   keeps the time, and the socket is closed. That holds for repeats and steps down as well.
N2 The text goes to `base_url` and nowhere else. Redirects are not followed; proxies, `OPENAI_*` and
   `SSL_CERT_*` of the environment are not heeded; certificates are verified against the system's store.
N3 What is sent is an allow-list of headers: none that the library or the environment adds, no cookies.
N4 What comes back is read up to `MAX_ANSWER_BYTES`, counted after decompression.
N5 The key is sent as the bearer token and nowhere else; replies and errors that repeat a secret one lose it.
N6 A server's own words appear in errors and notes only, shortened to one printable line.
N7 `auto` goes down from `tools` to `json` to `decide` within a run, a step for each answer that was no use.

How a server can be driven is found by going down `LADDERS` where it refuses, and kept for the life of the
object, that is for one base URL and one model.

What does not hold: nothing here binds what the server does with what it was sent. An application that has
`httpcore2` log at DEBUG gets the server's headers into its log, whatever the server puts there. How names
are resolved, and TLS at large, is the system's affair; it has variables of its own (`OPENSSL_CONF`).
Attacked by `tests/units/agent/test_openai*.py`, over real sockets.
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
from muniment.agent.answer import FirstChoice, as_reply, read_answer
from muniment.agent.chat import (
    DECISION_TOKENS,
    Document,
    Form,
    answer_tokens,
    body,
    decision_in,
    first_reply,
    job_message,
    later_reply,
    near,
    offered_tools,
    question,
    sure,
    update_question,
    updated,
    with_actions,
)
from muniment.agent.complaint import Complaint, complaint_of
from muniment.agent.filing import RuleWriter
from muniment.agent.model import (
    Brief,
    ContextOverflow,
    ModelError,
    ModelRequest,
    ProtocolName,
    Reply,
    ScopeBrief,
    SystemMessage,
    UserMessage,
    check_model_name,
    check_protocol,
)
from muniment.cancelling import Cancel
from muniment.errors import ConfigInvalid, DeadlineExceeded, printable
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Scope
from muniment.names import ContextMode, __version__
from muniment.types import Usage

if TYPE_CHECKING:
    import httpx2
    import openai


# -- address -----------------------------------------------------------------------------------------
#
# Where a model's server is, and its key: checked before anything is sent.

MAX_URL_CHARS: Final = 2_000
"""Characters of a base URL."""


def check_base_url(base_url: str) -> str:
    """`base_url` without a final slash.

    Raises:
        ConfigInvalid: it is no `http` or `https` URL that ends with the path of an API, or holds a password.

    Cost: 0.1 s the first time, to load an HTTP library.
    """
    if "@" in base_url:
        raise ConfigInvalid("the base URL holds a user or password; give a key with --api-key-file")
    problem = _problem_of(base_url)
    if problem is not None:
        raise ConfigInvalid(f"the base URL {printable(base_url)!r} {problem}")
    return base_url.rstrip("/")


def check_key(api_key: str | None) -> str | None:
    """`api_key`, if it can stand in a header; None: there is none.

    Raises:
        ConfigInvalid: it cannot. The message does not repeat it.
    """
    if api_key is not None and not (api_key and all("!" <= char <= "~" for char in api_key)):
        raise ConfigInvalid("the API key is not one word of printable ASCII characters")
    return api_key


def _problem_of(base_url: str) -> str | None:
    import httpx2

    no_url = "is no URL; one begins with http:// or https://, such as http://127.0.0.1:8080/v1"
    if len(base_url) > MAX_URL_CHARS or not base_url.isprintable() or " " in base_url:
        return no_url
    if "?" in base_url or "#" in base_url:
        return "has more than a path; it ends before ? and #"
    try:
        host, _ = urlsplit(base_url).hostname, urlsplit(base_url).port
        url = httpx2.URL(base_url)
    except (ValueError, httpx2.InvalidURL):
        return no_url
    if url.scheme not in {"http", "https"} or not host:
        return no_url
    if url.path.rstrip("/").endswith("/chat/completions"):
        return "names one call; it ends before /chat/completions"
    return None


# -- loop thread -------------------------------------------------------------------------------------
#
# One private asyncio loop in a thread of its own, driven from threads that wait for it.
#
# L1 `run` returns, or raises, by the deadline at the latest: the waiting thread keeps the time, not the
# work. L2 Work that ran out of time or was cancelled is cancelled on the loop, which closes its sockets. L3
# Neither the thread nor a name resolution that hangs keeps the process from ending.
#
# Standard library only; attacked by `tests/units/agent/test_loop_thread.py`.

T = TypeVar("T")

CLOSE_SECONDS: Final = 1.0
"""Seconds that `close` waits for the work to end; the thread ends with the process in any case."""


class LoopThread:
    """Starts with its first work. Threads may share one; close it when done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], patience: Patience) -> T:
        """What `work` returns or raises.

        Args:
            work: called here, run on the loop.
            patience: ends the wait and the work.

        Raises:
            Cancelled, DeadlineExceeded: as `Patience.check`.
            ModelError: the thread was closed before or meanwhile.
        """
        patience.check()
        with Cancel() as done:  # A latch that another thread may set after this one has closed it.
            future = self._begin(work)
            future.add_done_callback(lambda _: done.set())
            try:
                patience.wait(done.fileno(), select.POLLIN)
            except BaseException:
                future.cancel()
                raise
            try:
                return future.result()
            except CancelledError:
                raise _closed() from None

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `last`, cancel what is still running, and end the thread. Without a thread nothing is done."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop, self._thread = None, None
            self._is_closed = True
        if loop is None or thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(last(), loop)
        with suppress(TimeoutError):
            closing.result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:  # So that the loop cannot be closed between here and there.
            if self._is_closed:
                raise _closed()
            if self._loop is None:
                self._loop = _ResolvingLoop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="muniment-model", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work(), self._loop)


def _closed() -> ModelError:
    return ModelError("the model was closed meanwhile")


class _ResolvingLoop(asyncio.SelectorEventLoop):
    """A loop that resolves names in threads that nobody waits for at exit (L3).

    The default executor's threads are joined when the interpreter ends, however long a resolver hangs.
    """

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        found: Future[Any] = Future()
        found.set_running_or_notify_cancel()  # Else a cancelled wait would cancel it, and a result raise.

        def resolve() -> None:
            try:
                found.set_result(socket.getaddrinfo(*args, **kwargs))
            except (OSError, UnicodeError) as error:
                found.set_exception(error)

        threading.Thread(target=resolve, name="muniment-resolve", daemon=True).start()
        return await asyncio.wrap_future(found, loop=self)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run `loop` until it is stopped, then let what still runs end as cancelled."""
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
"""Forms to try in order. A form that was asked for by name is the only one, save that a decision may be
asked for without a constraint: it can do no more harm."""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Bytes of an answer: the largest fact escaped twice, and as much thought."""

CONNECT_SECONDS: Final = 10.0
"""Seconds to connect in. All else may take until the deadline: a first byte takes as long as the model."""

PAUSES: Final = (0.5, 1.0)
"""Seconds before the second and third try of what may succeed unchanged."""

MIN_SECRET_CHARS: Final = 16
"""Characters from which on a key with a digit is taken for a secret. Others are words such as `ollama`, which
servers without keys want to be given, and which an answer may hold in its own right."""

_Limit = Literal["max_tokens", "max_completion_tokens"]
_NEXT_LIMIT: Final[dict[_Limit, _Limit | None]] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": None,
}
_ENCODINGS: Final = frozenset({"", "identity", "gzip"})


@dataclass(frozen=True, slots=True)
class _Habits:
    """How a server is asked: the step of its ladder, and how it is told the limit of tokens."""

    step: int = 0
    limit: _Limit | None = "max_tokens"


class OpenAIModel:
    """A language model behind a base URL, as a `Model`. Threads may share one; close it when done.

    Args:
        name: the server's name for the model, see `check_model_name`.
        base_url: such as `http://127.0.0.1:8080/v1`; `/chat/completions` is appended.
        api_key: printable ASCII; None: nothing is sent.
        protocol: one of `PROTOCOLS`; `auto`: the first form of `LADDERS` that the server takes.

    Raises:
        ConfigInvalid: an argument is not as said.

    Cost: 0.1 s to load an HTTP library. The first request connects, and loads `openai` (0.5 s).

    Example:
        `muniment.open(model=OpenAIModel("qwen3-4b", base_url="http://127.0.0.1:8080/v1"))`
    """

    def __init__(
        self, name: str, *, base_url: str, api_key: str | None = None, protocol: str = "auto"
    ) -> None:
        self.name = check_model_name(name)
        self.protocol = check_protocol(protocol)
        self._endpoint = _Endpoint(check_base_url(base_url), check_key(api_key))
        self._loop = LoopThread()
        self._lock = threading.Lock()
        self._habits: dict[tuple[Form, ...], _Habits] = {}

    def respond(self, request: ModelRequest) -> Reply:
        """As `Model.respond`. Cost: one request to the server; a decision that was made costs none."""
        patience = Patience(time.monotonic() + request.seconds_left, request.cancel)
        if self._decides(request):
            return self._decide(request, patience)
        answer, form = self._answer(request, patience)
        if request.schema is not None:
            return self._without_key(Reply(answer.text, usage=answer.usage))
        return self._without_key(as_reply(answer, request, form))

    def attempt(self, request: ModelRequest, form: Form, patience: Patience) -> FirstChoice | Complaint:
        """Ask once in `form`: no limit of tokens, no repeat, no step down. Raises as `Patience.check`."""
        return self._post(self._document(request, form), patience)

    def close(self) -> None:
        """Close connections and end the thread; a request that is under way fails."""
        self._loop.close(self._endpoint.close)

    def _decide(self, request: ModelRequest, patience: Patience) -> Reply:
        later = later_reply(request)
        if later is not None:
            return later
        if not request.tools or not request.brief.writable:
            return Reply("Not saved: there is nowhere to write, or no turn left to write in.")
        # Where the model was not chosen to decide, but failed to act, it is to be tried.
        decisions = sure(request.brief) if self.protocol == "decide" else ()
        decided_by, usage = RuleWriter.name if decisions else "", Usage()
        if not decisions:
            answer, _ = self._answer(request, patience)
            decisions, usage = decision_in(answer.text, request.brief), answer.usage
        if (entry := near(decisions, request.brief)) is not None:
            answer, _ = self._answer(update_question(request, entry), patience)
            decisions, decided_by = (updated(decisions[0], answer.text, entry),), ""
            usage = usage.plus(answer.usage)
        reply = first_reply(decisions, request) if decisions else Reply()
        return self._without_key(replace(reply, usage=usage, decided_by=decided_by))

    def _without_key(self, reply: Reply) -> Reply:
        """`reply` as far as it does not repeat a secret (N5)."""
        endpoint = self._endpoint
        calls = tuple(
            replace(call, id=endpoint.hide(call.id), tool=endpoint.hide(call.tool), arguments=arguments)
            for call in reply.calls
            for arguments in [json.loads(endpoint.hide(json.dumps(call.arguments)))]
        )
        return replace(reply, text=endpoint.hide(reply.text), calls=calls)

    def _answer(self, request: ModelRequest, patience: Patience) -> tuple[FirstChoice, Form]:
        """The server's answer, asked for as often and in as many forms as its complaints allow."""
        ladder = self._ladder(request)
        with self._lock:
            habits = self._habits.get(ladder, _Habits())
        is_settled = True
        while True:
            form = ladder[habits.step]
            document = self._document(request, form)
            if habits.limit is not None:
                decides = self._decides(request)
                document[habits.limit] = DECISION_TOKENS if decides else answer_tokens(request.brief.fact)
            outcome = self._persist(document, patience)
            if isinstance(outcome, FirstChoice):
                if is_settled:
                    self._keep(ladder, habits)
                return outcome, form
            is_settled &= outcome.kind not in {"failed", "overflow"}  # Of this moment, or this request.
            habits = _adapted(habits, outcome, len(ladder))

    def _ladder(self, request: ModelRequest) -> tuple[Form, ...]:
        """The forms to try; a question is asked as a decision is, whatever the protocol of runs."""
        is_question = request.schema is not None and self.protocol != "text"
        if is_question or self._decides(request):
            return LADDERS["decide"]
        return LADDERS[self.protocol][1:] if self._steps(request) else LADDERS[self.protocol]

    def _decides(self, request: ModelRequest) -> bool:
        """Whether the model is to decide alone: as it was said, or after two answers that were no use."""
        return request.schema is None and (self.protocol == "decide" or self._steps(request) > 1)

    def _steps(self, request: ModelRequest) -> int:
        """How often the run was told to try again, which is how far `auto` has come down (N7)."""
        if self.protocol != "auto" or request.schema is not None:
            return 0
        return sum(isinstance(message, UserMessage) for message in request.messages) - 1

    def _keep(self, ladder: tuple[Form, ...], habits: _Habits) -> None:
        with self._lock:
            is_new = habits != self._habits.get(ladder, _Habits())
            self._habits[ladder] = habits
        if is_new:
            events.emit("model_adapted", model=self.name, form=ladder[habits.step], limit=habits.limit)

    def _document(self, request: ModelRequest, form: Form) -> Document:
        if self._decides(request):
            request = question(request)
        elif request.schema is None and form != "tools":
            request = with_actions(request)
        return body(request, form, self.name)

    def _persist(self, document: Document, patience: Patience) -> FirstChoice | Complaint:
        """The answer to `document`; what may pass by itself is asked for again, after a pause."""
        for pause in PAUSES:
            outcome = self._post(document, patience)
            if isinstance(outcome, FirstChoice) or outcome.kind not in {"busy", "failed"}:
                return outcome
            seconds = max(pause, outcome.wait)
            if time.monotonic() + seconds >= patience.deadline:
                left = patience.deadline - time.monotonic()
                late = f"another try in {seconds:.0f} s would be too late, {left:.0f} s are left"
                return Complaint("final", f"{outcome.told}; {late}")
            self._loop.run(partial(asyncio.sleep, seconds), patience)
        return self._post(document, patience)

    def _post(self, document: Document, patience: Patience) -> FirstChoice | Complaint:
        sent = self._loop.run(lambda: self._endpoint.post(document), patience)
        # Read here: megabytes take seconds, which the loop has not.
        outcome = sent if isinstance(sent, Complaint) else self._endpoint.judged(sent)
        if isinstance(outcome, Complaint):
            return replace(outcome, told=self._endpoint.hide(outcome.told))
        return outcome


def _adapted(habits: _Habits, complaint: Complaint, steps: int) -> _Habits:
    """How to ask after `complaint`.

    Raises:
        ContextOverflow: with fewer messages.
        ModelError: not at all.
    """
    match complaint.kind:
        case "overflow" if habits.limit is None:
            raise ContextOverflow(f"the model's context is too small: {complaint.told}")
        case "overflow":  # Some servers count the tokens that an answer may have.
            return replace(habits, limit=None)
        case "limit" if habits.limit is not None:
            return replace(habits, limit=_NEXT_LIMIT[habits.limit])
        case "limit" | "form" | "failed" if habits.step + 1 < steps:
            return replace(habits, step=habits.step + 1)
        case _:
            raise ModelError(complaint.told)


class _Endpoint:
    """One base URL and key. What is `async` runs on the loop."""

    def __init__(self, base_url: str, key: str | None) -> None:
        self._base_url, self._key = base_url, key
        self._client: openai.AsyncOpenAI | None = None

    async def post(self, document: Document) -> httpx2.Response | Complaint:
        """Send one request; its answer with the whole body."""
        import httpx2
        import openai

        if self._client is None:
            self._client = _client(self._base_url, self._key)
        host = urlsplit(self._base_url).netloc
        try:
            return await self._client.post("/chat/completions", cast_to=httpx2.Response, body=document)
        except openai.APIStatusError as error:
            return error.response
        except openai.APIConnectionError as error:
            return _unreached(error, host)
        except ModelError as problem:
            return Complaint("final", f"{host} sent an answer {problem}")
        except Exception as error:  # noqa: BLE001  foreign code and foreign words: the type says enough
            raise ModelError(f"a request to {host} failed with {type(error).__name__}") from None

    def judged(self, response: httpx2.Response) -> FirstChoice | Complaint:
        """What an answer says, by its status and its bytes alone."""
        if response.is_success:
            return read_answer(response.content)
        retry_after = response.headers.get("retry-after", "")
        return complaint_of(
            response.status_code, response.content, retry_after, has_key=self._key is not None
        )

    def hide(self, text: str) -> str:
        """`text` without the key, if that is a secret."""
        key = self._key
        if key is None or len(key) < MIN_SECRET_CHARS or not any(char.isdigit() for char in key):
            return text
        return text.replace(key, "[key]").replace(json.dumps(key)[1:-1], "[key]")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _unreached(error: BaseException, host: str) -> Complaint:
    """What it means that there was no answer; in words of ours, as those of libraries may quote anything."""
    import httpx2

    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
        return Complaint("final", f"the certificate of {host} is not trusted by this system")
    if any(isinstance(each, httpx2.ConnectError | httpx2.ConnectTimeout) for each in causes):
        if any(isinstance(each, ssl.SSLError) for each in causes):
            return Complaint("final", f"{host} does not speak TLS as it should; check the base URL")
        return Complaint("busy", f"no connection to {host}; check that the server is running there")
    return Complaint("busy", f"the connection to {host} ended before the answer did")


def _client(base_url: str, key: str | None) -> openai.AsyncOpenAI:
    """The library's client, with its transport guarded and whatever it does by itself switched off."""
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
        """Sends what N3 allows to where N2 allows; reads answers as N4 says."""

        def __init__(self) -> None:
            self._inner = httpx2.AsyncHTTPTransport(trust_env=False)

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.url != address:
                raise RuntimeError(f"{request.url.host} is not where the text may go")
            sent = httpx2.Request("POST", address, headers=headers, content=await request.aread())
            sent.extensions = request.extensions
            response = await self._inner.handle_async_request(sent)
            try:
                content = await _read(response)
            finally:
                await response.aclose()
            retry_after = response.headers.get("retry-after", "")
            kept = {"retry-after": retry_after} if retry_after.isascii() else {}
            return httpx2.Response(response.status_code, headers=kept, content=content, request=request)

        async def aclose(self) -> None:
            await self._inner.aclose()

    class BareClient(openai.AsyncOpenAI):
        """Without the headers that the environment adds, which may also be none that can be sent."""

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


async def _read(response: httpx2.Response) -> bytes:
    """The body, decompressed.

    Raises:
        ModelError: it is longer than `MAX_ANSWER_BYTES`, or compressed in a way that nobody asked for.
    """
    if response.headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
        raise ModelError("in an encoding that was not asked for")
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if max(len(content), response.num_bytes_downloaded) > MAX_ANSWER_BYTES:
            raise ModelError(f"of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


# -- probe -------------------------------------------------------------------------------------------
#
# What a model's server can do, tried with one small request in each form.
#
# The requests are made by the code that makes those of runs, and hold nothing of the memory.

_BRIEF: Final = Brief(
    "The user prefers dark mode", (ScopeBrief(Scope("user"), writable=True),), ContextMode.WORKSPACE
)
_SYSTEM: Final = SystemMessage("You list files. Act, do not explain.")
_TASK: Final = UserMessage('List the scopes: use `ls` with the path "user".')

Verdict = Literal["yes", "ignored", "slow", "no"]
"""The model acted; the server answered, but the model did not act; no answer came in time, which says nothing
of what the model can do; the server refused."""


@dataclass(frozen=True, slots=True)
class FormFinding:
    """What came of one form.

    Attributes:
        told: why not, one line; empty if it did.
        seconds: from the request to the answer.
        tokens_per_second: of the answer, its waiting included; None where the server did not count.
    """

    form: Form
    verdict: Verdict
    told: str
    seconds: float
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What a server can do.

    Attributes:
        findings: one for each form that the model's protocol allows; only those up to the first complaint
            that no other form would change.
        will_use: what a run will use; None: nothing works.
        better: a form in which the model acts, where it would ignore the one that a run will use.
    """

    findings: tuple[FormFinding, ...]
    will_use: Form | None
    better: Form | None

    @property
    def works(self) -> bool:
        """Whether the model acts in the form that a run will use."""
        return any(each.form == self.will_use and each.verdict == "yes" for each in self.findings)


def probe(model: OpenAIModel, seconds: float, cancel: Cancel | None = None) -> Probe:
    """Try what `model` may use.

    Args:
        model: it stays the caller's.
        seconds: for each request.
        cancel: ends it early.

    Raises:
        Cancelled: it did.

    Cost: at most three requests of a few hundred tokens; for the protocol `decide` at most two.
    """
    findings: list[FormFinding] = []
    for form in LADDERS[model.protocol]:
        started = time.monotonic()
        verdict, told, is_final, tokens = _try(model, form, Patience(started + seconds, cancel))
        took = time.monotonic() - started
        findings.append(FormFinding(form, verdict, told, took, tokens / took if tokens else None))
        if is_final:
            break
    return Probe(
        tuple(findings),
        will_use := next((each.form for each in findings if each.verdict != "no"), None),
        _better(findings, will_use),
    )


def _better(findings: list[FormFinding], will_use: Form | None) -> Form | None:
    acts = [each.form for each in findings if each.verdict == "yes"]
    return None if not acts or will_use in acts else acts[0]


def _try(model: OpenAIModel, form: Form, patience: Patience) -> tuple[Verdict, str, bool, int]:
    """Verdict, reason, whether no other form would fare better, and the tokens of the answer."""
    decides = model.protocol == "decide"
    request = _question() if decides else _task()
    try:
        outcome = model.attempt(request, form, patience)
    except DeadlineExceeded:
        return "slow", "no answer in time; a model that is being loaded may need a second try", False, 0
    if isinstance(outcome, Complaint):
        return "no", outcome.told, outcome.kind in {"final", "busy"}, 0
    tokens = outcome.usage.output_tokens
    if _acted(outcome, request, form, decides=decides):
        return "yes", "", False, tokens
    return "ignored", "the server takes it, but the model did not act as it was asked", False, tokens


def _acted(answer: FirstChoice, request: ModelRequest, form: Form, *, decides: bool) -> bool:
    if decides:
        return bool(decision_in(answer.text, request.brief))
    return [call.tool for call in as_reply(answer, request, form).calls] == ["ls"]


def _task() -> ModelRequest:
    tools = tuple(tool for tool in offered_tools(ContextMode.WORKSPACE) if tool.name == "ls")
    return ModelRequest(_BRIEF, (_SYSTEM, _TASK), tools, 0.0)


def _question() -> ModelRequest:
    return ModelRequest(_BRIEF, (_SYSTEM, job_message(_BRIEF, (), "probe")), (), 0.0)
