"""Store a dozen facts with a language model, and print the cost: turns, tokens, seconds, malformed calls.

Run this program with `python examples/live_model.py BASE_URL MODEL`, for example with a llama-server on this
machine:

    python examples/live_model.py http://127.0.0.1:8080/v1 qwen3-4b --protocol decide

If the server needs a key, pass `--api-key-file` or set `MUNIMENT_API_KEY`. The program uses a throwaway
memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import muniment
from muniment.types import RememberRequest, RememberResult

FACTS = (
    "The user prefers dark mode in all editors",
    "My name is Priya and I go by she/her",
    "Always answer in German, but write code comments in English",
    "I am new to React, so explain frontend things in terms of backend analogues",
    "Don't mock the database in tests, I got burned last quarter",
    "The API listens on port 8443 in development",
    "We deploy on Thursdays at 15:00 UTC",
    "Staging runs Postgres 16 behind pgbouncer",
    "CI keeps artifacts for 14 days",
    "Bugs of the payment service are tracked in the Linear project INGEST",
    "用户喜欢简短的回答",
    "The user prefers dark mode in all editors",
)
MALFORMED = {"bad_arguments", "unknown_tool"}


def main() -> int:
    """Open a memory with the given model and store every fact; return 1 if no fact was stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base_url")
    parser.add_argument("model")
    parser.add_argument("--protocol", default="auto")
    parser.add_argument("--api-key-file")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        muniment.open(
            scratch,
            home=Path(scratch, "home"),
            model=options.model,
            base_url=options.base_url,
            protocol=options.protocol,
            api_key_file=options.api_key_file,
            on_model_failure="fail",  # Without this, the rules would hide failures of the model.
        ) as memory,
    ):
        print("turns  tokens in/out  seconds  malformed  outcome")
        results = [file_one(memory, fact) for fact in FACTS]
    filed = sum(result.status == "completed" for result in results)
    print(f"{filed} of {len(FACTS)} filed, {sum(result.seconds for result in results):.1f} s")
    return 0 if filed else 1


def file_one(memory: muniment.Memory, fact: str) -> RememberResult:
    """Remember a fact and print the cost: turns, tokens, seconds, malformed calls."""
    decisions: list[Any] = []
    result = memory.try_remember(RememberRequest(fact), observe=decisions.append)
    malformed = sum(decision.outcome.code in MALFORMED for decision in decisions)
    usage = [turn.usage for turn in result.timeline]
    tokens = f"{sum(each.input_tokens for each in usage)}/{sum(each.output_tokens for each in usage)}"
    outcome = result.summary if result.error is None else f"{result.error.code}: {result.error}"
    print(f"{result.turns:5}  {tokens:>13}  {result.seconds:7.2f}  {malformed:9}  {outcome}")
    return result


if __name__ == "__main__":
    try:
        sys.exit(main())
    except muniment.MunimentError as error:
        sys.exit(f"{error} [{error.code}]")
