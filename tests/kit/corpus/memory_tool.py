"""The Muniment memory tool for the anthropic SDK as a subject of the corpus."""

from contextlib import ExitStack

import muniment
from muniment.integrations.anthropic import MunimentMemoryTool
from muniment.testing.conformance.targets import AnthropicSubject
from muniment.testing.corpus.stage import ROOTS
from muniment.testing.corpus.subjects import choose_symlinks, write_policy


class MemoryToolSubject(AnthropicSubject):
    """One tool per scope over one memory; `about` is empty because the tool is part of this project."""

    def __init__(self, stage, case):
        self.about, self._stage, self._case = "", stage, case
        self.opened = ExitStack()
        self.memory = self.opened.enter_context(
            muniment.open(
                stage.outside,
                home=stage.state / "home",
                policy=write_policy(stage, case, require="partial", on_escape="abort"),
                roots={scope: stage.get_scope_path(scope) for scope in ROOTS},
                symlinks=choose_symlinks(case),
            )
        )
        self._tools = {scope: MunimentMemoryTool(self.memory, scope=scope) for scope in ROOTS}

    def close(self):
        self.opened.close()
        return super().close()
