"""Policy files: from the text that people write and review to the `Policy` that the kernel uses.

Start at `muniment.kernel.decide` to learn what a policy means. These modules compute values from values, with
few exceptions: `files` reads policy files that the caller specifies, `grammar` reads its table, `ownership`
examines files, and `signatures` runs ssh-keygen.

- `tables`: the valid content of a policy file, its line numbers, and how policies combine (`meet`).
- `pattern`: the dialect of `paths`, and a check that pathspec reads a pattern in the same way.
- `files`: one policy file. `family`: a file with its parents, and locks (`policy.lock`).
- `load`: builds a `Policy` from these files, or raises `PolicyInvalid`, and then nothing runs.
- `shipped`: loads policies, and the shipped ones from their normal form.
- `automaton`: sets of paths, to find a shortest path in one or to prove it empty, used by `load` and `lab`.
- `grammar`: lookalikes of names, and targets of links. `frozen`: the base class of checked values.
- `ownership`: checks who may write a policy file. `signatures`: signed policies. `platforms`: systems on
  which a policy can be applied.

Not guaranteed: these modules do not know whether a file of the memory exists or is a link, nor the directory
of a scope on disk.
"""
