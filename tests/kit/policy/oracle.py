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

from kit.policy.changed import BOTH, loaded, some_rules
from kit.policy.files import rule
from kit.policy.reading import by_all, by_one, some_name, some_path
from muniment.kernel.decide import Allow, Judge
from muniment.kernel.names import Verb
from muniment.policy.tables import meet

PATHS_EACH = 50


@lru_cache(maxsize=20_000)
def expression(pattern):
    """Return the expression that pathspec compiles for a line."""
    (compiled,) = PathSpec.from_lines("gitignore", [pattern], backend="simple").patterns
    return compiled.regex


def is_file(pattern, text):
    """Return whether a pattern matches exactly this file. `/**` alone compiles to `.`, so it is expanded."""
    files = f"{pattern}/*" if pattern.endswith("/**") else pattern
    regex = expression("/*/**/*" if files == "/**/*" else files)
    return "/" in text and regex.fullmatch(text) is not None


def covers(pattern, text):
    """Return whether a pattern matches the file or a parent directory, in one of three spellings."""
    for spell in (str, by_all, by_one) if "?" in pattern else (str, by_all):
        spelled = spell(pattern)
        if expression(f"{spelled}*" if spelled.endswith("/*") else spelled).search(spell(text)):
            return True
    return False


class Oracle:
    """Decides by the texts of policy files, each of them a layer without parents."""

    def __init__(self, *texts):
        self._files = [tomllib.loads(text) for text in texts]

    def against(self, verb, text, *, granted=is_file):
        """Return the rules that deny a verb on a path, one per reason; empty means allow."""
        scope = text.partition("/")[0]
        if any(scope not in file["scopes"] for file in self._files):
            return {"scopes"}
        denying = self._denying(verb, text)
        return denying or {"default" for file in self._files if not self._allows(file, verb, text, granted)}

    def against_directory(self, text):
        """Return the rules that deny listing a directory."""
        return self.against("list", f"{text}/", granted=begins)

    def against_removal(self, text):
        """Return the rules that deny a removal by code."""
        return self.against("modify", text) or self._denying("delete", text)

    def quotas(self, text):
        """Return the ids of the quotas that count a file, except the built-in one."""
        tables = (quota for file in self._files for quota in file.get("quota", ()))
        return {quota["id"] for quota in tables if any(is_file(each, text) for each in quota["paths"])}

    def _denying(self, verb, text):
        tables = (table for file in self._files for table in file.get("deny", ()))
        asked = (table for table in tables if {verb, "*"} & {*table["verbs"]})
        return {table["id"] for table in asked if any(covers(each, text) for each in table["paths"])}

    def _allows(self, file, verb, text, granted):
        tables = (table for table in file.get("allow", ()) if verb in table["verbs"])
        return any(granted(each, text) for table in tables for each in table["paths"])


def begins(pattern, text):
    """Return whether a pattern may match a path in this scope."""
    return fnmatchcase(text.partition("/")[0], pattern.split("/")[1])


def apart(oracle, judge, path):
    """Yield the questions about a path on which oracle and judge differ."""
    asked = [(verb.value, judge.decide(verb, path), oracle.against(verb.value, path.text)) for verb in Verb]
    asked.append(("directory", judge.decide_directory(path), oracle.against_directory(path.text)))
    asked.append(("removal", judge.decide_removal(path), oracle.against_removal(path.text)))
    for question, verdict, against in asked:
        if not against if isinstance(verdict, Allow) else verdict.rule in against:
            continue
        yield question, path.text, verdict, against
    quotas = {quota.id for quota in judge.quotas_for(path)} - {"default"}
    if quotas != oracle.quotas(path.text):
        yield "quotas", path.text, quotas, oracle.quotas(path.text)


def some_policy(rng):
    """Return one or two layers of random rules: their texts, the merged policy, and the patterns."""
    texts, policies, patterns = [], [], []
    while len(policies) < rng.choice((1, 1, 2)):
        rules = some_rules(rng, [some_name(rng) for _ in range(3)])
        if (policy := loaded(rules)) is not None and rules:
            tables = "".join(rule(one.kind, f"{one.kind}-{at}", *one[1:]) for at, one in enumerate(rules))
            texts.append(f"[scopes]\n{BOTH}{tables}")
            policies.append(policy)
            patterns += [path for one in rules for path in one.paths]
    return texts, reduce(meet, policies), patterns


def compared(seed, triples):
    """Compare this many triples; return counts, and the differences."""
    rng, said, parted = random.Random(seed), Counter(), []
    while said["triples"] < triples:
        texts, policy, patterns = some_policy(rng)
        oracle, judge = Oracle(*texts), Judge(policy)
        said["policies"] += 1
        for path in (some_path(rng, patterns) for _ in range(PATHS_EACH)):
            parted += apart(oracle, judge, path)
            said["triples"] += len(Verb)
            said["allowed"] += sum(judge.allows(verb, path) for verb in Verb)
    return said, parted


def main():
    """Print the result; return true if there are differences."""
    begin = time.monotonic()
    said, parted = compared(sys.argv[2] if len(sys.argv) > 2 else "oracle", int(sys.argv[1]))
    told = f"{said['triples']} triples of {said['policies']} policies, {said['allowed']} allowed"
    sys.stdout.write(f"{told}, in {time.monotonic() - begin:.0f} s: {len(parted)} differ\n")
    for each in parted[:10]:
        sys.stdout.write(f"{each}\n")
    return bool(parted)


if __name__ == "__main__":
    sys.exit(main())
