"""The tests that depend on the Python, on every Python that this machine has besides the one of .venv.

    nox                  all of them, one after the other
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
from nox.command import CommandFailed

ROOT = Path(__file__).parent
SUPPORTED = ["3.11", "3.12", "3.13", "3.14"]
ONCE = [
    "tests/client/c",
    "tests/client/export",
    "tests/client/html",
    "tests/conformance",
    "tests/integration",
    "tests/soak",
    "tests/test_packaging.py",
    "tests/test_sources.py",
]
"""Not run here: tests of programs in C, of other readers, of whole processes that the tests of `client` and `daemon`
start on every Python, too."""
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
OTHERS = {version: found for version in SUPPORTED if version != HERE and (found := find(version))}


@nox.session(venv_backend="none")
@nox.parametrize("python_version", list(OTHERS), ids=list(OTHERS))
def tests(session: nox.Session, python_version: str) -> None:
    """Build and run them; arguments behind -- go to pytest."""
    folder = ROOT / ".nox" / python_version
    python = str(folder / "bin" / "python")
    installed = folder / ".installed"
    sources = [ROOT / "pyproject.toml", ROOT / "setup.py"]
    build = [python, "setup.py", "-q", "build_ext", "--inplace"]
    if not installed.exists() or installed.stat().st_mtime < max(one.stat().st_mtime for one in sources):
        session.run(OTHERS[python_version], "-m", "venv", str(folder), external=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        session.run(*pip, "--upgrade", "pip>=25.1", external=True)
        session.run(*pip, "--group", "test", external=True)
        session.run(*build, external=True)
        session.run(*pip, "--no-build-isolation", "-e", ".[daemon]", external=True)  # compiles nothing again
        installed.touch()
    session.run(*build, external=True)
    pytest = [python, "-m", "pytest", "-q", "-o", f"cache_dir=.nox/{python_version}/pytest"]
    pytest += [f"--ignore={path}" for path in ONCE]
    try:
        session.run(*pytest, *session.posargs, external=True)
    except CommandFailed:
        # as `make test` does it
        session.run(*pytest, "--last-failed", "--last-failed-no-failures=none", external=True)
