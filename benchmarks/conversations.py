"""Measure how often recall finds the evidence for a question about a long conversation.

    python benchmarks/conversations.py [FILE] [--by session] [--questions N]

Without FILE the conversations are generated (`dialogues.py`). FILE is one of two public sets, which are not
included: `locomo10.json` of LoCoMo, or a file of LongMemEval such as `longmemeval_s.json`. Every turn of a
conversation, or every session, becomes an entry of a throwaway memory. Every question is sent to the memory
of its conversation. No language model takes part.

R@5 and R@10 are the share of questions whose evidence is among the first 5 or 10 entries: `any` of it, or
`all` of it. Evidence is turns in LoCoMo, sessions in LongMemEval; an entry counts for every turn in it, and
for its session. Recall is silent if the memory has no entry about a question. In the first row that counts as
a miss; the second row has only the questions with a result. The third is plain full-text search of the same
memory: all words of a question joined by OR, bm25 with the same weights.

Not scored, as by its authors: questions without evidence in any turn, and questions of LongMemEval without an
answer (`…_abs`). For these the share with silent recall is printed.

Sources: Maharana et al., Evaluating Very Long-Term Conversational Memory of LLM Agents (2024); Wu et al.,
LongMemEval: Benchmarking Chat Assistants on Long-Term Interactive Memory (2025).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dialogues import CONVERSATIONS, generate_dialogues

from muniment.content.frontmatter import quote_scalar
from muniment.kernel.binding import bind
from muniment.kernel.names import Scope
from muniment.policy.load import load_policy
from muniment.recall.ranking import COLUMN_WEIGHTS
from muniment.recall.recaller import Recaller
from muniment.store.rows import normalize_for_index
from muniment.store.state import State
from muniment.store.upkeep import open_view

DEPTHS = (5, 10)
MOST_TOKENS = 1_000_000  # Limit of a result, so that no entry is left out.
MOST_NAME_CHARS = 80
NO_ANSWER = "_abs"
JSON_KINDS: Mapping[type, str] = {str: "text", list: "list", Mapping: "object"}
SCOPE = Scope("user")
PLAIN = f"""
    SELECT entry.rel FROM text CROSS JOIN entry ON entry.id = text.rowid
    WHERE text MATCH ? AND rank MATCH 'bm25({", ".join(map(str, COLUMN_WEIGHTS))})'
    ORDER BY rank LIMIT {max(DEPTHS)}
"""


class UnknownFormatError(Exception):
    """The format of a file is unknown; contains the reason."""


class Turn(NamedTuple):
    """The text of a turn, its id in the evidence, and a line with speaker and time."""

    id: str
    head: str
    text: str


class Question(NamedTuple):
    """A question, its kind, and its evidence; None: no evidence exists."""

    text: str
    kind: str
    evidence: frozenset[str] | None


class Conversation(NamedTuple):
    """Sessions of turns, and the questions about them."""

    sessions: Sequence[Sequence[Turn]]
    questions: Sequence[Question]


class Outcome(NamedTuple):
    """The result of a question: whether any and all of its evidence was found, at each of `DEPTHS`."""

    question: Question
    is_silent: bool
    scores: Sequence[bool]


class Memory:
    """The entries of one conversation, in a separate directory."""

    def __init__(self, base: Path, conversation: Conversation, by: str) -> None:
        (base / SCOPE).mkdir(mode=0o700)
        self.evidence: dict[str, frozenset[str]] = {}
        for session, turns in enumerate(conversation.sessions, 1):
            parts = [turns] if turns and by == "session" else [[turn] for turn in turns]
            for number, part in enumerate(parts, 1):
                rel = f"session-{session}/{number}.md"
                self.evidence[rel] = frozenset(turn.id for turn in part)
                path = base / SCOPE / rel
                path.parent.mkdir(mode=0o700, exist_ok=True)
                path.write_text(entry(part), encoding="utf-8", errors="replace")
        self._state, self._root = State(base / "state"), bind(SCOPE, base / SCOPE)
        policy = load_policy("strict")
        rows = open_view(self._state, self._root, policy).entries()
        self.withheld = sum(row.held is not None or not row.readable for row in rows)
        self._recaller = Recaller(policy, {SCOPE: self._root}, self._state)

    def recall(self, text: str) -> list[str]:
        """Return the entries that recall finds, the best first."""
        found = self._recaller.recall(text, limit=max(DEPTHS), budget=MOST_TOKENS)
        if found.error is not None:
            raise found.error
        return [each.path.removeprefix(f"{SCOPE}/") for each in found.entries]

    def search_plain(self, text: str) -> list[str]:
        """Return the entries that contain any word, the best first."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", normalize_for_index(text)))
        return [rel for (rel,) in self._state.catalog.rows(PLAIN, (words or '""',))]

    def score(self, question: Question, ask: Callable[[str], list[str]]) -> Outcome:
        """Return the result of a question with a search function."""
        found = [self.evidence[rel] for rel in ask(question.text)]
        scores: list[bool] = []
        for depth in DEPTHS:
            seen = frozenset[str]().union(*found[:depth])
            wanted = question.evidence or frozenset()
            scores += [bool(wanted & seen), wanted <= seen]
        return Outcome(question, not found, scores)

    def close(self) -> None:
        """Close the recaller and the state."""
        for each in (self._recaller, self._root, self._state):
            each.close()


