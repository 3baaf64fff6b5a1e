"""Public test support, for programs that embed Muniment, for its own tests, and for attacking memory tools.

For a model without a network start at `minds.ScriptedModel`, which follows a script; for a server of language
models at `chat_server`, which answers as a test wants, well or badly.

The attack kit can be turned on any tool that keeps files for a model. All of it builds throwaway trees, and
none of it shares code with what it attacks:

- `corpus`: attacks and ordinary calls as data. `load_corpus()` loads them, `run_case` executes one against a
  `Subject`, the small protocol that a tool has to be adapted to, and says what went wrong.
- `conformance`: the corpus pointed at memory tools: adapters for some, what each claims, an outcome a case.
- `race`: `Swap`, a second process that exchanges a directory or file with a link while the tool is at work.
- `witness`: a second opinion. `photograph` and `differences` tell what changed or was read in trees that
  nobody may touch, `sightings` where a secret came out.

No program imports any of it but `muniment conformance`. The checks of generated indexes need the extra
`testing`: `pip install 'muniment[testing]'`.
"""
