"""What a run may do, as data that a person reviews: path grammar, patterns, verdicts, policy files.

Pure: values in, values out; only `family` and `lock` read, and only policy files that they are told to read;
and `lookalikes` its own table.

What a run needs:

- `grammar`: the one way from text to `CanonicalPath`. Start reading here.
- `pattern`: the dialect of `paths`, and its two matchers.
- `model`: the effective `Policy` that a run carries; `tables`: what may stand in a policy file.
- `decide`: (verb, path) → `Allow` or `Deny`.
- `meet`: how policies combine; the result grants no more than either.
- `load`: policy files → `Policy`, or `PolicyInvalid` and nothing runs; with `family` (files and parents),
  `checks` (inline tests), `selftest` (every deny fires) and `lock` (digests that were agreed on).

What a reviewer needs:

- `explain`: why one request is granted or denied.
- `diff`, `terms`: what one policy grants that another does not. `invariants`: sentences that must be true.
- `lint`: what looks wrong; `places`: on which line. `mutation`: what the inline tests would not notice.
- `alphabet`, `automaton`, `search`, `prover`: how all of these know, by a shortest path or by a proof.
- `schema`: the JSON Schema for editors.

What does not hold: nothing here knows whether a file of the memory exists or is a link, nor where a scope
lies on disk.
"""
