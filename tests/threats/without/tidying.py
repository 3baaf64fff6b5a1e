"""Switch off the limits of forget and dream."""

from threats.switches import add_controls, do_nothing, replace_target, return_true


def _label_by_run(_labels, after, _before):
    """Return the front matter of a run, with the expiry in its own text."""
    from datetime import UTC, datetime

    from muniment.content.entry import parse
    from muniment.content.expiry import find_end

    entry = parse(after)
    end = find_end(entry.body, datetime.now(UTC).date())
    return after if entry.has_end_date or not end else f"---\nends: {end}\n---\n{entry.body}".encode()


def _make_explicit_end(text):
    """Return the expiry in a text as if a person had set it."""
    from muniment.content.expiry import End, compute_local_day, find_end

    day = find_end(text, compute_local_day())
    return None if day is None else End(day, is_explicit=True)


# fmt: off
add_controls({
    "unchanged_rest": ("An item is removed even if the rest then reads differently.", {
        "content.markdown:_has_same_blocks": return_true}),
    "significant_words": ("Every word of a query is significant.", {
        "*content.words:find_significant_words": lambda query: tuple(query.split())}),
    "denials": ("A statement that something is over counts as the same as the original statement.", {
        "*content.negation:is_ended": lambda *_: False, "*content.negation:is_denied": lambda *_: False}),
    "described_words": ("Any near entry matches a description.", {
        "content.description:DescribedWords.is_contained_in": return_true}),
    "forget_limit": ("A forget may remove any number of entries.", {
        "operations.forget:_find_excess": do_nothing}),
    "answer_between_options": ("A model's answer may be partly invalid.", {
        "agent.questions:_parse_ids":
            lambda chosen, ids: sorted({ids.index(_) for _ in chosen if _ in ids})}),
    "dream_share": ("A dream may change any number of entries.", {
        "operations.findings:ChangeAllowance.reserve": lambda _, wanted: wanted}),
    "words_of_the_entries": ("A model may add words to merged entries.", {
        "operations.dream:extract_features": lambda _: frozenset(),
        "operations.dream:consists_of": return_true,
        "operations.dream:_contains_words": return_true}),
    "expiry_of_people": ("A run may set the expiry of an entry.", {
        "operations.labels:FactLabels.add_labels": lambda _, after, __: after}),
    "inferred_ends": ("An expiry inferred from words hides and removes an entry.", {
        "operations.remember_job:find_text_end": _make_explicit_end}),
    "ends_of_people": ("Text of a run sets the expiry of a fact.", {
        "operations.labels:FactLabels.add_labels": _label_by_run}),
})
# fmt: on


@replace_target("content.words:Vocabulary.contains_all")
def every_word(self, wanted):
    """One matching word of a query is enough."""
    return any(word in self.unspaced or word in self.words for word in wanted)
