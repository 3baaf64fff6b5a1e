"""Policy files, from what a person wrote and reviews to the `Policy` that the kernel decides by.

Pure: values in, values out; only `family` reads, and only policy files that it is told to read; and `grammar`
its own table. What a policy means is `muniment.kernel.decide`: start reading there.

- `tables`: what may stand in a policy file, on which line, and how policies combine (`meet`).
- `pattern`: the dialect of `paths`, and what pathspec says to a pattern.
- `family`: files, parents and locks. `load`: all of these → `Policy`, or `PolicyInvalid` and nothing runs.
- `automaton`: sets of paths, to find a shortest path in or to prove that there is none, which `lab` does.
- `grammar`: lookalikes of names, and where links lead. `frozen`: what checked values have in common.

What does not hold: nothing here knows whether a file of the memory exists or is a link, nor where a scope
lies on disk.
"""
