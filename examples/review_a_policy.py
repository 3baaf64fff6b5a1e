"""Review a change of a policy in Python: additional grants, the rule that causes them, and the invariants.

In this program, the changed policy allows entries one folder deeper than `strict`. The change also adapts an
inline test of the policy, so that the file still loads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from muniment.lab.explain import explain_decision
from muniment.lab.proofs import Gain, compare_policies, prove_invariants, read_invariants
from muniment.policy.files import LoadedPolicy, get_shipped_folder
from muniment.policy.load import load_files
from muniment.policy.tables import find_line

INVARIANTS = {
    "schema": "muniment-invariants/1",
    "never": [{"id": "no-instructions", "verbs": ["create", "modify"], "paths": ["AGENTS.md", "SKILL.md"]}],
    "only": [{"id": "one-folder", "verbs": ["create"], "paths": ["/*/*.md", "/*/*/*.md"]}],
}


def load_edited(folder: Path) -> LoadedPolicy:
    """Write the changed policy, `strict` with one more folder level, to a new file and load it."""
    text = (get_shipped_folder() / "strict.toml").read_text()
    for old, new in (
        ('"/project/*/*.md"', '"/project/*/*.md", "/project/*/*/*.md"'),
        ('path = "/project/a/b/c.md"', 'path = "/project/a/b/c/d.md"'),
    ):
        text = text.replace(old, new)
    path = folder / "edited.toml"
    path.write_text(text)
    return load_files(str(path))


def format_gain(gain: Gain, new: LoadedPolicy) -> str:
    """Format one additional grant of the new policy as one line."""
    cause = gain.cause
    line = find_line(new.files[0].text, cause.kind, cause.rule, "paths", cause.pattern)
    return f"{', '.join(gain.acts)} {gain.path}: {cause.kind}[{cause.rule}] {cause.pattern}, line {line}"


def main() -> None:
    """Compare the policies, prove the invariants, and explain one decision."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = load_files("strict"), load_edited(Path(folder))
    difference = compare_policies(old.policy, new.policy)
    print(f"{new.policy.name}: {difference.verdict}")
    for gain in difference.widenings:
        print(" ", format_gain(gain, new))
    for finding in prove_invariants(read_invariants(INVARIANTS, "invariants"), new.policy):
        witnesses = ", ".join(f"{each.act} {each.path}" for each in finding.witnesses)
        print(f"{finding.status}: {finding.id} {witnesses}".rstrip())
    decision = explain_decision(new.policy, "modify", "project/Pinned/a.md")
    print(f"{decision.verdict}: rule {decision.rule!r}; message to the model: {decision.model_message}")


if __name__ == "__main__":
    main()
