"""Without what keeps forget and dream from taking more than was meant."""

from __future__ import annotations

from threats.switches import Patches, control


@control()
def reads_as_before(off: Patches) -> None:
    """An item is removed however the rest reads without it."""
    off.put("muniment.content.markdown:_reads_alike", lambda *_: True)


@control()
def every_word(off: Patches) -> None:
    """One word of a query is enough to mean something."""

    def holds(self, wanted):  # type: ignore[no-untyped-def]
        return any(word in self.running or word in self.words for word in wanted)

    off.put("muniment.content.words:Vocabulary.holds", holds)


@control()
def significant_words(off: Patches) -> None:
    """Every word of a query says something."""
    off.everywhere("muniment.content.words:significant", lambda query: tuple(query.split()))


@control()
def forget_limit(off: Patches) -> None:
    """A forget removes whatever it finds."""
    off.put("muniment.jobs.forget:_too_many", lambda *_: None)


@control()
def answer_between_options(off: Patches) -> None:
    """A model's answer is taken for what it may have meant."""
    off.put(
        "muniment.agent.runner:_numbers",
        lambda chosen, ids: sorted({ids.index(each) for each in chosen if each in ids}),
    )


@control()
def dream_share(off: Patches) -> None:
    """A dream changes as much as it likes."""
    off.put("muniment.jobs.dream:Room.take", lambda _, wanted: wanted)


@control()
def words_of_the_entries(off: Patches) -> None:
    """A model words the entries that it merges as it likes."""
    off.put("muniment.jobs.dream:features", lambda _: frozenset())
    off.put("muniment.jobs.dream:is_made_of", lambda *_: True)


@control()
def expiry_of_people(off: Patches) -> None:
    """A run says when an entry ends."""
    off.put("muniment.jobs.remember:_FactWords.labelled", lambda _, after, __: after)
