"""A policy oracle based on the expressions of pathspec; it shares no code with the kernel.

    PYTHONPATH=tests python -m kit.policy.oracle 1_000_000

compares the kernel with it on this many triples of a random policy, a path and a verb.
"""

import random
import sys
import time
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from functools import lru_cache, reduce

from pathspec import PathSpec

from kit.policy.edits import BOTH, make_rules, try_load
from kit.policy.files import format_rule
from kit.policy.patterns import fold_fully, fold_single_chars, make_name, make_path
from muniment.kernel.decide import Allow, PolicyEvaluator
from muniment.kernel.names import Verb
from muniment.policy.combine import meet

PATHS_EACH = 50


@lru_cache(maxsize=20_000)
def compile_pattern(pattern):
    """Return the expression that pathspec compiles for a line."""
    (compiled,) = PathSpec.from_lines("gitignore", [pattern], backend="simple").patterns
    return compiled.regex


def matches_file(pattern, text):
    """Return whether a pattern matches exactly this file. `/**` alone compiles to `.`, so it is expanded."""
    files = f"{pattern}/*" if pattern.endswith("/**") else pattern
    regex = compile_pattern("/*/**/*" if files == "/**/*" else files)
    return "/" in text and regex.fullmatch(text) is not None


def covers(pattern, text):
    """Return whether a pattern matches the file or a parent directory, in one of three spellings."""
    for spell in (str, fold_fully, fold_single_chars) if "?" in pattern else (str, fold_fully):
        spelled = spell(pattern)
        if compile_pattern(f"{spelled}*" if spelled.endswith("/*") else spelled).search(spell(text)):
            return True
    return False


class Oracle:
    """Decides by the texts of policy files, each of them a layer without parents."""

    def __init__(self, *texts):
        self._files = [tomllib.loads(text) for text in texts]

    def find_denying_rules(self, verb, text, *, granted=matches_file):
        """Return the rules that deny a verb on a path, one per reason; empty means allow."""
        scope = text.partition("/")[0]
        if any(scope not in file["scopes"] for file in self._files):
            return {"scopes"}
        denying = self._find_denials(verb, text)
        return denying or {"default" for file in self._files if not self._allows(file, verb, text, granted)}

    def find_directory_denials(self, text):
        """Return the rules that deny listing a directory."""
        return self.find_denying_rules("list", f"{text}/", granted=may_match_scope)

    def find_removal_denials(self, text):
        """Return the rules that deny a removal by code."""
        return self.find_denying_rules("modify", text) or self._find_denials("delete", text)

    def find_quotas(self, text):
        """Return the ids of the quotas that count a file, except the built-in one."""
        tables = (quota for file in self._files for quota in file.get("quota", ()))
        return {quota["id"] for quota in tables if any(matches_file(each, text) for each in quota["paths"])}

    def _find_denials(self, verb, text):
        tables = (table for file in self._files for table in file.get("deny", ()))
        matching = (table for table in tables if {verb, "*"} & {*table["verbs"]})
        return {table["id"] for table in matching if any(covers(each, text) for each in table["paths"])}

    def _allows(self, file, verb, text, granted):
        tables = (table for table in file.get("allow", ()) if verb in table["verbs"])
        return any(granted(each, text) for table in tables for each in table["paths"])


def may_match_scope(pattern, text):
    """Return whether a pattern may match a path in this scope."""
    return fnmatchcase(text.partition("/")[0], pattern.split("/")[1])


def find_differences(oracle, judge, path):
    """Yield the questions about a path on which oracle and judge differ."""
    questions = [
        (verb.value, judge.decide(verb, path), oracle.find_denying_rules(verb.value, path.text))
        for verb in Verb
    ]
    questions.append(("directory", judge.decide_directory(path), oracle.find_directory_denials(path.text)))
    questions.append(("removal", judge.decide_removal(path), oracle.find_removal_denials(path.text)))
    for question, verdict, against in questions:
        if not against if isinstance(verdict, Allow) else verdict.rule in against:
            continue
        yield question, path.text, verdict, against
    quotas = {quota.id for quota in judge.quotas_for(path)} - {"default"}
    if quotas != oracle.find_quotas(path.text):
        yield "find_quotas", path.text, quotas, oracle.find_quotas(path.text)


def make_random_policy(rng):
    """Return one or two layers of random rules: their texts, the merged policy, and the patterns."""
    texts, policies, patterns = [], [], []
    while len(policies) < rng.choice((1, 1, 2)):
        rules = make_rules(rng, [make_name(rng) for _ in range(3)])
        if (policy := try_load(rules)) is not None and rules:
            tables = "".join(
                format_rule(one.kind, f"{one.kind}-{at}", *one[1:]) for at, one in enumerate(rules)
            )
            texts.append(f"[scopes]\n{BOTH}{tables}")
            policies.append(policy)
            patterns += [path for one in rules for path in one.paths]
    return texts, reduce(meet, policies), patterns


def compare_triples(seed, triples):
    """Compare this many triples; return counts, and the differences."""
    rng, counts, differences = random.Random(seed), Counter(), []
    while counts["triples"] < triples:
        texts, policy, patterns = make_random_policy(rng)
        oracle, judge = Oracle(*texts), PolicyEvaluator(policy)
        counts["policies"] += 1
        for path in (make_path(rng, patterns) for _ in range(PATHS_EACH)):
            differences += find_differences(oracle, judge, path)
            counts["triples"] += len(Verb)
            counts["allowed"] += sum(judge.allows(verb, path) for verb in Verb)
    return counts, differences


def main():
    """Print the result; return true if there are differences."""
    begin = time.monotonic()
    counts, differences = compare_triples(sys.argv[2] if len(sys.argv) > 2 else "oracle", int(sys.argv[1]))
    summary = f"{counts['triples']} triples of {counts['policies']} policies, {counts['allowed']} allowed"
    sys.stdout.write(f"{summary}, in {time.monotonic() - begin:.0f} s: {len(differences)} differ\n")
    for each in differences[:10]:
        sys.stdout.write(f"{each}\n")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