def entry(turns: Sequence[Turn]) -> str:
    """Return the file of some turns."""
    text = "\n\n".join(turn.text if len(turns) == 1 else f"{turn.head}: {turn.text}" for turn in turns)
    return f"---\nname: {quote_scalar(turns[0].head[:MOST_NAME_CHARS])}\n---\n\n{text}\n"


def main() -> None:
    """Run the questions, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="locomo10.json, or a file of LongMemEval")
    parser.add_argument("--by", choices=("turn", "session"), default="turn", help="what becomes an entry")
    parser.add_argument("--questions", type=int, default=sys.maxsize, help="at most so many")
    arguments = parser.parse_args()
    try:
        found = list(read_conversations(arguments.file) if arguments.file else generate_conversations())
    except OSError as error:
        parser.error(f"{arguments.file}: {error.strerror or error}")
    except UnknownFormatError as error:
        parser.error(f"{arguments.file}: {error}")
    measure(found, arguments.by, arguments.questions)


def measure(found: Sequence[Conversation], by: str, most: int) -> None:
    """Run every question twice."""
    recall_outcomes, plain = list[Outcome](), list[Outcome]()
    held = entries = left_out = 0
    for conversation in found:
        asked = conversation.questions[: max(0, most - len(recall_outcomes))]
        left_out += sum(question.evidence == frozenset() for question in asked)
        with (
            TemporaryDirectory() as directory,
            closing(Memory(Path(directory).resolve(), conversation, by)) as memory,
        ):
            recall_outcomes += [memory.score(question, memory.recall) for question in asked]
            plain += [memory.score(question, memory.search_plain) for question in asked]
            entries += len(memory.evidence)
            held += memory.withheld
        if len(recall_outcomes) >= most:
            break
    print_table(recall_outcomes, plain)
    print(f"{entries} entries, each a {by}; {held} of them withheld by a gate, or unreadable")
    print(f"{left_out} questions skipped: no turn contains their evidence")


def print_table(recall_outcomes: Sequence[Outcome], plain: Sequence[Outcome]) -> None:
    """Print a line for each way and each kind of question."""
    heads = "".join(f"{f'R@{depth} any':>10}{'all':>8}" for depth in DEPTHS)
    print(f"{'':34}{'questions':>10}{'silent':>8}{heads}")
    scored = [each for each in recall_outcomes if each.question.evidence]
    print_line("recall", scored)
    print_line("  with a result", [each for each in scored if not each.is_silent])
    print_line("plain full-text search", [each for each in plain if each.question.evidence])
    for kind in sorted({each.question.kind for each in scored}):
        print_line(f"recall, {kind}", [each for each in scored if each.question.kind == kind])
    print_line(
        "recall, without an answer", [each for each in recall_outcomes if each.question.evidence is None]
    )


def print_line(what: str, outcomes: Sequence[Outcome]) -> None:
    """Print the results of some questions, if there are any."""
    if outcomes:
        silent = sum(each.is_silent for each in outcomes) / len(outcomes)
        shares = [
            sum(column) / len(outcomes) for column in zip(*(each.scores for each in outcomes), strict=True)
        ]
        has_answer = outcomes[0].question.evidence is not None
        scores = "".join(f"{share:{width}.3f}" for share, width in zip(shares, (10, 8, 10, 8), strict=True))
        print(f"{what:34}{len(outcomes):10}{silent:8.3f}{scores if has_answer else ''}")


def read_conversations(file: Path) -> Iterator[Conversation]:
    """Yield the conversations of a file.

    Raises:
        UnknownFormatError: it is from neither set.
        OSError: it cannot be read.
    """
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise UnknownFormatError(f"invalid JSON: {error}") from None
    samples = found if isinstance(found, list) else []
    first = samples[0] if samples and isinstance(samples[0], Mapping) else {}
    readers = {"conversation": parse_locomo, "haystack_sessions": parse_longmemeval}
    reader = next((reader for key, reader in readers.items() if key in first), None)
    if reader is None:
        raise UnknownFormatError(f"not a list of objects with one of the keys {', '.join(readers)}")
    for number, sample in enumerate(samples):
        yield reader(sample, f"item {number}")


def generate_conversations(count: int = CONVERSATIONS) -> Iterator[Conversation]:
    """Yield generated conversations."""
    for sessions, asked in generate_dialogues(count):
        yield Conversation(
            [[Turn(*each) for each in turns] for turns in sessions],
            [Question(each.text, "generated", frozenset({each.evidence})) for each in asked],
        )


def parse_locomo(sample: Any, where: str) -> Conversation:
    """Return a conversation of LoCoMo."""
    conversation = part(sample, "conversation", Mapping, where)
    numbers = sorted(
        int(found[1]) for key in conversation if (found := re.fullmatch(r"session_([0-9]+)", key))
    )
    sessions = []
    for number in numbers:
        date, turns = conversation.get(f"session_{number}_date_time", ""), []
        for turn in part(conversation, f"session_{number}", list, where):
            location = f"session_{number} of {where}"
            id_ = next(iter(parse_turn_ids(part(turn, "dia_id", str, location))), "")
            speaker, text = part(turn, "speaker", str, location), part(turn, "text", str, location)
            caption = f" (image: {turn['blip_caption']})" if turn.get("blip_caption") else ""
            turns.append(Turn(id_, f"{speaker}, {date}", text + caption))
        sessions.append(turns)
    known = {turn.id for turns in sessions for turn in turns}
    questions = [
        Question(
            part(asked, "question", str, f"qa of {where}"),
            f"category {asked.get('category')}",
            parse_turn_ids(json.dumps(asked.get("evidence"))) & known,
        )
        for asked in part(sample, "qa", list, where)
    ]
    return Conversation(sessions, questions)


def parse_turn_ids(evidence: str) -> frozenset[str]:
    """Return the ids of turns in a text; some are joined or misspelt: `D8:6; D9:17`, `D:11:26`."""
    return frozenset(f"{int(a)}:{int(b)}" for a, b in re.findall(r"D:?([0-9]+):([0-9]+)", evidence))


def parse_longmemeval(sample: Any, where: str) -> Conversation:
    """Return the conversation around one question of LongMemEval."""
    ids = part(sample, "haystack_session_ids", list, where)
    dates = sample.get("haystack_dates") or [""] * len(ids)
    sessions = part(sample, "haystack_sessions", list, where)
    if not len(ids) == len(dates) == len(sessions) or not all(isinstance(turns, list) for turns in sessions):
        raise UnknownFormatError(f"{where} has not a date and a list of turns for each id of a session")
    parsed = [
        [
            Turn(str(id_), f"{part(turn, 'role', str, where)}, {date}", part(turn, "content", str, where))
            for turn in turns
        ]
        for id_, date, turns in zip(ids, dates, sessions, strict=True)
    ]
    known = {turn.id for turns in parsed for turn in turns}
    has_answer = not part(sample, "question_id", str, where).endswith(NO_ANSWER)
    evidence = known.intersection(map(str, part(sample, "answer_session_ids", list, where)))
    question = Question(
        part(sample, "question", str, where),
        str(sample.get("question_type", "of any kind")),
        frozenset(evidence) if has_answer else None,
    )
    return Conversation(parsed, [question])


def part(of: Any, key: str, kind: type, where: str) -> Any:
    """Return the value of an object under a key.

    Raises:
        UnknownFormatError: missing, or of another type.
    """
    if not isinstance(of, Mapping) or not isinstance(of.get(key), kind):
        raise UnknownFormatError(f"{where} has no {JSON_KINDS[kind]} {key!r}")
    return of[key]


if __name__ == "__main__":
    main()
