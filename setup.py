"""The compiled modules and the C client; everything else about the build stands in pyproject.toml.

Every .pyx file below protocol/, client/ and daemon/ is one. `EXT=module[,module]` in the environment restricts a build
to those modules, for work on one of them; `utracefs.c` is the C client. `SANITIZE=1` builds with AddressSanitizer and UndefinedBehaviorSanitizer
(see `make sanitize`).

The C client (client/c) is built by its own Makefile and installed into the package, as utracefs/c. Where there is no
make it is left out, and nothing else needs it.
"""

import os
import shutil
import subprocess
import warnings
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDERS = ["protocol", "client", "daemon"]
MODULES = {
    ".".join(path.relative_to(folder).with_suffix("").parts): str(path)
    for folder in FOLDERS
    for path in sorted(Path(folder).rglob("*.pyx"))
}
FLAGS = ["-O2", "-g0", "-fno-strict-aliasing", "-Wno-unused-function"]
LINK: list[str] = []
if os.environ.get("SANITIZE"):
    LINK = ["-fsanitize=address,undefined"]
    FLAGS = ["-O1", "-g", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-Wno-unused-function", *LINK]

wanted = {name for name in os.environ.get("EXT", "").split(",") if name}
C_CLIENT = Path("client/c")
INSTALLED = Path("client/utracefs/c")
headers = sorted(
    path
    for folder in FOLDERS
    for path in Path(folder).rglob("include/*.h")
    if not path.is_relative_to(C_CLIENT) and not path.is_relative_to(INSTALLED)
)


class BuildAll(build_ext):
    """The compiled modules, then the C client."""

    def run(self):
        super().run()
        if LINK or (wanted and "utracefs.c" not in wanted):
            return
        if shutil.which("make") is None:
            warnings.warn("no make: the C client and the preload library are left out", stacklevel=1)
            return
        prefix = (INSTALLED if self.inplace else self.c_client_in_the_wheel()).absolute()
        # Not the options of a make that called us. No -Werror: a compiler of tomorrow warns of more.
        environ = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "DESTDIR")}
        environ.setdefault("CFLAGS", "-O2")
        settings = [f"PREFIX={prefix}", "RPATH=yes", "WARNINGS=-Wall -Wextra"]
        subprocess.run(["make", "-s", "-C", C_CLIENT, "install", *settings], env=environ, check=True)

    def c_client_in_the_wheel(self):
        return Path(self.build_lib) / "utracefs" / "c"

    def get_outputs(self):
        files = [] if self.inplace else sorted(self.c_client_in_the_wheel().rglob("*"))
        return [*super().get_outputs(), *(str(path) for path in files if not path.is_dir())]


setup(
    cmdclass={"build_ext": BuildAll},
    ext_modules=cythonize(
        [
            Extension(
                name,
                [path],
                include_dirs=sorted({str(header.parent) for header in headers}),
                extra_compile_args=FLAGS,
                extra_link_args=LINK,
                depends=[str(header) for header in headers],
            )
            for name, path in MODULES.items()
            if not wanted or name in wanted
        ],
        include_path=FOLDERS,
        compiler_directives={"language_level": 3, "embedsignature": True},
    ),
)
