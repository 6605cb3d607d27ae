"""The stub of each compiled module: a .pyi beside the .pyx, for mypy, pyright and editors. `make build` writes them.

    python stubs.py      writes each stub that is older than its source

Cython's parser reads the .pyx and its .pxd. A parameter, result or attribute has the type that Python sees of its C
type; where that says too little, the .pyx has one:

    def cut(self, StreamRing ring: StreamRing, room: int) -> list[bytes]     an annotation, which Cython ignores
    cdef readonly dict comms  #: dict[int, str]  # a comment     where Cython takes none: an attribute, a constant
    cpdef begin(self, Open one):  #: None                        and the result of a cpdef function
    #: from utracefs_protocol.events.declaration import Field    a name that the .pyx itself does not import
    cdef class Span:  #: Generic[Begin, End]                     base classes that only types have
        #: @overload                                             in a class: lines for what the parser does not see
"""

from __future__ import annotations

import builtins
import collections.abc
import itertools
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from Cython.CodeWriter import ExpressionWriter
from Cython.Compiler import ExprNodes, Nodes
from Cython.Compiler.TreeFragment import parse_from_strings

ROOT = Path(__file__).parent
FOLDERS = ["protocol", "client", "daemon"]
RESULTS = {"__init__": "None", "__len__": "int", "__bool__": "bool", "__iter__": "Self", "__repr__": "str"}
NOT_IN_A_STUB = {"__cinit__", "__dealloc__", "__getbuffer__", "__releasebuffer__", "__hash__"}
LITERALS = (ExprNodes.NoneNode, ExprNodes.BoolNode, ExprNodes.IntNode)
PYTHON_TYPES = {
    "bint": "bool", "double": "float", "float": "float", "void": "None", "object": "", None: "", "bytearray": "bytearray",
    "bytes": "bytes", "str": "str", "list": "list", "dict": "dict", "tuple": "tuple", "set": "set",
}  # fmt: skip


def source_of(node: Any) -> str:
    """An expression as Python text."""
    return str(ExpressionWriter().write(getattr(node, "expr", node))) if node is not None else ""


def classes_in(text: str) -> set[str]:
    return set(re.findall(r"^(?:cdef )?class (\w+)", text, re.MULTILINE))


def classes_of(module: str) -> set[str]:
    """The names of `from module cimport *`."""
    declared = [ROOT / folder / f"{module.replace('.', '/')}.pxd" for folder in FOLDERS]
    (path,) = filter(Path.exists, declared)
    return classes_in(path.read_text())


def statements(node: Any) -> list[Any]:
    return list(node.stats) if isinstance(node, Nodes.StatListNode) else [node]


