"""Forget and dream without the limits on removal."""

from threats.switches import instead, none, table, true


def _said_by_a_run(_words, after, _before):
    """Accept the end date in a run's own text."""
    from datetime import UTC, datetime

    from muniment.content.entry import parse
    from muniment.content.expiry import find_end

    entry = parse(after)
    end = find_end(entry.body, datetime.now(UTC).date())
    return after if entry.has_end or not end else f"---\nends: {end}\n---\n{entry.body}".encode()


def _explicit_end(text):
    """Treat an inferred end date as one given by a person."""
    from muniment.content.expiry import End, find_end, local_day

    day = find_end(text, local_day())
    return None if day is None else End(day, is_explicit=True)


# fmt: off
table({
    "reads_as_before": ("Remove an item without checking the remaining text.", {
        "content.markdown:_reads_alike": true}),
    "significant_words": ("Count every word of a query.", {
        "*content.words:significant": lambda query: tuple(query.split())}),
    "denials": ("Remove an entry that denies a fact together with the fact.", {
        "*content.negation:ended": lambda *_: False, "*content.negation:denied": lambda *_: False}),
    "described_words": ("Accept similar entries as matches of a description.", {
        "content.description:DescribedWords.is_said_by": true}),
    "forget_limit": ("Let a forget remove any number of entries.", {"operations.forget:_too_many": none}),
    "answer_between_options": ("Guess the meaning of a model's response.", {
        "agent.questions:_numbers": lambda chosen, ids: sorted({ids.index(_) for _ in chosen if _ in ids})}),
    "dream_share": ("Let a dream change any share of a scope.", {
        "operations.findings:Room.take": lambda _, wanted: wanted}),
    "words_of_the_entries": ("Let a model rewrite the entries that it merges.", {
        "operations.dream:features": lambda _: frozenset(), "operations.dream:is_made_of": true,
        "operations.dream:_has_words_of": true}),
    "expiry_of_people": ("Let a run set the end date of an entry.", {
        "operations.labels:FactWords.labelled": lambda _, after, __: after}),
    "inferred_ends": ("Hide and remove entries by inferred end dates.", {
        "operations.remember_job:find_text_end": _explicit_end}),
    "ends_of_people": ("Use the end date of the text written for a fact.", {
        "operations.labels:FactWords.labelled": _said_by_a_run}),
})
# fmt: on


@instead("content.words:Vocabulary.holds")
def every_word(self, wanted):
    """Accept one matching word of a query."""
    return any(word in self.running or word in self.words for word in wanted)
