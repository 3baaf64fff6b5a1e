"""Policy files: from the text that people write and review to the `Policy` that the kernel uses.

Pure: values in, values out. Exceptions: `family` reads policy files that the caller specifies, and `grammar`
reads its table. For the meaning of a policy, start at `muniment.kernel.decide`.

- `tables`: the valid content of a policy file, its line numbers, and how policies combine (`meet`).
- `pattern`: the dialect of `paths`, and pathspec's reading of a pattern.
- `family`: files, parents and locks. `load`: all of these → `Policy`, or `PolicyInvalid` and nothing runs.
- `automaton`: sets of paths, to find a shortest path in one or to prove it empty, used by `lab`.
- `grammar`: lookalikes of names, and targets of links. `frozen`: the base class of checked values.

Not guaranteed: these modules do not know whether a file of the memory exists or is a link, nor the directory
of a scope on disk.
"""
