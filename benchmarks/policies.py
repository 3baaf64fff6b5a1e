"""Measure the cost of a policy decision, of the self-test at load time, and of a comparison of two policies.

    python benchmarks/policies.py

CPU, median of several rounds; each round starts with empty caches, unless stated otherwise. Policies are the
shipped `strict`, one of 62 rules (12 allow, 50 deny, two scopes) as an organisation may write it, and a bomb:
60 deny patterns such as `*-draft-7*.md`, for which an automaton needs a state for every combination. The
compared policies differ by one deny rule, in both directions; the slower one is printed.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.lab.proofs import compare_policies
from muniment.policy import automaton, load
from muniment.policy.load import load_policy, parse_policy

WORDS = """
alpha beta gamma delta notes secret draft build deploy keys tokens vault finance health legal hr payroll
salary client vendor audit incident oncall runbook infra cloud billing invoice contract nda roadmap hiring
review feedback personal private family medical travel passport bank tax insurance password recovery backup
archive legacy tmp cache logs export import staging prod canary release hotfix security
""".split()  # noqa: SIM905
ALLOWED, DENIED = 12, 50
DECISIONS = 20_000
PATHS = ("user/a.md", "user/Pinned/a.md", "project/build/commands.md", "user/Straße.md", "project/.git/a.md")


def build_policy(rules: list[str]) -> Policy:
    """Return a policy of some rules in text form."""
    head = 'schema = "muniment-policy/1"\nname = "own"\n[scopes]\nuser = {}\nproject = {}\n'
    return parse_policy(head + "".join(rules), where="own", parents={}.__getitem__)


def rule(kind: str, name: str, verbs: list[str], paths: list[str]) -> str:
    """Return one rule as text."""
    listed = (", ".join(f'"{each}"' for each in several) for several in (verbs, paths))
    return '[[{}]]\nid = "{}"\nverbs = [{}]\npaths = [{}]\n'.format(kind, name, *listed)


def build_organisation(*, without: int | None = None) -> Policy:
    """Return 62 rules, or one deny less."""
    writing = ["list", "read", "create", "modify"]
    rules = [
        rule("allow", f"a{at}", writing, [f"/user/{word}/*.md", f"/project/{word}/**/*.md"])
        for at, word in enumerate(WORDS[:ALLOWED])
    ]
    for at, word in enumerate(WORDS[8 : 8 + DENIED]):
        forms = ([f"{word}/"], [f"{word}.md", f"{word}-old.md"], [f"/*/{word}/"], [f"*.{word}.md"])
        paths = (*forms, [f"/user/**/{word}/*.md"])[at % 5]
        verbs = ["create", "modify", "delete"] if at % 2 else ["*"]
        rules += [rule("deny", f"d{at}", verbs, paths)] if at != without else []
    return build_policy(rules)


def build_bomb(count: int = 60) -> Policy:
    """Return a policy whose deny patterns have no distinguishing letter, with everything else allowed."""
    every = [verb.value for verb in Verb]
    return build_policy(
        [rule("allow", "all", every, ["/**"])]
        + [rule("deny", f"d{at}", ["*"], [f"*-draft-{at}*.md"]) for at in range(count)]
    )


def load_strict(*, without: str | None = None) -> Policy:
    """Return the shipped default, or one deny less."""
    whole = load_policy("strict")
    (layer,) = whole.layers
    remaining = tuple(rule for rule in layer.deny if rule.id != without)
    return replace(whole, layers=(replace(layer, deny=remaining),))


def measure_seconds(act: Callable[[], object], rounds: int = 7) -> float:
    """Return the median CPU time of an action."""
    times = []
    for _ in range(rounds):
        load._passed_digests.clear()  # noqa: SLF001
        automaton._group_letters.cache_clear()  # noqa: SLF001
        begin = time.process_time()
        act()
        times.append(time.process_time() - begin)
    return median(times)


def measure_decision() -> float:
    """Return the seconds of one decision of `strict`."""
    judge = PolicyEvaluator(load_policy("strict"))
    paths = [canonicalise(text, ("user", "project")) for text in PATHS]
    queries = [(verb, path) for verb in Verb for path in paths]

    def decide() -> None:
        for _ in range(DECISIONS // len(queries)):
            for verb, path in queries:
                judge.decide(verb, path)

    return measure_seconds(decide) / DECISIONS


def measure_diff(one: Policy, other: Policy, rounds: int = 5) -> tuple[float, str]:
    """Return the seconds of the slower direction, and both verdicts."""
    slower = max(
        measure_seconds(lambda a=a, b=b: compare_policies(a, b), rounds)
        for a, b in ((one, other), (other, one))
    )
    return slower, f"{compare_policies(one, other).verdict} / {compare_policies(other, one).verdict}"


def measure_self_test(tested: Policy, *, is_repeated: bool) -> float:
    """Return the seconds of the self-test: the first one, or for a policy that passed before."""

    def first() -> None:
        load._passed_digests.clear()  # noqa: SLF001
        list(load.find_defects(tested))

    if not is_repeated:
        return measure_seconds(first)
    first()
    begin = time.process_time()
    for _ in range(100):
        list(load.find_defects(tested))
    return (time.process_time() - begin) / 100


def main() -> None:
    """Measure, and print a table."""
    automaton.find_cased_characters()  # Computed once per process.
    small, smaller = load_strict(), load_strict(without="pinned")
    large, larger = build_organisation(), build_organisation(without=0)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; CPU, medians\n")
    print("| | figure | goal |\n|---|---|---|")
    print(f"| decide, `strict` | {measure_decision() * 1e6:.1f} µs | ≤ 20 µs |")
    for name, pair, goal in (
        ("two policies like `strict`", (small, smaller), "≤ 1 s"),
        ("two of 62 rules", (large, larger), "≤ 5 s"),
        ("two bombs", (build_bomb(), build_bomb(59)), "≤ 5 s, undecided"),
    ):
        times, verdicts = measure_diff(*pair, rounds=3)
        print(f"| diff of {name}: {verdicts} | {times:.2f} s | {goal} |")
    for name, tested in (("`strict`", small), ("62 rules", large)):
        first = measure_self_test(tested, is_repeated=False)
        print(f"| self-test of {name} | {first * 1e3:.1f} ms | ≤ 3 s |")
        print(
            f"| self-test of {name}, passed before | "
            f"{measure_self_test(tested, is_repeated=True) * 1e3:.2f} ms | ≤ 10 ms |"
        )
    print(f"| peak memory | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB | |")


if __name__ == "__main__":
    main()
