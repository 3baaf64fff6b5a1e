"""Measure the cost of text that is designed to be slow: for each function of text, and for each verb.

    python benchmarks/hostile_text.py functions [NAME ...]
    python benchmarks/hostile_text.py verbs

`functions` prints, for each function of text, the worst ratio of the CPU time of 64 KiB to that of 1 KiB over
all texts. It exits with 1 if a ratio is above 80 and took more than 20 ms: a quadratic step has 4 096.
`verbs` prints the CPU of remember, recall, forget, dream, index and the hook, minus the CPU for ordinary
prose of the same size. The text is the fact, the query and a file that was put into the memory. The limit is
500 ms. Workers are counted, the hook is a separate process, and figures above the limit are measured a second
time.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final

import muniment
from muniment.agent.decision import fold_words
from muniment.agent.filing import read_cues as read_facts
from muniment.agent.quotation import DisplayedTexts, contains_tags
from muniment.agent.text_calls import parse_text_calls
from muniment.agent.updates import is_chatter, supersedes
from muniment.content.admission import find_agent_instruction, find_withholding_gate
from muniment.content.entry import complete_front_matter, parse, read_titles
from muniment.content.exact_json import parse_json
from muniment.content.expiry import find_end
from muniment.content.frontmatter import (
    decode_escapes,
    decode_front_matter,
    find_front_matter,
    read_quoted,
    read_scalar,
)
from muniment.content.gates import GATES, check_text, clean_line, escape_invisible
from muniment.content.markdown import (
    build_outline,
    find_active_markup,
    find_relative_links,
    mask_code,
    read_lines,
)
from muniment.content.provenance import contains_fact, split_separate_items
from muniment.content.secrets import find_secret, redact_secrets
from muniment.content.titles import build_slug, derive_title
from muniment.content.titles import clean_title_line as one_line_of_model
from muniment.content.words import (
    build_comparison_key,
    build_vocabulary,
    extract_features,
    find_significant_words,
    group_similar,
    list_statements,
    separate_words,
)
from muniment.errors import MunimentError
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.normal_forms import find_overlong_run, normalise
from muniment.kernel.path import canonicalise, fold
from muniment.names import MAX_FACT_BYTES
from muniment.operations.matching import match_entry
from muniment.policy.grammar import compute_skeleton
from muniment.recall.excerpt import cut_excerpt
from muniment.recall.query import read_query
from muniment.recall.stems import Stemmer
from muniment.store.index import IndexRow, format_entry_line, is_generated, is_replaceable
from muniment.store.index_upkeep import rebuild_index
from muniment.store.rows import build_columns

PROSE: Final = "The user prefers dark mode in all editors and runs make with eight jobs on the build host. "
UNITS: Final = {
    "letter": "a",
    "blank": " ",
    "line feed": "\n",
    "carriage return": "\r",
    "tab": "\t",
    "digit": "7",
    "dash": "-",
    "backtick": "`",
    "fences": "```\n",
    "tildes": "~~~\n",
    "quote": "> ",
    "bullet": "- a\n",
    "nested": "  - a\n",
    "emphasis": "*a",
    "bold": "**a** ",
    "underscore": "_a",
    "backslash": "\\",
    "brackets": "[",
    "links": "[a](",
    "images": "![a](b) ",
    "html": "<a ",
    "comment": "<!--",
    "tags": "<tool_call>",
    "braces": "{",
    "json": '{"a":',
    "doubled": "{{",
    "array": "[[",
    "strings": '"a",',
    "escapes": "\\u0041",
    "entities": "&amp;",
    "rules": "---\n",
    "keys": "a: b\n",
    "yaml quotes": 'a: "',
    "anchors": "&a *a ",
    "marks": "\u0301\u0316",
    "half marks": "\uff9e\uff9f",
    "letters with marks": "e\u0301\u0316" * 9,
    "ligatures": "\ufdfb",
    "a sentence": "\ufdfa",
    "wide": "\uff21",
    "han": "\u5bc6\u7801",
    "kana": "\u30d1",
    "thai": "\u0e01\u0e33",
    "hangul": "\u1112\u1161",
    "emoji": "\U0001f468\u200d",
    "joiners": "\u200d",
    "bidi": "\u202e",
    "flags": "\U0001f3f4\U000e0067",
    "names of secrets": "password is ",
    "pins": "pin: ",
    "cards": "4 4-",
    "groups of a card": "4100 ",
    "bank": "de12 ",
    "prefixes": "ghp_",
    "base64": base64.b64encode(bytes(range(251))).decode(),
    "addresses": "a://b:c",
    "dots": "a.",
    "drop": "ignore all ",
    "spaced order": "i g n o r e ",
    "paths": "../",
    "commas": "a, ",
    "stops": "a. ",
    "mixed": "aA1\u0430",
}
"""The repeated units, by name."""

SMALL, LARGE = 1 << 10, 1 << 16
MOST_RATIO, LEAST_SECONDS = 80, 0.02
MOST_MS = 500
REL: Final = RelPath("topic/a.md")
OFFERED: Final = ("read_file", "write_file", "edit", "grep", "ls")


def texts(size: int) -> dict[str, str]:
    """Return every hostile text of about `size` bytes."""
    return {name: unit * (size // len(unit.encode()) + 1) for name, unit in UNITS.items()}


def _entry(text: str) -> Any:
    return parse(f"---\nname: {text[:2000]}\ndescription: x\n---\n{text}")


FUNCTIONS: Final[dict[str, Callable[[str], object]]] = {
    "check_text": lambda text: check_text(text, GATES),
    "visible": escape_invisible,
    "one_line": clean_line,
    "one_line of a model": one_line_of_model,
    "find_secret": lambda text: find_secret(text.encode(), REL),
    "redacted": redact_secrets,
    "addressed_to_agent": partial(find_agent_instruction, trust=Trust.AGENT),
    "active_markup": find_active_markup,
    "without_code": mask_code,
    "held_for": lambda text: find_withholding_gate(text.encode(), REL, Trust.AGENT),
    "held_for front matter": lambda text: find_withholding_gate(
        f"---\nname: {text}\n---\n".encode(), REL, Trust.AGENT
    ),
    "parse": parse,
    "parse front matter": lambda text: parse(f"---\n{text}\n---\n{text}"),
    "titled": lambda text: read_titles(parse(text), REL),
    "complete": lambda text: complete_front_matter(parse(text), {"name": "a", "description": text[:4000]}),
    "with provenance": lambda text: complete_front_matter(
        parse(f"---\n{text[:15000]}\n---\n{text}"), {}, {"id": "x"}
    ),
    "locate": lambda text: find_front_matter(f"---\n{text}"),
    "spelled": lambda text: decode_front_matter(f'---\na: "{text}'),
    "read_scalar": lambda text: read_scalar(text, text.split("\n")),
    "read_quoted": lambda text: read_quoted(f'"{text}'),
    "unescaped": decode_escapes,
    "read_lines": read_lines,
    "outline": build_outline,
    "relative_links": lambda text: list(find_relative_links(text, REL)),
    "vocabulary": build_vocabulary,
    "significant": find_significant_words,
    "features": extract_features,
    "apart": separate_words,
    "comparable": build_comparison_key,
    "separate_items": lambda text: split_separate_items(f"- a b{text}c d\n- d e f"),
    "holds": lambda text: contains_fact([f"{text} a"], f"{text[:2000]} b"),
    "supersedes": lambda text: supersedes(f"a is now {text}", f"a is {text}."),
    "is_chatter": is_chatter,
    "find_end": lambda text: find_end(f"it is closed {text} until Friday", date(2026, 11, 26)),
    "sayings": lambda text: list(list_statements(text)),
    "alike": lambda text: group_similar({"a": text, "b": f"{text}."}),
    "meant": lambda text: match_entry(_entry(text), REL, find_significant_words(text[:200]) or ("a",)),
    "fold": fold,
    "normalised": partial(normalise, "NFKD"),
    "overlong_run": find_overlong_run,
    "skeleton": compute_skeleton,
    "canonicalise": lambda text: canonicalise(f"user/{text}", ("user",)),
    "read_query": lambda text: read_query(text, Stemmer()),
    "excerpt": lambda text: cut_excerpt(text, 400, lambda passage: passage.count("a")),
    "columns": lambda text: build_columns(REL, text[:200], text[:200], text, ()),
    "entry_line": lambda text: format_entry_line(IndexRow(REL, text, text, "user", Trust.OWNER)),
    "is_generated": lambda text: is_generated(f"# Memory\n{text}".encode()),
    "says_nothing_else": lambda text: is_replaceable(
        f"# Memory\n{text}".encode(), "MEMORY.md", b"# Memory\n", lambda _rel: ()
    ),
    "routing.read": read_facts,
    "cues.plain_words": fold_words,
    "title_of": derive_title,
    "slug": lambda text: build_slug(text, text),
    "parse_json": parse_json,
    "holds_tags": contains_tags,
    "Shown": lambda text: DisplayedTexts.from_texts([text]).contains(text[:2000]),
    "spoken_calls": lambda text: parse_text_calls(text, OFFERED, [text]),
}


def seconds(function: Callable[[str], object], text: str, rounds: int) -> float:
    """Return the minimum CPU time of one call, including rejections."""
    least = float("inf")
    for _ in range(rounds):
        gc.collect()
        gc.disable()  # A collection scans all live objects, so its share grows with the retained memory.
        began = time.process_time()
        with suppress(MunimentError, ValueError, RecursionError, StopIteration):
            function(text)
        least = min(least, time.process_time() - began)
        gc.enable()
    return least


def functions(wanted: list[str]) -> int:
    """Print the table of functions; return how many are too slow."""
    small, large, bad = texts(SMALL), texts(LARGE), 0
    print("| function | worst ratio | on | worst ms | on |\n|---|---|---|---|---|")
    for name, function in FUNCTIONS.items():
        if wanted and name not in wanted:
            continue
        with suppress(MunimentError, ValueError):
            function(PROSE * 10)
        ratios, times = {}, {}
        for each in UNITS:
            times[each] = seconds(function, large[each], 1)
            base = max(seconds(function, small[each], 5), 1e-6)
            if times[each] > LEAST_SECONDS and times[each] > MOST_RATIO * base:
                times[each], base = (
                    seconds(function, large[each], 2),
                    max(seconds(function, small[each], 20), 1e-6),
                )
            ratios[each] = times[each] / base
        slow = [each for each in UNITS if ratios[each] > MOST_RATIO and times[each] > LEAST_SECONDS]
        worst = max(slow or UNITS, key=lambda each: ratios[each])
        longest = max(UNITS, key=lambda each: times[each])
        mark = "**" if slow else ""
        ratio, most = ratios[worst], 1000 * times[longest]
        print(f"| {name} | {mark}{ratio:.0f}{mark} | {worst} | {most:.1f} | {longest} |", flush=True)
        bad += bool(slow)
    return bad


def measure_cpu_ms(act: Callable[[], object]) -> float:
    """Return the CPU milliseconds of an action, in this process and its children."""
    before = _measure_spent()
    with suppress(MunimentError):
        act()
    return 1000 * (_measure_spent() - before)


def _measure_spent() -> float:
    """Return the CPU seconds of this process and its children, live or ended."""
    results = os.times()
    total = results.user + results.system + results.children_user + results.children_system
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def measure_verbs(text: str) -> dict[str, float]:
    """Return the CPU of each verb in a new memory with two entries and `text` as a file."""
    with tempfile.TemporaryDirectory() as base:
        home, workspace = Path(base, "home"), Path(base, "workspace")
        workspace.mkdir()
        with muniment.open(workspace, home=home) as memory:
            for each in ("The staging server is called tapir", "The user prefers dark mode in editors"):
                memory.remember(each, scope="user")
            path = memory.context
            root = path.roots[Scope("user")]
            fact = text.encode()[:MAX_FACT_BYTES].decode("utf-8", "ignore")
            elapsed = {"remember": measure_cpu_ms(lambda: memory.remember(fact, scope="user"))}
            planted = f"---\nname: planted\ndescription: a planted one\n---\n\n{text}\n"
            (root.trusted_path / "planted.md").write_bytes(planted.encode())
            patience = Deadline(time.monotonic() + 300)
            elapsed["index"] = measure_cpu_ms(lambda: rebuild_index(path.state, root, path.policy, patience))
            elapsed["recall"] = measure_cpu_ms(lambda: memory.recall(text))
            elapsed["forget"] = measure_cpu_ms(lambda: memory.forget(text[:60_000]))
            elapsed["dream"] = measure_cpu_ms(memory.dream)
        event = {"session_id": "s", "hook_event_name": "UserPromptSubmit", "prompt": f"tapir planted {text}"}
        elapsed["hook"] = measure_cpu_ms(partial(_hook, home, workspace, json.dumps(event)))
    return elapsed


def _hook(home: Path, workspace: Path, event: str) -> None:
    """Run the hook in a separate process, as a host does."""
    subprocess.run(
        [sys.executable, "-m", "muniment", "recall", "--hook"],
        input=event.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=workspace,
        env={**os.environ, "MUNIMENT_HOME": str(home)},
        check=False,
        timeout=60,
    )


def verbs(wanted: list[str]) -> int:
    """Print the table of verbs; return how many are too slow."""
    ordinary = measure_verbs(PROSE * (LARGE // len(PROSE)))
    ordinary = {
        verb: min(ms, second)
        for (verb, ms), second in zip(
            ordinary.items(), measure_verbs(PROSE * (LARGE // len(PROSE))).values(), strict=True
        )
    }
    worst: dict[str, tuple[float, str]] = {}
    for name, text in texts(LARGE).items():
        if wanted and name not in wanted:
            continue
        elapsed = measure_verbs(text)
        if any(elapsed[verb] - ordinary[verb] > MOST_MS for verb in elapsed):
            second = measure_verbs(text)  # The machine may have been busy.
            elapsed = {verb: min(ms, second[verb]) for verb, ms in elapsed.items()}
        for verb, ms in elapsed.items():
            worst[verb] = max(worst.get(verb, (-1e9, "")), (ms - ordinary[verb], name))
        print(
            name,
            {verb: round(ms - ordinary[verb]) for verb, ms in elapsed.items()},
            file=sys.stderr,
            flush=True,
        )
    print("| verb | ordinary ms | most beyond it | on | goal |\n|---|---|---|---|---|")
    for verb, (ms, name) in worst.items():
        print(f"| {verb} | {ordinary[verb]:.0f} | {ms:.0f} | {name} | ≤ {MOST_MS} |")
    return sum(ms > MOST_MS for ms, _ in worst.values())


if __name__ == "__main__":
    if sys.argv[1:2] not in (["functions"], ["verbs"]):
        sys.exit(__doc__)
    sys.exit(1 if {"functions": functions, "verbs": verbs}[sys.argv[1]](sys.argv[2:]) else 0)
