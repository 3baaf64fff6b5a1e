"""docs/messages.md: every text that the program can show, log or send to a model, for review.

PYTHONPATH=tests python -m kit.messages_page
"""

import ast
import re
from html.parser import HTMLParser

from kit.locations import REPOSITORY

PACKAGE = REPOSITORY / "src" / "muniment"
PAGE = REPOSITORY / "docs" / "messages.md"
COMMAND = "PYTHONPATH=tests python -m kit.messages_page"
PROMPTS = ("agent/", "integrations/", "recall/subagent.py")
"""Where texts for models are written."""
OUTPUTS = {"echo", "print", "write_line", "log_message", "track_progress"}
TEMPLATES = ("server/page/templates/*.html", "server/page/static/*.js")
HEAD = f"""# Messages

This page lists every text that Muniment can raise, print, log, show on its page or send to a model.
Use it to review wording. It is generated; do not edit it: `{COMMAND}`.

- `{{name}}` represents a value that the program fills in.
- *error*: raised or returned as a problem. *help*: help of a command or option. *log*: name of a log event.
- *output*: printed. *page*: a label of the web page. *prompt*: read by a model. *text*: part of one of these.
"""


def fill(node):
    """Return a string or an f-string as text, with its values as `{source}`; None if it is neither."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            parts = [
                value.value if isinstance(value, ast.Constant) else "{" + ast.unparse(value.value) + "}"
                for value in values
            ]
            return "".join(parts)
    return None


def is_message(text):
    """Return True if a text is for a person or a model, not SQL, a pattern, a path, a format or a list."""
    words = re.findall(r"[A-Za-z]{2,}", text)
    is_code = re.search(
        r"\b(SELECT|INSERT|UPDATE|DELETE FROM|CREATE|PRAGMA|BEGIN|JOIN|WHERE|ORDER BY)\b", text
    )
    is_list = text.startswith("\n") or re.search(r"\w=\d+ \w+=\d", text)
    is_pattern = re.search(r"\(\?|\\[bdwsx]", text)
    return " " in text.strip() and len(words) > 1 and not (is_code or is_list or is_pattern)


def call_name(node):
    function = node.func
    return getattr(function, "id", getattr(function, "attr", ""))


class Collector(ast.NodeVisitor):
    """Collect (kind, text) of one module in the order of its source."""

    def __init__(self, module):
        self.rows = []
        self.default = "prompt" if module.startswith(PROMPTS) else "text"
        self.kind = self.default
        self.is_cli = module.startswith("cli/")

    def visit_within(self, node, kind):
        before, self.kind = self.kind, kind
        self.generic_visit(node)
        self.kind = before

    def visit_definition(self, node):
        body = node.body
        document = ast.get_docstring(node)
        is_command = self.is_cli and any("command" in ast.unparse(item) for item in node.decorator_list)
        if document and is_command:
            self.rows.append(("help", document.split("\f")[0]))
        for item in (*node.decorator_list, getattr(node, "args", None), *body[bool(document) :]):
            if item is not None:
                self.visit(item)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_definition  # noqa: N815

    def visit_Module(self, node):
        for item in node.body[bool(ast.get_docstring(node)) :]:
            self.visit(item)

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # the docstring of an attribute
            self.generic_visit(node)

    def visit_AnnAssign(self, node):
        for item in (node.target, node.value):
            if item is not None:
                self.visit(item)

    def visit_Raise(self, node):
        self.visit_within(node, "error")

    def visit_keyword(self, node):
        is_help = node.arg in {"help", "epilog", "short_help", "description"}
        self.visit_within(node, "help" if is_help and self.kind != "error" else self.kind)

    def visit_Call(self, node):
        name = call_name(node)
        text = fill(node.args[0]) if node.args else None
        if name == "emit" and text:
            self.rows.append(("log", text))
        elif name in OUTPUTS:
            self.visit_within(node, "output")
        elif re.search(r"(Error|Problem|Refusal|Rejected|Invalid|Unavailable)$", name):
            self.visit_within(node, "error")
        else:
            self.generic_visit(node)

    def visit_Constant(self, node):
        self.add(node)

    def visit_JoinedStr(self, node):
        self.add(node)
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value)

    def add(self, node):
        text = fill(node)
        if text is not None and is_message(text):
            self.rows.append((self.kind, text))


class Labels(HTMLParser):
    """Collect the text of a template, without its markup and statements."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def handle_data(self, data):
        self.texts += [text for text in re.split(r"\{%.*?%\}|\n", data) if is_label(text)]

    def handle_starttag(self, _tag, attrs):
        self.texts += [
            value for name, value in attrs if name in {"title", "placeholder", "aria-label"} and value
        ]


def is_label(text):
    return re.search(r"[A-Za-z]{2,}", re.sub(r"\{\{.*?\}\}", "", text)) is not None


def collect():
    """Yield (module, kind, text) of every message, without repetitions."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        collector = Collector(module)
        collector.visit(ast.parse(path.read_text(encoding="utf-8")))
        for kind, text in dict.fromkeys(collector.rows):
            yield module, kind, text
    for path in sorted(item for pattern in TEMPLATES for item in PACKAGE.glob(pattern)):
        if path.suffix == ".html":
            labels = Labels()
            labels.feed(path.read_text(encoding="utf-8"))
            for text in dict.fromkeys(labels.texts):
                yield path.relative_to(PACKAGE).as_posix(), "page", text


def cell(text):
    return re.sub(r"\s+", " ", text).strip().replace("`", "'").replace("|", "\\|").replace("](", "]\\(")


def page():
    """Return the page as it should be."""
    lines = [HEAD]
    last = ""
    for module, kind, text in collect():
        if module != last:
            lines += [f"\n## {module}\n", "| kind | text |", "| --- | --- |"]
            last = module
        lines.append(f"| {kind} | {cell(text)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
