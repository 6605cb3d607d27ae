"""The tests that depend on the Python, on Pythons that this machine has besides the one of .venv.

    nox                  the oldest and the newest that are supported
    nox -s tests         all of them, one after the other
    nox -s 'tests(3.13)' one

Each has an environment below .nox/, which is filled once and then works offline. The compiled modules lie in the
tree beside those of other versions: the interpreter's tag is part of their names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
SUPPORTED = ["3.11", "3.12", "3.13", "3.14"]


def test_of(module: Path) -> str:
    package, _, *rooms, name = module.relative_to(ROOT).with_suffix("").parts
    return "/".join(["tests", package, *rooms, f"test_{name.lstrip('_')}.py"])


DEPENDING = [
    *(
        test_of(module)
        for part in ("protocol", "client", "daemon")
        for module in (ROOT / part).rglob("*.pyx")
    ),
    *(str(path) for path in Path("tests", "client").glob("test_*.py")),
    "tests/client/bridges",
    "tests/client/producer",
    "tests/client/programs",
    "tests/client/streaming",
    # of the other packages one or two each, rather of whole processes
    "tests/client/cli/test_init.py",
    "tests/client/cli/convert/test_report.py",
    "tests/client/cli/live/test_hist.py",
    "tests/client/cli/look/test_files.py",
    "tests/client/cli/perf/test_attached.py",
    "tests/client/cli/record/test_requests.py",
    "tests/client/cli/run/test_traced_command.py",
    "tests/client/mount/test_serving.py",
    "tests/daemon/connections/test_port.py",
    "tests/daemon/machine",
    "tests/daemon/server",
    "tests/daemon/state/test_folder.py",
    "tests/daemon/test_daemon.py",
    "tests/daemon/test_main.py",
    "tests/daemon/tree/test_tree.py",
    "tests/protocol/messages",
    "tests/protocol/test_connection.py",
    "tests/protocol/test_frozen.py",
]
"""Tests whose result can differ between Pythons: compiled modules, the client in a program, forks, signals, trio.
Logic and texts run once, on the Python of .venv."""
USABLE = (
    "import ensurepip, os, sys, sysconfig, venv; "
    "assert os.path.exists(sysconfig.get_path('include') + '/Python.h'); "
    "print('%d.%d' % sys.version_info[:2])"
)

nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True


def find(version: str) -> str | None:
    """A Python of this version that can make an environment and build for it: from PATH, else one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [
        found for folder in os.get_exec_path() if (found := shutil.which(f"python{version}", path=folder))
    ]
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for candidate in candidates:
        # (A shim of pyenv's may be there without the Python that it stands for.)
        done = subprocess.run([candidate, "-c", USABLE], capture_output=True, text=True, check=False)
        if (done.returncode, done.stdout.strip()) == (0, version):
            return candidate
    return None


HERE = "{}.{}".format(*sys.version_info)
FOUND = {version: sys.executable if version == HERE else find(version) for version in SUPPORTED}
OTHERS = {version: found for version, found in FOUND.items() if found and version != HERE}
_there = [version for version, found in FOUND.items() if found]
_ends = sorted({_there[0], _there[-1]} - {HERE})
nox.options.sessions = [f"tests({version})" for version in _ends] or ["tests"]


@nox.session(venv_backend="none")
@nox.parametrize("python_version", list(OTHERS), ids=list(OTHERS))
def tests(session: nox.Session, python_version: str) -> None:
    """Build and run them; arguments behind -- go to pytest."""
    folder = ROOT / ".nox" / python_version
    python = str(folder / "bin" / "python")
    installed = folder / ".installed"
    sources = [ROOT / "pyproject.toml", ROOT / "setup.py"]
    build = [python, "setup.py", "-q", "build_ext", "--inplace"]
    quick = {"QUICK": "1"}  # the tests spend 3 % of their CPU time in the compiled modules
    if not installed.exists() or installed.stat().st_mtime < max(one.stat().st_mtime for one in sources):
        session.run(OTHERS[python_version], "-m", "venv", "--without-pip", str(folder), external=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        pip += ["install", "-qq", "--no-compile"]
        session.run(*pip, "--group", "test", external=True)
        session.run(*build, external=True, env=quick)
        session.run(*pip, "--no-build-isolation", "-e", ".[daemon]", external=True)  # compiles nothing again
        installed.touch()
    session.run(*build, external=True, env=quick)
    pytest = [python, "-m", "pytest", "-q", "-o", f"cache_dir=.nox/{python_version}/pytest"]
    # At which instruction a kill comes is a matter of the C, which all Pythons share.
    pytest += [*DEPENDING, "-k", "not killed_at"]
    session.run(*pytest, *session.posargs, external=True)
