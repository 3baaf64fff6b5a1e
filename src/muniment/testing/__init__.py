"""Public test support: for programs that embed Muniment, for its own tests, and for attacks on memory tools.

`scripted_models.ScriptedModel` is a model without a network that follows a script. `chat_server` is a server
for chat completions that responds as a test requires, correctly or not.

The attack kit works against any tool that stores files for a model. It builds throwaway trees and shares no
code with the tool under test:

- `corpus`: attacks and ordinary calls as data. `load_corpus` loads them. `run_case` executes one of them
  against a `Subject`, a small adapter for the tool under test, and returns the failures.
- `conformance`: runs the corpus against memory tools. It contains adapters and the claims of each tool, and
  returns one outcome for each case.
- `race`: `Swap`, a second process that exchanges a directory or file with a link during a call.
- `snapshots`: an independent check. `take_snapshot` and `compare_snapshots` find changes and reads in trees
  that must not be touched; `find_text` finds a secret in outputs.

Only `muniment conformance` imports these modules at run time. The checks of generated indexes need the extra
`testing`: `pip install 'muniment[testing]'`.
"""
