"""The run and its model without their limits."""

import json
import unicodedata

from threats.switches import around, control, none, table, true

# fmt: off
table({
    "counted_turns": ("Allow any number of turns.", {"agent.model:Budget.spend_turn": true}),
    "counted_calls": ("Allow any number of tool calls.", {
        "agent.model:Budget.spend_call": true}),
    "kept_deadline": ("Ignore deadlines.", {"agent.model:Budget.check": none}),
    "final_text_only": ("Commit a run however it ended.", {"operations.remember:_raise_unless_final": none}),
    "real_escapes": ("Treat every denied path as a typo.", {
        "operations.remember:find_escape": none}),
    "kept_statements": ("Let a model drop the text of an entry.", {
        "operations.labels:FactWords.drops": lambda *_: False}),
    "change_is_said": ("Let a fact replace any entry about the same subject.", {
        "operations.remember:supersedes": true, "operations.labels:supersedes": true}),
    "fact_is_held": ("Accept any text of a model as the fact.", {"operations.remember_job:holds": true}),
    "known_tools": ("Accept any tool name.", {
        "*sandbox.tools.calls:check_tool": lambda tool: tool if isinstance(tool, str) else "ls"}),
    "escape_ends_sandbox": ("Forget the escapes of a sandbox.", {
        "sandbox.sandbox:Sandbox._note_escape": none}),
    "escape_ends_run": ("Continue a run after any number of denials.", {
        "agent.runner:Runner._end_after": none}),
    "random_fences": ("Use guessable marks around shown text.", {
        "*content.markdown:fenced": lambda text, kind, _token: f"<<{kind} 0>>\n{text}\n<<end 0>>"}),
    "quotations": ("Execute quoted calls.", {
        "agent.quotation:ShownTexts.holds_call": lambda *_: False,
        "agent.quotation:ShownTexts.holds": lambda *_: False}),
    "counted_bytes": ("Show a run any number of bytes.", {
        "sandbox.tools.workbench:Workbench._show": lambda _self, text: text}),
    "late_commit": ("Start a commit after its deadline.", {"kernel.cancel:Patience.check": none}),
    "clean_handles": ("Give the worker of a clean run the roots.", {
        "sandbox.sandbox:Sandbox._scopes_to_open": lambda self: tuple(self._roots)}),
    "exact_json": ("Accept any JSON as arguments.", {
        "content.exact_json:_DECODER": json.JSONDecoder()}),
    "streamed_marks": ("Normalise text with any number of marks in a row.", {
        "*kernel.normal_forms:overlong_run": none, "*kernel.normal_forms:normalised": unicodedata.normalize}),
    "long_characters": ("Expand characters that represent long texts.", {
        "kernel.normal_forms:_LONGEST": "\x00"}),
})
table({
    "answer_size": ("Accept responses of any size from a model's server.", {
        "agent.openai:MAX_ANSWER_BYTES": 1 << 40}),
}, hangs_after=4)
# fmt: on


@control()
def closed_arguments(off):
    """Coerce arguments and ignore unknown ones."""
    from muniment.sandbox.tools import calls as arguments
    from threats.without.policies import relax

    off.put("*sandbox.tools.calls:check_sizes", lambda _arguments: None)
    relax(off, *arguments.TOOLS.values(), extra="ignore", strict=False)


@control()
def argument_sizes(off):
    """Accept arguments of any length."""
    from muniment.sandbox.tools import calls as arguments

    for name in arguments._FIELD_CHARS:
        off.item(arguments._FIELD_CHARS, name, 1 << 40)


@around("agent.runner:offered_tools")
def offered_tools(real, _context):
    """Offer every tool to every run."""
    from muniment.names import ContextMode

    return real(ContextMode.WORKSPACE)


@around("sandbox.tools.overlay:Overlay.write")
def overlay_only(real, self, path, content, base):
    """Write a tool's output to the disk at once."""
    from pathlib import Path

    real(self, path, content, base)
    if (root := self._roots.get(path.scope)) is not None:
        there = Path(f"/proc/self/fd/{root.fd}", path.rel)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content)


@control()
def one_address(off):
    """Use proxies and redirects, and send all headers of the HTTP library."""
    import httpx2

    class Following(httpx2.AsyncClient):
        def __init__(self, **_):
            super().__init__(follow_redirects=True)

    off.put("=httpx2:AsyncClient", Following)


@control()
def certificates(off):
    """Accept any certificate."""
    import httpx2

    class Trusting(httpx2.AsyncHTTPTransport):
        def __init__(self, **terms):
            super().__init__(**{**terms, "verify": False})

    off.put("=httpx2:AsyncHTTPTransport", Trusting)


@around("*settings:read_settings")
def own_variables(real, environment, *given, **terms):
    """Use the environment variables of other programs."""
    others = {name: value for name, value in environment.items() if name.startswith("OPENAI_")}
    ours = {f"MUNIMENT_{name.removeprefix('OPENAI_')}": value for name, value in others.items()}
    return real({**ours, **environment}, *given, **terms)
