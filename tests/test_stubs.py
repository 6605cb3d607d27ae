"""A stub has the same names and parameters as its compiled module."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STUBS = sorted(path for folder in ("protocol", "client", "daemon") for path in (ROOT / folder).rglob("*.pyi"))
SOURCES = sorted(
    path for folder in ("protocol", "client", "daemon") for path in (ROOT / folder).rglob("*.pyx")
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


def names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that a stub declares at one level. A bare assignment or a TypeAlias is a name for a type."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, node)  # a property, before its setter
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if ast.unparse(node.annotation) == "TypeAlias":
                continue
            found[node.target.id] = node
    return found


def is_property(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) or (
        isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "property" for d in node.decorator_list)
    )


def own(members: dict[str, object], module: str) -> set[str]:
    """The public names made here, not imported."""
    return {
        name
        for name, value in members.items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", module) == module
    }


def parameters(node: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """(name, kind, has a default) of each parameter."""
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    defaults = len(plain) - len(args.defaults)
    found = [(arg.arg, "plain", i >= defaults) for i, arg in enumerate(plain)]
    if args.vararg:
        found.append((args.vararg.arg, "*", False))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append((arg.arg, "keyword", default is not None))
    if args.kwarg:
        found.append((args.kwarg.arg, "**", False))
    return found


_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "plain",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "plain",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def runtime_parameters(function: object) -> list[tuple[str, str, bool]]:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    return [
        (p.name, _KINDS[p.kind], p.default is not inspect.Parameter.empty)
        for p in signature.parameters.values()
    ]


def init_parameters(cls: type) -> list[str] | None:
    """The names in the first line of a compiled class' docstring: its constructor's, added by Cython."""
    first = (cls.__doc__ or "").splitlines()[0]
    if not first.startswith(cls.__name__ + "("):
        return None
    declared = ast.parse(
        "def f(" + _without_c_types(first[len(cls.__name__) + 1 : first.rindex(")")]) + "): ..."
    ).body[0]
    assert isinstance(declared, ast.FunctionDef)
    return [name for name, _, _ in parameters(declared)]


def _without_c_types(parameters: str) -> str:
    """`int a, bytes b=None, *` in Python's form: `a, b=None, *`."""
    return ", ".join(
        part
        if part.strip() in ("*", "/")
        else part.partition("=")[0].split()[-1] + ("=0" if "=" in part else "")
        for part in parameters.split(", ")
        if part.strip()
    )


def test_every_compiled_module_has_a_stub() -> None:
    assert [path.with_suffix(".pyi") for path in SOURCES] == STUBS


@pytest.mark.parametrize("stub", STUBS, ids=module_name)
def test_stub_and_module_agree(stub: Path) -> None:
    name = module_name(stub)
    module = importlib.import_module(name)
    declared = names(ast.parse(stub.read_text()).body)
    public = {n for n in declared if not n.startswith("_")}
    assert public >= own({n: v for n, v in vars(module).items() if callable(v)}, name), (
        "a name is missing in the stub"
    )
    for member, node in declared.items():
        assert hasattr(module, member), f"{member} is not there"
        if isinstance(node, ast.FunctionDef):
            assert parameters(node) == runtime_parameters(getattr(module, member)), member
        elif isinstance(node, ast.ClassDef):
            compare_class(node, getattr(module, member))


def compare_class(node: ast.ClassDef, cls: type) -> None:
    declared = names(node.body)
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    is_attrs = hasattr(cls, "__attrs_attrs__")
    missing = own(dict(vars(cls)), cls.__module__) - set(declared) - inherited
    assert not missing, f"{cls.__name__}: the stub does not have {missing}"
    for name, member in declared.items():
        where = f"{cls.__name__}.{name}"
        if name == "__init__":
            assert isinstance(member, ast.FunctionDef)
            actual = init_parameters(cls)
            if actual is not None:
                assert [p for p, _, _ in parameters(member)][1:] == actual, where
        elif is_property(member) and not name.startswith("__"):
            assert is_attrs or hasattr(cls, name), where
            assert not callable(getattr(cls, name, None)), where
        elif isinstance(member, ast.FunctionDef) and not name.startswith("__"):
            actual_parameters = runtime_parameters(getattr(cls, name))
            static = any(ast.unparse(d) == "staticmethod" for d in member.decorator_list)
            expected = parameters(member)
            assert expected == actual_parameters, where
            assert static == isinstance(inspect.getattr_static(cls, name), staticmethod), where
        else:
            assert hasattr(cls, name), where
