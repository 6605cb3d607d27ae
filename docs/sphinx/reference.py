"""Directives for pages of reference, which are made of the sources:

    ```{python-api} utracefs.export     the public names of a module (__all__), or the given ones,
                                       or all but the given ones (-NAME)
    ```{command-line} utracefs.cli:cli   the --help of each command

Docstrings are Markdown. Signatures come from the stub of a compiled module.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH = 100
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources_of(module: str) -> dict[str, Function | ast.ClassDef]:
    """The definitions of a module: of its stub, if it is compiled."""
    path = Path(str(importlib.import_module(module).__file__))
    if path.suffix != ".py":
        path = path.with_name(path.name.partition(".")[0] + ".pyi")
    tree = ast.parse(path.read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, (Function, ast.ClassDef))]
    return {node.name: node for node in reversed(found)} | {
        node.name: node for node in tree.body if isinstance(node, (Function, ast.ClassDef))
    }


def arguments(node: Function, is_method: bool) -> str:
    """As in the source, without self; the last of several overloads."""
    args = ast.arguments(
        posonlyargs=node.args.posonlyargs,
        args=node.args.args[1:] if is_method else node.args.args,
        vararg=node.args.vararg,
        kwonlyargs=node.args.kwonlyargs,
        kw_defaults=node.args.kw_defaults,
        kwarg=node.args.kwarg,
        defaults=node.args.defaults,
    )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(args)}){returns}".replace("'", "").replace('"', "")


def prose(made: Any, names: set[str]) -> list[str]:
    """A docstring as Markdown: lines that begin with a parameter or an exception become a list."""
    lines: list[str] = []
    in_item = False
    text = inspect.getdoc(made) or ""
    if text.startswith(f"{getattr(made, '__name__', None)}("):  # Cython's signature
        text = text.partition("\n")[2].strip()
    for line in text.splitlines():
        word, colon, _ = line.partition(": ")
        if colon and (word in names or re.fullmatch(r"\w+Error", word)):
            lines += [""] * bool(lines and lines[-1] and not in_item) + [
                "- " + escaped(line.replace(word, f"`{word}`", 1))
            ]
            in_item = True
        else:
            in_item = in_item and bool(line) and not line.startswith(" ")
            lines.append("  " * in_item + escaped(line))
    return lines


def escaped(line: str) -> str:
    """Outside of code `<` would begin a tag of HTML."""
    if line.startswith("    "):
        return line
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", line)
    )


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Public attributes of a class: name, type, and the text below."""
    for i, one in enumerate(node.body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            text = ""
            if i + 1 < len(node.body) and isinstance(below := node.body[i + 1], ast.Expr):
                text = inspect.cleandoc(str(ast.literal_eval(below.value)))
            if not one.target.id.startswith("_"):
                yield one.target.id, ast.unparse(one.annotation), text


def block(kind: str, head: str, body: list[str], depth: int) -> list[str]:
    fence = "`" * (9 - depth)
    return [f"{fence}{{py:{kind}}} {head}", *body, fence, ""]


def described(module: str, name: str) -> list[str]:
    """One public name."""
    made = getattr(importlib.import_module(module), name)
    home = getattr(made, "__module__", None) or module
    node = sources_of(home).get(name) if home.startswith("utracefs") else None
    full = f"{module}.{name}"
    if isinstance(node, Function):
        kind = "function" if inspect.isroutine(made) else "data"
        names = {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}
        return block(kind, full + arguments(node, False), prose(made, names), 0)
    if not isinstance(node, ast.ClassDef):
        value = f"\n:value: {made!r}" if isinstance(made, (int, str)) else ""
        return block("data", full + value, [], 0)
    body = prose(made, {n for n, _, _ in fields(node)} | set(dir(made)))
    for field, kind, text in fields(node):
        body += ["", *block("attribute", f"{full}.{field}\n:type: {kind}", ["", *text.splitlines()], 1)]
    head = full
    for one in node.body:
        if not isinstance(one, Function):
            continue
        if one.name == "__init__":
            head = full + arguments(one, True).removesuffix(" -> None")
        marks = {ast.unparse(mark) for mark in one.decorator_list}
        if one.name.startswith("_") or marks & {"overload", f"{one.name}.setter"}:
            continue
        about = [
            "",
            *prose(getattr(made, one.name, None), {a.arg for a in [*one.args.args, *one.args.kwonlyargs]}),
        ]
        if "property" in marks:
            type_ = f"\n:type: {ast.unparse(one.returns)}" if one.returns else ""
            body += ["", *block("property", f"{full}.{one.name}{type_}", about, 1)]
        else:
            shown = arguments(one, "staticmethod" not in marks)
            body += ["", *block("method", f"{full}.{one.name}{shown}", about, 1)]
    return block("class", head, ["", *body], 0)


class PythonApi(SphinxDirective):  # type: ignore[misc]
    """MODULE [NAME...] or MODULE [-NAME...]."""

    required_arguments = 1
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        given = " ".join(self.arguments[1:]).split()
        names = [name for name in given if not name.startswith("-")] or [
            name for name in importlib.import_module(module).__all__ if f"-{name}" not in given
        ]
        lines = [line for name in names for line in described(module, name)]
        made: list[nodes.Node] = self.parse_text_to_nodes("\n".join(lines))
        return made


def commands(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Each command's name and help."""
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if found := command.get_command(context, name):
                yield from commands(found, f"{path} {name}")


class CommandLine(SphinxDirective):  # type: ignore[misc]
    """MODULE:COMMAND."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].partition(":")
        lines = []
        for path, text in commands(getattr(importlib.import_module(module), name), module.partition(".")[0]):
            lines += [f"## {path}", "", "```text", text, "```", ""]
        made: list[nodes.Node] = self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)
        return made


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("python-api", PythonApi)
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
