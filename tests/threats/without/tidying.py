"""Without what keeps forget and dream from taking more than was meant."""

from threats.switches import instead, none, table, true


def _said_by_a_run(_words, after, _before):
    """The front matter of a run, with the end that its own text tells."""
    from datetime import UTC, datetime

    from muniment.content.entry import parse
    from muniment.content.expiry import find_end

    entry = parse(after)
    end = find_end(entry.body, datetime.now(UTC).date())
    return after if entry.has_end or not end else f"---\nends: {end}\n---\n{entry.body}".encode()


def _explicit_end(text):
    """The end that words say, as if a person had given it."""
    from muniment.content.expiry import End, find_end, local_day

    day = find_end(text, local_day())
    return None if day is None else End(day, is_explicit=True)


# fmt: off
table({
    "reads_as_before": ("An item is removed however the rest reads without it.", {
        "content.markdown:_reads_alike": true}),
    "significant_words": ("Every word of a query says something.", {
        "*content.words:significant": lambda query: tuple(query.split())}),
    "denials": ("What says that something is over is taken with what said that it was so.", {
        "*content.negation:ended": lambda *_: False, "*content.negation:denied": lambda *_: False}),
    "described_words": ("Whatever is near is what a description means.", {
        "content.description:DescribedWords.is_said_by": true}),
    "forget_limit": ("A forget removes whatever it finds.", {"operations.forget:_too_many": none}),
    "answer_between_options": ("A model's answer is taken for what it may have meant.", {
        "agent.questions:_numbers": lambda chosen, ids: sorted({ids.index(_) for _ in chosen if _ in ids})}),
    "dream_share": ("A dream changes as much as it likes.", {
        "operations.findings:Room.take": lambda _, wanted: wanted}),
    "words_of_the_entries": ("A model words the entries that it merges as it likes.", {
        "operations.dream:features": lambda _: frozenset(), "operations.dream:is_made_of": true,
        "operations.dream:_has_words_of": true}),
    "expiry_of_people": ("A run says when an entry ends.", {
        "operations.labels:FactWords.labelled": lambda _, after, __: after}),
    "inferred_ends": ("An end that words say hides and removes an entry.", {
        "operations.remember_job:find_text_end": _explicit_end}),
    "ends_of_people": ("A fact ends as whatever is written for it says.", {
        "operations.labels:FactWords.labelled": _said_by_a_run}),
})
# fmt: on


@instead("content.words:Vocabulary.holds")
def every_word(self, wanted):
    """One word of a query is enough to mean something."""
    return any(word in self.running or word in self.words for word in wanted)
