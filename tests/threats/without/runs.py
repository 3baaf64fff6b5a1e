"""Switch off the limits of runs and models."""

import json
import unicodedata

from threats.switches import add_controls, control, do_nothing, return_true, wrap_target

# fmt: off
add_controls({
    "counted_turns": ("The number of turns is unlimited.", {"agent.model:Budget.spend_turn": return_true}),
    "counted_calls": ("The number of tool calls is unlimited.", {
        "agent.model:Budget.spend_call": return_true}),
    "kept_deadline": ("A run has no deadline.", {"agent.model:Budget.check": do_nothing}),
    "final_text_only": ("A run commits even without a final text.", {
        "operations.remember:_raise_unless_final": do_nothing}),
    "real_escapes": ("Every denied path counts as a typo.", {
        "operations.remember:find_escape": do_nothing}),
    "kept_statements": ("A model may drop statements of an entry.", {
        "operations.labels:FactLabels.drops_statement": lambda *_: False}),
    "stated_changes": ("A fact may replace any entry on the same subject.", {
        "operations.remember:supersedes": return_true, "operations.labels:supersedes": return_true}),
    "contained_facts": ("Any text of a model counts as the fact.", {
        "operations.remember_job:contains_fact": return_true}),
    "known_tools": ("Any name is a tool.", {
        "*sandbox.tools.calls:check_tool": lambda tool: tool if isinstance(tool, str) else "ls"}),
    "escape_ends_sandbox": ("A sandbox forgets earlier escapes.", {
        "sandbox.sandbox:Sandbox._record_escape": do_nothing}),
    "escape_ends_run": ("A run continues after any denial.", {"agent.runner:Runner._find_end": do_nothing}),
    "random_fences": ("The fence around a text for a model is predictable.", {
        "*content.markdown:fence_text": lambda text, kind, _token: f"<<{kind} 0>>\n{text}\n<<end 0>>"}),
    "quotations": ("A quoted call counts as a call.", {
        "agent.quotation:DisplayedTexts.contains_call": lambda *_: False,
        "agent.quotation:DisplayedTexts.contains": lambda *_: False}),
    "counted_bytes": ("The size of tool results is unlimited.", {
        "sandbox.tools.workbench:Workbench._charge_read": lambda _self, text: text}),
    "late_commit": ("A commit may begin after its deadline.", {"kernel.cancel:Deadline.check": do_nothing}),
    "clean_handles": ("The worker of a clean run receives the roots.", {
        "sandbox.sandbox:Sandbox._select_scopes": lambda self: tuple(self._roots)}),
    "exact_json": ("Arguments are parsed by the lenient JSON decoder.", {
        "content.exact_json:_DECODER": json.JSONDecoder()}),
    "streamed_marks": ("Text with long runs of combining marks is normalized.", {
        "*kernel.normal_forms:find_overlong_run": do_nothing,
        "*kernel.normal_forms:normalise": unicodedata.normalize}),
    "long_characters": ("Characters that decompose into long texts are decomposed.", {
        "kernel.normal_forms:_LONGEST": "\x00"}),
})
add_controls({
    "answer_size": ("An answer of a model server may have any size.", {
        "agent.openai:MAX_ANSWER_BYTES": 1 << 40}),
}, hangs_after=4)
# fmt: on


@control()
def closed_arguments(off):
    """Arguments of any type are accepted, and unknown ones ignored."""
    from muniment.sandbox.tools.calls import SCHEMAS, TOOLS

    def accept(tool, arguments):
        return TOOLS[tool](**{name: value for name, value in arguments.items() if name in SCHEMAS[tool]})

    off.put("*sandbox.tools.calls:check_sizes", lambda _arguments: None)
    off.put("*sandbox.tools.calls:parse", accept)


@control()
def argument_sizes(off):
    """An argument may have any length."""
    from muniment.sandbox.tools import calls as arguments

    for name in arguments._FIELD_CHARS:
        off.put_item(arguments._FIELD_CHARS, name, 1 << 40)


@wrap_target("agent.runner:list_tools")
def offered_tools(real, _context):
    """Offer every tool to every run."""
    from muniment.names import ContextMode

    return real(ContextMode.WORKSPACE)


@wrap_target("sandbox.tools.overlay:Overlay.write")
def overlay_only(real, self, path, content, base):
    """A tool writes directly to the disk."""
    from pathlib import Path

    real(self, path, content, base)
    if (root := self._roots.get(path.scope)) is not None:
        target = Path(f"/proc/self/fd/{root.fd}", path.rel)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


@control()
def one_address(off):
    """The HTTP client uses proxies, redirects and default headers."""
    import httpx2

    class FollowingClient(httpx2.AsyncClient):
        def __init__(self, **_):
            super().__init__(follow_redirects=True)

    off.put("=httpx2:AsyncClient", FollowingClient)


@control()
def certificates(off):
    """Any certificate is accepted."""
    import httpx2

    class TrustingTransport(httpx2.AsyncHTTPTransport):
        def __init__(self, **terms):
            super().__init__(**{**terms, "verify": False})

    off.put("=httpx2:AsyncHTTPTransport", TrustingTransport)


@wrap_target("*settings:read_settings")
def own_variables(real, environment, *given, **terms):
    """Variables of other programs are used."""
    others = {name: value for name, value in environment.items() if name.startswith("OPENAI_")}
    own = {f"MUNIMENT_{name.removeprefix('OPENAI_')}": value for name, value in others.items()}
    return real({**own, **environment}, *given, **terms)
