"""The compiled modules; everything else about the build stands in pyproject.toml.

`EXT=module[,module]` in the environment restricts a build to those modules, for work on one of them.
`SANITIZE=1` builds with AddressSanitizer and UndefinedBehaviorSanitizer (see `make sanitize`).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = {
    "utracefs_protocol._framing": "protocol/utracefs_protocol/_framing.pyx",
    "utracefs._producer": "client/utracefs/_producer.pyx",
    "utracefsd._atomic": "daemon/utracefsd/_atomic.pyx",
    "utracefsd._ring_buffer": "daemon/utracefsd/_ring_buffer.pyx",
    "utracefsd._intake": "daemon/utracefsd/_intake.pyx",
    "utracefsd._probes": "daemon/utracefsd/_probes.pyx",
    "utracefsd._trace_text": "daemon/utracefsd/_trace_text.pyx",
}
FLAGS = ["-O2", "-g0", "-fno-strict-aliasing", "-Wno-unused-function"]
LINK: list[str] = []
if os.environ.get("SANITIZE"):
    LINK = ["-fsanitize=address,undefined"]
    FLAGS = ["-O1", "-g", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-Wno-unused-function", *LINK]

wanted = {name for name in os.environ.get("EXT", "").split(",") if name}
HEADERS = [str(p) for folder in ("protocol", "daemon") for p in Path(folder).glob("*/include/*.h")]
chosen = {n: p for n, p in MODULES.items() if (n in wanted if wanted else Path(p).exists())}

setup(
    ext_modules=cythonize(
        [
            Extension(
                name,
                [path],
                include_dirs=["protocol/utracefs_protocol/include", "daemon/utracefsd/include"],
                extra_compile_args=FLAGS,
                extra_link_args=LINK,
                depends=HEADERS,
            )
            for name, path in chosen.items()
        ],
        include_path=["protocol", "daemon", "client"],
        compiler_directives={"language_level": 3, "embedsignature": True},
    )
)
