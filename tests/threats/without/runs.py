"""The run and its model, without what bounds them."""

import json
import unicodedata

from threats.switches import around, control, none, table, true

# fmt: off
table({
    "counted_turns": ("A run may take as many turns as it likes.", {"agent.model:Budget.spend_turn": true}),
    "counted_calls": ("A run may make as many tool calls as it likes.", {
        "agent.model:Budget.spend_call": true}),
    "kept_deadline": ("Nobody looks at the clock.", {"agent.model:Budget.check": none}),
    "final_text_only": ("A run commits however it ended.", {"operations.remember:_raise_unless_final": none}),
    "real_escapes": ("Every path that was denied counts as a typo.", {
        "operations.remember:find_escape": none}),
    "kept_statements": ("A model may drop what an entry says.", {
        "operations.labels:FactWords.drops": lambda *_: False}),
    "change_is_said": ("A fact may stand in the place of any entry about the same.", {
        "operations.remember:supersedes": true, "operations.labels:supersedes": true}),
    "fact_is_held": ("Whatever a model wrote counts as the fact.", {"operations.remember_job:holds": true}),
    "known_tools": ("Any name is a tool.", {
        "*sandbox.tools.calls:check_tool": lambda tool: tool if isinstance(tool, str) else "ls"}),
    "escape_ends_sandbox": ("A sandbox forgets the escapes that it saw.", {
        "sandbox.sandbox:Sandbox._note_escape": none}),
    "escape_ends_run": ("A run goes on whatever it was refused.", {"agent.runner:Runner._consequence": none}),
    "random_fences": ("What stands around a text that is shown to a model can be guessed.", {
        "*content.markdown:fenced": lambda text, kind, _token: f"<<{kind} 0>>\n{text}\n<<end 0>>"}),
    "quotations": ("A call that a model quotes is a call.", {
        "agent.answer:ShownTexts.holds_call": lambda *_: False,
        "agent.answer:ShownTexts.holds": lambda *_: False}),
    "counted_bytes": ("A run is shown as much as it asks for.", {
        "sandbox.tools.workbench:Workbench._show": lambda _self, text: text}),
    "late_commit": ("A commit begins however late it is.", {"kernel.cancel:Patience.check": none}),
    "clean_handles": ("The worker of a clean run gets the roots all the same.", {
        "sandbox.sandbox:Sandbox._scopes_to_open": lambda self: tuple(self._roots)}),
    "exact_json": ("Arguments are whatever JSON makes of them.", {
        "content.exact_json:_DECODER": json.JSONDecoder()}),
    "streamed_marks": ("Text is normalised as it is, however many marks stand in a row.", {
        "*kernel.path:overlong_run": none, "*kernel.path:normalised": unicodedata.normalize}),
    "long_characters": ("Characters that stand for whole sentences are written out.", {
        "kernel.path:_LONGEST": "\x00"}),
})
table({
    "answer_size": ("An answer of a model's server may have any size.", {
        "agent.openai:MAX_ANSWER_BYTES": 1 << 40}),
}, hangs_after=4)
# fmt: on


@control()
def closed_arguments(off):
    """Arguments are coerced, and unknown ones passed over."""
    from muniment.sandbox.tools import calls as arguments
    from threats.without.policies import relax

    off.put("*sandbox.tools.calls:check_sizes", lambda _arguments: None)
    relax(off, *arguments.TOOLS.values(), extra="ignore", strict=False)


@control()
def argument_sizes(off):
    """An argument may be of any length."""
    from muniment.sandbox.tools import calls as arguments

    for name in arguments._FIELD_CHARS:
        off.item(arguments._FIELD_CHARS, name, 1 << 40)


@around("agent.runner:offered_tools")
def offered_tools(real, _context):
    """Every run has every tool."""
    from muniment.names import ContextMode

    return real(ContextMode.WORKSPACE)


@around("sandbox.tools.overlay:Overlay.write")
def overlay_only(real, self, path, content, base):
    """What a tool writes goes to the disk at once."""
    from pathlib import Path

    real(self, path, content, base)
    if (root := self._roots.get(path.scope)) is not None:
        there = Path(f"/proc/self/fd/{root.fd}", path.rel)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content)


@control()
def one_address(off):
    """The HTTP client heeds proxies and redirects, and sends what headers the library adds."""
    import httpx2

    class Following(httpx2.AsyncClient):
        def __init__(self, **_):
            super().__init__(follow_redirects=True)

    off.put("=httpx2:AsyncClient", Following)


@control()
def certificates(off):
    """Any certificate will do."""
    import httpx2

    class Trusting(httpx2.AsyncHTTPTransport):
        def __init__(self, **terms):
            super().__init__(**{**terms, "verify": False})

    off.put("=httpx2:AsyncHTTPTransport", Trusting)


@around("*settings:read_settings")
def own_variables(real, environment, *given, **terms):
    """The variables of other programs count as ours."""
    others = {name: value for name, value in environment.items() if name.startswith("OPENAI_")}
    ours = {f"MUNIMENT_{name.removeprefix('OPENAI_')}": value for name, value in others.items()}
    return real({**ours, **environment}, *given, **terms)
