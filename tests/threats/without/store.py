"""Without what the store keeps of its own work."""

from __future__ import annotations

from threats.switches import Patches, control


@control()
def recovery(off: Patches) -> None:
    """What an interrupted commit left stays as it is."""
    off.everywhere("muniment.store.takeback:take_back", lambda *_: None)


@control()
def capped_trust(off: Patches) -> None:
    """What a run writes has the trust of its request, whatever it was shown."""
    off.everywhere("muniment.store.trust:by_fact", lambda _fact, request, _shown: lambda *_: request)


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
    off.put("muniment.confine.landing:Directory._require", lambda *_: None)
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

    off.wrap("muniment.store.visit:row_of", make)


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
    off.put("muniment.store.preview:_diff", lambda _before, after: after)


@control()
def held_text(off: Patches) -> None:
    """Text of others is looked at by no gate."""
    off.everywhere("muniment.content.admission:held_for", lambda *_: None)


@control()
def overlaps(off: Patches) -> None:
    """An undo does not ask what became of its files since."""
    off.put("muniment.jobs.undo:_is_as_left", lambda *_: True)
    off.everywhere("muniment.store.judge:settle", lambda parts, *_: (tuple(range(len(parts))), ()))
