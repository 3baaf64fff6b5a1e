"""The run and its model, without what bounds them."""

from __future__ import annotations

from threats.switches import Patches, control


@control()
def counted_turns(off: Patches) -> None:
    """A run may take as many turns as it likes."""
    off.put("muniment.agent.model:Budget.spend_turn", lambda _self: True)


@control()
def counted_calls(off: Patches) -> None:
    """A run may make as many tool calls as it likes."""
    off.put("muniment.agent.model:Budget.spend_call", lambda _self: True)


@control()
def kept_deadline(off: Patches) -> None:
    """Nobody looks at the clock."""
    off.put("muniment.agent.model:Budget.check", lambda _self: None)


@control()
def final_text_only(off: Patches) -> None:
    """A run commits however it ended."""
    off.put("muniment.jobs.remember:_raise_unless_final", lambda *_: None)


@control()
def fact_is_held(off: Patches) -> None:
    """Whatever a model wrote counts as the fact."""
    off.put("muniment.jobs.remember:holds", lambda *_: True)


@control()
def closed_arguments(off: Patches) -> None:
    """Arguments are coerced, and unknown ones passed over."""
    from muniment.tools import calls as arguments
    from threats.without.policies import relax

    off.everywhere("muniment.tools.calls:check_sizes", lambda _arguments: None)
    relax(off, *arguments.TOOLS.values(), extra="ignore", strict=False)


@control()
def argument_sizes(off: Patches) -> None:
    """An argument may be of any length."""
    from muniment.tools import calls as arguments

    for name in arguments._FIELD_CHARS:
        off.item(arguments._FIELD_CHARS, name, 1 << 40)


@control()
def known_tools(off: Patches) -> None:
    """Any name is a tool."""
    off.everywhere("muniment.tools.calls:check_tool", lambda tool: tool if isinstance(tool, str) else "ls")


@control()
def offered_tools(off: Patches) -> None:
    """Every run has every tool."""
    from muniment.agent import chat as prompt
    from muniment.names import ContextMode

    real = prompt.offered_tools
    off.put("muniment.agent.runner:offered_tools", lambda _context: real(ContextMode.WORKSPACE))


@control()
def overlay_only(off: Patches) -> None:
    """What a tool writes goes to the disk at once."""
    from pathlib import Path

    def make(real):
        def write(self, path, content, base):
            real(self, path, content, base)
            if (root := self._roots.get(path.scope)) is not None:
                there = Path(f"/proc/self/fd/{root.fd}", path.rel)
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(content)

        return write

    off.wrap("muniment.tools.overlay:Overlay.write", make)


@control()
def escape_ends_sandbox(off: Patches) -> None:
    """A sandbox forgets the escapes that it saw."""
    off.put("muniment.sandbox:Sandbox._note_escape", lambda *_: None)


@control()
def escape_ends_run(off: Patches) -> None:
    """A run goes on whatever it was refused."""
    off.put("muniment.agent.runner:Runner._consequence", lambda *_: None)


@control()
def random_fences(off: Patches) -> None:
    """What stands around a text that is shown to a model can be guessed."""
    off.everywhere(
        "muniment.content.markdown:fenced", lambda text, kind, _token: f"<<{kind} 0>>\n{text}\n<<end 0>>"
    )


@control()
def quotations(off: Patches) -> None:
    """A call that a model quotes is a call."""
    off.put("muniment.agent.answer:ShownTexts.holds_call", lambda *_: False)
    off.put("muniment.agent.answer:ShownTexts.holds", lambda *_: False)


@control()
def one_address(off: Patches) -> None:
    """The HTTP client heeds proxies and redirects, and sends what headers the library adds."""
    import httpx2

    class Following(httpx2.AsyncClient):
        def __init__(self, **_):
            super().__init__(follow_redirects=True)

    off.put("httpx2:AsyncClient", Following)


@control()
def certificates(off: Patches) -> None:
    """Any certificate will do."""
    import httpx2

    class Trusting(httpx2.AsyncHTTPTransport):
        def __init__(self, **terms):
            super().__init__(**{**terms, "verify": False})

    off.put("httpx2:AsyncHTTPTransport", Trusting)


@control(hangs_after=4)
def answer_size(off: Patches) -> None:
    """An answer of a model's server may have any size."""
    off.put("muniment.agent.openai:MAX_ANSWER_BYTES", 1 << 40)


@control()
def own_variables(off: Patches) -> None:
    """The variables of other programs count as ours."""

    def make(real):
        def read(environment, *given, **terms):
            ours = {
                f"MUNIMENT_{name.removeprefix('OPENAI_')}": value
                for name, value in environment.items()
                if name.startswith("OPENAI_")
            }
            return real({**ours, **environment}, *given, **terms)

        return read

    from muniment import settings

    off.everywhere("muniment.settings:read_settings", make(settings.read_settings))


@control()
def counted_bytes(off: Patches) -> None:
    """A run is shown as much as it asks for."""
    off.put("muniment.tools.workbench:Workbench._show", lambda _self, text: text)


@control()
def late_commit(off: Patches) -> None:
    """A commit begins however late it is."""
    off.put("muniment.confine.cancel:Patience.check", lambda _self: None)


@control()
def exact_json(off: Patches) -> None:
    """Arguments are whatever JSON makes of them."""
    import json

    off.put("muniment.agent.model:_DECODER", json.JSONDecoder())


@control()
def clean_handles(off: Patches) -> None:
    """The worker of a clean run gets the roots all the same."""
    off.put("muniment.sandbox:Sandbox._shown_scopes", lambda self: tuple(self._roots))


@control()
def streamed_marks(off: Patches) -> None:
    """Text is normalised as it is, however many marks stand in a row."""
    import unicodedata

    off.everywhere("muniment.policy.grammar:overlong_run", lambda _text: None)
    off.everywhere("muniment.policy.grammar:normalised", unicodedata.normalize)


@control()
def long_characters(off: Patches) -> None:
    """Characters that stand for whole sentences are written out."""
    off.put("muniment.policy.grammar:_LONGEST", "\0")
