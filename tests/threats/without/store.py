"""Without what the store keeps of its own work."""

from __future__ import annotations

from threats.switches import Patches, control


@control()
def recovery(off: Patches) -> None:
    """What an interrupted commit left stays as it is."""
    off.everywhere("muniment.store.apply:take_back", lambda *_: None)


@control()
def capped_trust(off: Patches) -> None:
    """What a run writes has the trust of its request, whatever it was shown."""
    from muniment.store.trust import Ruling

    off.everywhere("muniment.store.trust:by_words", lambda _fact, request, _shown: lambda *_: Ruling(request))


@control()
def own_words(off: Patches) -> None:
    """Whatever a run writes is in the requester's words."""
    from muniment.content.provenance import Whose

    off.everywhere("muniment.content.provenance:whose", lambda *_: Whose.FACT)
    off.everywhere("muniment.content.provenance:is_made_of", lambda *_: True)


@control()
def code_names(off: Patches) -> None:
    """Titles and names are a run's own words."""
    off.put("muniment.jobs.remember:_FactWords.rename", lambda _, path, __: path.rel)
    off.put("muniment.jobs.remember:_FactWords.labelled", lambda _, after, __: after)


@control()
def ledger_trust(off: Patches) -> None:
    """An entry is trusted as it says of itself."""
    from muniment.content.entry import parse
    from muniment.names import Trust
    from muniment.store.rows import Assessed

    def assessing(*_):
        return lambda _rel, _digest, data: Assessed(Trust((parse(data).muniment or {}).get("trust", "owner")))

    off.everywhere("muniment.store.trust:assessing", assessing)


@control()
def no_write_up(off: Patches) -> None:
    """Any trust may replace and remove any other."""
    off.put("muniment.store.commit:reasons_for_review", lambda *_, **__: ())


@control()
def claimed_files(off: Patches) -> None:
    """A file is replaced whatever stands there."""
    off.put("muniment.confine.writing:Directory._require", lambda *_: None)
    off.put("muniment.store.judge:settle", lambda parts, *_: (tuple(range(len(parts))), ()))
    off.put("muniment.store.commit:settle", lambda parts, *_: (tuple(range(len(parts))), ()))


@control()
def kept_records(off: Patches) -> None:
    """Nothing is put on record."""
    off.everywhere("muniment.store.audit:append", lambda *_: None)


@control()
def held_files(off: Patches) -> None:
    """Nobody looks at files that somebody else wrote."""
    off.put("muniment.store.trust:held_for", lambda *_: None)


@control()
def held_rows(off: Patches) -> None:
    """What is held is told like anything else."""
    from dataclasses import replace

    def make(real):
        def row_of(rel, data, assess):
            answers = []

            def told(*asked):
                answers.append(assess(*asked))
                return replace(answers[0], held=None)

            row, words = real(rel, data, told)
            return row._replace(held=answers[0].held), words

        return row_of

    off.wrap("muniment.store.catalog:row_of", make)


@control()
def low_labels(off: Patches) -> None:
    """The index shows the words of entries of any trust."""
    off.put("muniment.store.index:_label", lambda row: "held" if row.held else "")


@control()
def chained_records(off: Patches) -> None:
    """Nobody looks at the chain of records."""
    from muniment.store.audit import Head, Verified

    off.everywhere("muniment.store.audit:verify", lambda *_, **__: Verified(0, (), Head(0, b"")))


class _Whatever:
    """Equal to everything."""

    def __eq__(self, _other):
        return True

    def __ne__(self, _other):
        return False

    __hash__ = None


@control()
def bound_approvals(off: Patches) -> None:
    """An approval is of whatever has the id."""
    off.put("muniment.store.review:Pending.digest", lambda *_: _Whatever())


@control()
def marked_lines(off: Patches) -> None:
    """The text of a review is shown as it is."""
    off.put("muniment.store.review:_diff", lambda _before, after: after)


@control()
def held_text(off: Patches) -> None:
    """Text of others is looked at by no gate."""
    off.everywhere("muniment.content.admission:held_for", lambda *_: None)


@control()
def overlaps(off: Patches) -> None:
    """An undo does not ask what became of its files since."""
    off.put("muniment.jobs.review:_is_as_left", lambda *_: True)
    off.everywhere("muniment.store.judge:settle", lambda parts, *_: (tuple(range(len(parts))), ()))


@control()
def one_review_a_task(off: Patches) -> None:
    """Whatever a task proposes waits, each for itself."""
    off.put("muniment.store.review:_compact", lambda _roots: "")


@control()
def capped_reviews(off: Patches) -> None:
    """Any number of reviews may wait."""
    off.put("muniment.store.review:_check_caps", lambda *_: None)


@control()
def told_as_it_is(off: Patches) -> None:
    """An error of an approval is told as if it had done nothing."""

    def failed(_state, _review, _task, problem):
        raise problem

    off.put("muniment.jobs.review:_approved_all_the_same", failed)


@control()
def waits_once(off: Patches) -> None:
    """Nobody asks whether a task waits already."""
    off.put("muniment.jobs.request:waiting_of", lambda *_: None)
