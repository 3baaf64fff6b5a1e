"""Review a change of a policy from Python: what it grants more, by which rule, and what still holds.

Somebody lets topics lie a folder deeper and takes an inline test along, so that the file still loads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from muniment.lab.explain import explain
from muniment.lab.proofs import Gain, diff, prove, read_invariants
from muniment.policy.family import shipped_folder
from muniment.policy.load import Loaded, load_files
from muniment.policy.tables import line_of

INVARIANTS = {
    "schema": "muniment-invariants/1",
    "never": [{"id": "no-instructions", "verbs": ["create", "modify"], "paths": ["AGENTS.md", "SKILL.md"]}],
    "only": [{"id": "one-folder", "verbs": ["create"], "paths": ["/*/*.md", "/*/*/*.md"]}],
}


def edited(folder: Path) -> Loaded:
    """`strict` with deeper topics, from a file of its own."""
    text = (shipped_folder() / "strict.toml").read_text()
    for old, new in (
        ('"/project/*/*.md"', '"/project/*/*.md", "/project/*/*/*.md"'),
        ('path = "/project/a/b/c.md"', 'path = "/project/a/b/c/d.md"'),
    ):
        text = text.replace(old, new)
    path = folder / "edited.toml"
    path.write_text(text)
    return load_files(str(path))


def told(gain: Gain, new: Loaded) -> str:
    """A widening on one line."""
    cause = gain.cause
    line = line_of(new.files[0].text, cause.kind, cause.rule, "paths", cause.pattern)
    return f"{', '.join(gain.acts)} {gain.path}: {cause.kind}[{cause.rule}] {cause.pattern}, line {line}"


def main() -> None:
    """Compare, prove, explain."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = load_files("strict"), edited(Path(folder))
    difference = diff(old.policy, new.policy)
    print(f"{new.policy.name}: {difference.verdict}")
    for gain in difference.widenings:
        print(" ", told(gain, new))
    for finding in prove(read_invariants(INVARIANTS, "invariants"), new.policy):
        shown = ", ".join(f"{each.act} {each.path}" for each in finding.witnesses)
        print(f"{finding.status}: {finding.id} {shown}".rstrip())
    answer = explain(new.policy, "modify", "project/Pinned/a.md")
    print(f"{answer.verdict}: rule {answer.rule!r}; the model is told: {answer.model_is_told}")


if __name__ == "__main__":
    main()
