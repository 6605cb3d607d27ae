"""The contents of a wheel and of a source distribution, and the C client in an unpacked wheel, anywhere.

Built with only one compiled module, since all would take a minute.
"""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.judges import library, needs

ROOT = Path(__file__).parents[1]
pytestmark = needs("make")

TREE = {
    "include/utracefs.h",
    "include/utracefs.hpp",
    "include/utracefs_stream.h",
    "lib/libutracefs-bpf.so",
    "lib/libutracefs.so",
    "lib/libutracefs.so.0",
    "lib/libutracefs.a",
    "lib/libutracefs-preload.so",
    "lib/pkgconfig/utracefs.pc",
    "lib/cmake/utracefs/utracefs-config.cmake",
    "lib/cmake/utracefs/utracefs-config-version.cmake",
}


def setup(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder), *words],
        cwd=ROOT,
        env={
            **os.environ,
            "EXT": "utracefs.c,utracefs.producer.fallback._interpreter",
            "PYTHONWARNINGS": "ignore",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    setup(folder, "build", "--build-base", str(folder / "build"), "bdist_wheel", "--dist-dir", str(folder))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """The C client's tree, moved, in a directory with a blank in its name."""
    site = wheel.parent / "site packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site / "utracefs" / "c"


def test_a_wheel_has_the_c_client(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert {name.removeprefix("utracefs/c/") for name in names if name.startswith("utracefs/c/")} == TREE
    assert modes["utracefs/c/lib/libutracefs-preload.so"] & 0o111
    assert {"utracefs/__init__.py", "utracefsd/main.py", "utracefs_protocol/include/data_ring.h"} <= names
    assert {f"utracefs/producer/{stub}.pyi" for stub in ("_event", "_session")} <= names
    assert {path.rpartition(".")[2] for path in names}.isdisjoint(["pyx", "pxd", "c", "pyc"])
    page = ROOT / "client" / "utracefs" / "html" / "page"
    assert {f"utracefs/html/page/{path.name}" for path in page.iterdir()} <= names


def test_an_application_installs_no_packages_of_the_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    needed = metadata.get_all("Requires-Dist", [])
    assert [line for line in needed if "extra ==" not in line] == []
    assert 'trio>=0.22; extra == "daemon"' in needed


def test_the_packages_of_debian_need_what_the_extras_need() -> None:
    control = (ROOT / "debian" / "control").read_text()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = settings["optional-dependencies"]
    for name, extra in [("utracefs", "tools"), ("utracefsd", "daemon")]:
        (paragraph,) = re.findall(rf"^Package: {name}\n(.*?)\n\n", control, re.DOTALL | re.MULTILINE)
        for requirement in extras[extra]:
            package, _, version = requirement.partition(">=")
            if package != "utracefs[tools]":
                assert f"python3-{package.removesuffix('s')} (>= {version})" in paragraph
    assert (ROOT / "debian" / "changelog").read_text().startswith(f"utracefs ({settings['version']}-1)")


CONTAINERS = ROOT / "examples" / "containers"


def test_the_daemon_set() -> None:
    validate = library("kubernetes_validate")
    yaml = library("yaml")
    text = (CONTAINERS / "daemonset.yaml").read_text()
    daemon_set = yaml.safe_load(text)
    validate.validate(daemon_set, "1.30", strict=True)
    with pytest.raises(validate.ValidationError, match="hostPid"):
        validate.validate(yaml.safe_load(text.replace("hostPID", "hostPid")), "1.30", strict=True)
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    service = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())["services"]["utracefsd"]
    command = [re.sub(r"^\$\{GID:-(\d+)\}$", r"\1", word) for word in service["command"]]
    assert container["command"] == command


@pytest.mark.parametrize(
    ("right", "wrong"), [("", ""), ("pid: host", "pids: host"), ("run: {}", "run: 3"), ("CMD,", "3,")]
)
def test_the_compose_file(tmp_path: Path, right: str, wrong: str) -> None:
    library("check_jsonschema")
    file = tmp_path / "compose.yaml"
    text = (CONTAINERS / "compose.yaml").read_text()
    assert right in text
    file.write_text(text.replace(right, wrong))
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == bool(wrong), done.stdout + done.stderr
    assert not wrong or f"{file}::$." in done.stdout


def test_a_source_distribution_has_what_it_needs(tmp_path: Path) -> None:
    setup(tmp_path, "sdist", "--formats", "gztar", "--dist-dir", str(tmp_path))
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "client" / "c" / "src").rglob("*.[ch]")}
    assert sources and sources <= names
    assert {
        "client/c/Makefile",
        "client/c/include/utracefs.h",
        "client/utracefs/producer/_event.pyx",
        "stubs.py",
    } <= names
    assert {f"client/utracefs/html/page/page.{ending}" for ending in ("html", "css")} <= names
    made = [name for name in names if name.endswith((".so", ".o", ".a", ".so.0"))]
    made += [name for name in names if name.startswith(("client/utracefs/c/", "client/c/build"))]
    made += [name for name in names if name.endswith(".c") and name.startswith(("protocol/", "daemon/"))]
    assert not made


PROGRAM = """
#include <utracefs.h>
#include <stdio.h>
int main(void) { return puts("works") < 0; }
"""


@needs("pkg-config")
@pytest.mark.parametrize("kind", [["--libs"], ["--static", "--libs"]])
def test_pkg_config(unpacked: Path, tmp_path: Path, kind: list[str]) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    env = {**os.environ, "PKG_CONFIG_PATH": str(unpacked / "lib" / "pkgconfig")}
    flags = f'eval set -- "$(pkg-config --cflags {" ".join(kind)} utracefs)"'
    script = f'{flags}; gcc -Wall -Werror program.c "$@" -o program && ./program'
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(program C)
find_package(utracefs 0.1 REQUIRED)
add_executable(shared program.c)
target_link_libraries(shared PRIVATE utracefs::utracefs)
add_executable(static program.c)
target_link_libraries(static PRIVATE utracefs::static)
"""


@needs("cmake")
def test_cmake(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    prefix = f"-DCMAKE_PREFIX_PATH={unpacked}"
    script = 'cmake -S . -B build "$1" && cmake --build build && build/shared && build/static'
    done = subprocess.run(
        ["sh", "-c", script, "sh", prefix], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("works\nworks\n"), done.stdout + done.stderr