class Stub:
    """The text of one stub, from the module's .pxd, if it has one, and its .pyx."""

    def __init__(self, path: Path) -> None:
        self.classes: dict[str, tuple[str, list[str]]] = {}  # head and members of each, in order
        self.lines: list[str] = []
        self.known: set[str] = set()  # classes, before they are read
        self.imports: dict[str, str] = {}
        self.taken: list[str] = []
        for source in (path.with_suffix(".pxd"), path):
            if source.exists():
                self.read(source)

    def read(self, path: Path) -> None:
        text = path.read_text()
        self.source = text.splitlines()
        self.taken += [line[3:] for line in self.source if line.startswith("#: ")]
        self.known |= classes_in(text)
        level = "module_pxd" if path.suffix == ".pxd" else "module"
        for node in statements(parse_from_strings(str(path), text, level=level).body):
            self.add(node)

    def add(self, node: Any) -> None:
        match node:
            case Nodes.FromCImportStatNode() if node.module_name.startswith("utracefs"):
                for _, name, as_name in node.imported_names:
                    for each in classes_of(node.module_name) if name == "*" else {as_name or name}:
                        self.imports[each] = f"from {node.module_name} import {each}"
            case Nodes.FromImportStatNode():
                for name, _ in node.items:
                    self.imports[name] = f"from {node.module.module_name.value} import {name}"
            case Nodes.CEnumDefNode():
                if node.create_wrapper:
                    members = [f"{item.name}: ClassVar[Self]" for item in node.items]
                    self.classes[node.name] = (f"class {node.name}(int)", members)
            case Nodes.CClassDefNode() | Nodes.PyClassDefNode():
                self.add_class(node)
            case Nodes.SingleAssignmentNode() if self.said_at(node.lhs.pos[1]):
                self.lines.append(f"{node.lhs.name}: {self.said_at(node.lhs.pos[1])}")
            case _:
                self.lines += self.function(node)

    def add_class(self, node: Any) -> None:
        name = getattr(node, "class_name", None) or node.name
        if name.startswith("_"):
            return
        line = next(i for i in range(node.pos[1], len(self.source) + 1) if "class " in self.source[i - 1])
        bases = source_of(getattr(node, "bases", None)).strip("(),") or self.said_at(line)
        _, members = self.classes.setdefault(name, ("", []))
        inside = itertools.takewhile(lambda text: not text or text[0] == " ", self.source[line:])
        given = [text[7:] for text in inside if text.startswith("    #: ")]
        members += given
        self.classes[name] = (f"class {name}" + (f"({bases})" if bases else ""), members)
        body = statements(node.body)
        has_init = any("def __new__(" in text for text in given) or any(
            isinstance(each, Nodes.DefNode) and each.name == "__init__" for each in body
        )
        for each in body:
            if isinstance(each, Nodes.CVarDefNode) and each.visibility in ("public", "readonly"):
                kind = self.said_at(each.pos[1]) or self.python_type(each.base_type.name) or "object"
                members += [f"{declared.name}: {kind}" for declared in each.declarators]
            elif getattr(each, "name", "") == "__cinit__" and not has_init:
                each.name = "__init__"
            if f"def {getattr(each, 'name', '')}(" not in "\n".join(given):
                members += self.function(each, is_method=True)

    def said_at(self, line: int) -> str:
        """The type in the comment of a line."""
        found = re.search(r"#: (.*?)(?:  # .*)?$", self.source[line - 1])
        return found[1] if found else ""

    def python_type(self, name: str | None) -> str:
        if name in PYTHON_TYPES:
            return PYTHON_TYPES[name]
        if name in self.known or (name in self.imports and name[:1].isupper()):
            return str(name)
        return "int"

    def function(self, node: Any, is_method: bool = False) -> Iterator[str]:
        if isinstance(node, Nodes.DefNode):
            name, result = node.name, source_of(node.return_type_annotation)
            args, decorators = node.args, node.decorators or []
        elif isinstance(node, Nodes.CFuncDefNode) and node.overridable:
            name, result = node.declarator.base.name, self.said_at(node.pos[1])
            result = result or self.python_type(node.base_type.name)
            args, decorators = node.declarator.args, []
        else:
            return
        if name in NOT_IN_A_STUB or (name.startswith("_") and not (result or name in RESULTS)):
            return
        for decorator in decorators:
            yield f"@{source_of(decorator.decorator)}"
            if decorator.decorator.is_attribute and decorator.decorator.attribute == "setter":
                result = "None"
        result = result or RESULTS.get(name, "")
        is_static = any(source_of(each.decorator) == "staticmethod" for each in decorators)
        texts = self.parameters(node, args, is_method and not is_static)
        yield f"def {name}({', '.join(texts)})" + (f" -> {result}" if result else "") + ": ..."

    def parameters(self, node: Any, args: list[Any], is_method: bool) -> Iterator[str]:
        star, double_star = getattr(node, "star_arg", None), getattr(node, "starstar_arg", None)
        keywords = getattr(node, "num_kwonly_args", 0)
        positional_only = getattr(node, "num_posonly_args", 0)
        for i, arg in enumerate(args):
            if i == len(args) - keywords:
                yield self.starred("*", star) if star else "*"
            yield self.parameter(arg, is_self=is_method and i == 0)
            if i + 1 == positional_only:
                yield "/"
        if star and not keywords:
            yield self.starred("*", star)
        if double_star:
            yield self.starred("**", double_star)

    def starred(self, stars: str, arg: Any) -> str:
        return f"{stars}{arg.name}" + (f": {source_of(arg.annotation)}" if arg.annotation else "")

    def parameter(self, arg: Any, is_self: bool) -> str:
        name, kind = arg.declarator.name, arg.base_type.name
        if not name:  # without a type the parser takes the name for one
            name, kind = kind, None
        kind = source_of(arg.annotation) or self.python_type(kind)
        default = source_of(arg.default) if isinstance(arg.default, LITERALS) else "..."
        if is_self or not kind:
            return f"{name}={default}" if arg.default else str(name)
        if default == "None" and "None" not in kind:
            kind += " | None"
        return f"{name}: {kind}" + (f" = {default}" if arg.default else "")

    def text(self, path: Path) -> str:
        lines = list(self.lines)
        for head, members in self.classes.values():
            lines += [f"{head}: ...", ""] if not members else [f"{head}:", *(f"    {m}" for m in members), ""]
        used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", "\n".join([*lines, *self.taken])))
        imports = {self.imported(name) for name in used} - {""}
        return "\n".join(
            [f"# Made by stubs.py of {path.name}.", *sorted(imports), *self.taken, "", *lines, ""]
        )

    def imported(self, name: str) -> str:
        if name in self.known or any(
            re.search(rf"import .*\b{name}\b|^{name}\b", line) for line in self.taken
        ):
            return ""
        if name in self.imports:
            return self.imports[name]
        for module in (collections.abc, typing):
            if name in module.__all__:
                return f"from {module.__name__} import {name}"
        return f"import {name}" if name in sys.stdlib_module_names and not hasattr(builtins, name) else ""


def write_stubs(into: Path | None = None) -> None:
    """Write the stubs of all modules beside their sources; or below `into`, a folder of packages."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.pyx")):
            stub = path.with_suffix(".pyi")
            if into:
                stub = into / stub.relative_to(ROOT / folder)
            sources = [path, path.with_suffix(".pxd"), Path(__file__)]
            newest = max(source.stat().st_mtime for source in sources if source.exists())
            if not stub.exists() or stub.stat().st_mtime < newest:
                stub.parent.mkdir(parents=True, exist_ok=True)
                stub.write_text(Stub(path).text(path))


if __name__ == "__main__":
    write_stubs()
