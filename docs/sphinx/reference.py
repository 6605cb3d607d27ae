"""The pages of reference, docs/command-line.md and docs/python-api.md, which are made of the sources: `make
reference` writes them, and a test compares them. They are committed, so a forge and the site have the same text.

Docstrings are Markdown. Signatures come from the stub of a compiled module.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

DOCS = Path(__file__).resolve().parents[1]
MADE = "<!-- Made by `make reference`; edit the sources. -->"
API = {
    "Events": "utracefs -Recording -Record -attach -Stream -Batch -__version__",
    "Web applications with ASGI": "utracefs.asgi",
    "Web applications with WSGI": "utracefs.wsgi",
    "Recordings": "utracefs.recordings.recording open Recording Reading Record",
    "A file of a recording": "utracefs.recordings.recorded_file RecordedFile",
    "A running daemon": "utracefs attach Stream Batch",
    "Exports": "utracefs.export",
    "Columns of a recording": "utracefs.recordings.recording Batch",
    "The tree": "utracefs.tree.tracefs",
    "The daemon in a trio program": "utracefsd serve",
    "Options of the daemon": "utracefsd.daemon DaemonOptions",
    "Plug-ins of the daemon": "utracefsd.consumers.plugins.contract",
}
"""Title: a module, and its public names (__all__), or the given ones, or all but the given ones (-NAME)."""
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


def wrapped(lines: list[str]) -> list[str]:
    """With prose of at most WIDTH columns; code and tables are unchanged."""
    made: list[str] = []
    for line in [*lines, ""]:
        is_text = bool(line.strip()) and not line.startswith(("    ", "|", "`" * 3))
        if (
            is_text
            and made
            and made[-1]
            and not line.startswith("- ")
            and not made[-1].startswith(("    ", "|"))
        ):
            line = f"{made.pop()} {line.strip()}"
        made.append(line)
    return [
        part
        for line in made
        for part in (
            textwrap.wrap(
                line,
                WIDTH,
                subsequent_indent="  " * line.startswith("- "),
                break_long_words=False,
                break_on_hyphens=False,
            )
            if line.strip() and not line.startswith(("    ", "|"))
            else [line]
        )
    ]


def described(module: str, name: str) -> Iterator[str]:
    """One public name."""
    made = getattr(importlib.import_module(module), name)
    home = getattr(made, "__module__", None) or module
    node = sources_of(home).get(name) if home.startswith("utracefs") else None
    full = f"{module}.{name}"
    yield from [f'<a id="{full}"></a>', "", f"### {full}", ""]
    if isinstance(node, Function):
        names = {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}
        yield from ["```text", name + arguments(node, False), "```", "", *wrapped(prose(made, names))]
        return
    if not isinstance(node, ast.ClassDef):
        yield from [f"`{name} = {made!r}`" if isinstance(made, (int, str)) else f"`{name}`", ""]
        return
    for one in node.body:
        if isinstance(one, Function) and one.name == "__init__":
            signature = arguments(one, True).removesuffix(" -> None")
            yield from ["```text", f"{name}{signature}", "```", ""]
    yield from wrapped(prose(made, {n for n, _, _ in fields(node)} | set(dir(made))))
    items = list(fields(node))
    for one in node.body:
        if isinstance(one, Function) and "property" in map(ast.unparse, one.decorator_list):
            kind = ast.unparse(one.returns) if one.returns else "Any"
            items.append((one.name, kind, inspect.getdoc(getattr(made, one.name, None)) or ""))
    for field, kind, text in items:
        item = f'- <a id="{full}.{field}"></a>`{field}: {kind}`' + (": " if text else "")
        yield from wrapped([item + " ".join(escaped(line) for line in text.split("\n\n")[0].splitlines())])[
            :-1
        ]
    yield ""
    for one in node.body:
        marks = {ast.unparse(mark) for mark in one.decorator_list} if isinstance(one, Function) else set()
        if not isinstance(one, Function) or one.name.startswith("_"):
            continue
        if marks & {"overload", "property", f"{one.name}.setter"}:
            continue
        shown = arguments(one, "staticmethod" not in marks)
        yield from [f'<a id="{full}.{one.name}"></a>', "", "```text", f"{name}.{one.name}{shown}", "```", ""]
        names = {a.arg for a in [*one.args.args, *one.args.kwonlyargs]}
        yield from wrapped(prose(getattr(made, one.name, None), names))


def python_api() -> Iterator[str]:
    """docs/python-api.md."""
    yield from ["# Python API", "", MADE, ""]
    for title, about in API.items():
        yield from [f"## {title}", ""]
        module, *given = about.split()
        for name in [name for name in given if not name.startswith("-")] or [
            name for name in importlib.import_module(module).__all__ if f"-{name}" not in given
        ]:
            yield from described(module, name)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Each command with its name, in the order of the help."""
    context = command.make_context(
        path, [], resilient_parsing=True, max_content_width=WIDTH, terminal_width=WIDTH
    )
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if found := command.get_command(context, name):
                yield from commands(found, f"{path} {name}")


def all_commands() -> list[tuple[str, click.Command, click.Context]]:
    main, daemon = (
        getattr(importlib.import_module(module), name)
        for module, name in (("utracefs.cli", "cli"), ("utracefsd.main", "main"))
    )
    return [*commands(main, "utracefs"), *commands(daemon, "utracefsd")]


def letters() -> dict[str, dict[str, list[str]]]:
    """Letter: long option: commands that have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, command, context in all_commands():
        for option in command.get_params(context):
            short = [name for name in option.opts if len(name) == 2]
            long = next((name for name in option.opts if len(name) > 2), option.name or "")
            for letter in short if isinstance(option, click.Option) else ():
                found.setdefault(letter, {}).setdefault(long, []).append(path.partition(" ")[2])
    return dict(sorted(found.items()))


def command_line() -> Iterator[str]:
    """docs/command-line.md."""
    yield from ["# Command line", "", MADE, ""]
    yield from [
        "## Letters",
        "",
        "A letter means the same in all commands, as in perf, else in trace-cmd.",
        "",
    ]
    yield from ["| letter | option | commands |", "|---|---|---|"]
    for letter, options in letters().items():
        for long, names in options.items():
            where = "all" if letter == "-h" else ", ".join(names)
            yield f"| `{letter}` | `{long}` | {where} |"
    for path, command, context in all_commands():
        yield from ["", f"## {path}", "", "```text", *command.get_help(context).splitlines(), "```"]


PAGES = {"command-line.md": command_line, "python-api.md": python_api}


def main() -> None:
    for name in PAGES:
        (DOCS / name).write_text(page(name))


def page(name: str) -> str:
    text = "\n".join(line.rstrip() for line in PAGES[name]())
    return re.sub("\n{3,}", "\n\n", text).strip() + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--commands"]:  # for the manual pages of packages
        print(*(path for path, _, _ in all_commands() if path.startswith("utracefs ")), sep="\n")
    else:
        main()
