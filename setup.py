"""The compiled modules; everything else about the build stands in pyproject.toml.

Every .pyx file below protocol/, client/ and daemon/ is one. `EXT=module[,module]` in the environment restricts a build
to those modules, for work on one of them. `SANITIZE=1` builds with AddressSanitizer and UndefinedBehaviorSanitizer
(see `make sanitize`).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

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
headers = sorted(path for folder in FOLDERS for path in Path(folder).rglob("include/*.h"))

setup(
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
    )
)
