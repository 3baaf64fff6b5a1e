"""A weak tool of `kit.corpus.naive` with the JSON lines protocol of `muniment tool`, as a separate program.

python weak_lines.py TOOL USER_ROOT PROJECT_ROOT
"""

import json
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[3]))
from kit.corpus import naive

MEMORY_BYTES = 1 << 31
"""Memory limit: a weak tool reads files of any size."""


def main(tool, user, project):
    roots = {"user": Path(user), "project": Path(project)}
    stage = SimpleNamespace(tree=roots["user"].parent, get_scope_path=roots.get)
    tools = getattr(naive, tool)(stage)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = tools.call(request["tool"], request["args"])
        except (AttributeError, TypeError) as error:
            answer = naive.CallResult("error", "bad_arguments", repr(error), "")
        response = {"verdict": answer.verdict, "code": answer.code, "text": answer.text}
        sys.stdout.write(f"{json.dumps(response)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    main(*sys.argv[1:])
