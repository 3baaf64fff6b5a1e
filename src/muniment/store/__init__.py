"""The broker's side of memory: judge a change set, commit it and index the result.

Start reading at `commit.py`: the steps of `commit` refer to the other modules. A worker never imports this
package.
"""
