"""A bar for long work, on a terminal; anywhere else nothing at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show how far some work has come, on standard error while the block runs; gone afterwards.

    Args:
        what: is done, such as `importing`.
        total: how many steps it has; None: nobody knows.

    Yields:
        What is told how many more steps were done.

    Cost: elsewhere than on a terminal none; there `rich` is loaded, some 100 ms.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counted = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda steps: shown.advance(task, steps)
