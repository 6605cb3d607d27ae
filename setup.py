"""The compiled modules and the C client; pyproject.toml has everything else about the build.

Every .pyx file below protocol/, client/ and daemon/ is one. `EXT=module[,module]` in the environment restricts a build
to those modules, for work on one of them; `utracefs.c` is the C client. `SANITIZE=1` builds with
AddressSanitizer and UndefinedBehaviorSanitizer (see `make sanitize`), `DEBUG=1` for gdb (see `make debug`).
A module in place that was built with the flags of the other is built again.

The C client (client/c) is built first, by its own Makefile, and installed into the package, as utracefs/c.
The modules that bind it (they cimport utracefs.producer._binding) find it there when they are loaded, unless a library
with its soname is in the process already. For a distribution's package `UTRACEFS_LIBRARY=DIR` binds the
libutracefs.so in DIR instead, which the loader then must find by itself, and nothing is installed as utracefs/c.

The stubs of the modules are made, too (stubs.py). Without Cython the C files and stubs that it made must be beside
their .pyx.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.dirname(__file__))  # which pip leaves out

try:
    from Cython.Build import cythonize
    from setuptools.modified import newer, newer_group
    from stubs import write_stubs
except ImportError:  # a distribution's package, with an old setuptools
    cythonize = None

FOLDERS = ["protocol", "client", "daemon"]
MODULES = {
    ".".join(path.relative_to(folder).with_suffix("").parts): str(path)
    for folder in FOLDERS
    for path in sorted(Path(folder).rglob("*.pyx"))
}
# Without tables for unwinding a module is 8 % smaller. `make debug` has them.
FLAGS = ["-O2", "-g0", "-fno-strict-aliasing", "-Wno-unused-function", "-fno-asynchronous-unwind-tables"]
DEBUG = bool(os.environ.get("DEBUG"))
if DEBUG:
    FLAGS = ["-Og", "-g", "-fno-strict-aliasing", "-Wno-unused-function", "-Wno-maybe-uninitialized"]
# Keep only the sections that a module needs on disk, without a page of padding between its parts.
LINK: list[str] = [] if DEBUG else ["-Wl,--strip-all", "-Wl,-z,noseparate-code"]
# They run nothing per record, or their benches do not show it: small (a third less) instead of fast.
COLD = {
    "utracefs.producer._session",
    "utracefs.producer.fallback._interpreter",
    "utracefs.mount.processes._memory",
    "utracefs.export.timelines._placing",
    "utracefsd.consumers.ftrace.hist._hist",
    "utracefsd.events._enable_word",
    "utracefsd.intake._giving_back",
    "utracefsd.intake._index_table",
    "utracefsd.intake._journal",
    "utracefsd.intake._writers",
    "utracefsd.machine._sealed_memory",
}
# They run for each record that the daemon takes in: inline their small functions.
HOT = {
    "utracefsd.consumers.ftrace.event._sink",
    "utracefsd.events._tracepoint",
    "utracefsd.intake._intake",
}
PROCESSORS = len(os.sched_getaffinity(0))
QUICK = ["-O0"] if os.environ.get("QUICK") else []
SANITIZE = bool(os.environ.get("SANITIZE"))
if SANITIZE:
    LINK = ["-fsanitize=address,undefined"]
    FLAGS = ["-O1", "-g", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-Wno-unused-function", *LINK]


def flags_of(name):
    if DEBUG or SANITIZE:
        return FLAGS
    return [*FLAGS, *["-Os"] * (name in COLD), *["-O3"] * (name in HOT)]


wanted = {name for name in os.environ.get("EXT", "").split(",") if name}
LIBRARY = os.environ.get("UTRACEFS_LIBRARY")
C_CLIENT = Path("client/c")
INSTALLED = Path("client/utracefs/c")
headers = sorted(
    path
    for folder in FOLDERS
    for path in Path(folder).rglob("include/*.h")
    if not path.is_relative_to(C_CLIENT) and not path.is_relative_to(INSTALLED)
)
C_HEADERS = sorted([*(C_CLIENT / "src").rglob("*.h"), *C_CLIENT.glob("include/*.h")])
BINDING = {
    name
    for name, path in MODULES.items()
    if "from utracefs.producer._binding cimport" in Path(path).read_text()
}


DECLARATIONS = {
    ".".join(path.relative_to(folder).with_suffix("").parts): path
    for folder in FOLDERS
    for path in Path(folder).rglob("*.pxd")
}
NAMED = re.compile(r'(?:from|#\s*include) "([\w/]+\.h)"|^(?:from|cimport) ([\w.]+)', re.MULTILINE)


def headers_of(module):
    """The headers that a module includes itself, by what it cimports, and by other headers."""
    names = {header.name: header for header in [*headers, *C_HEADERS]}
    to_read = [Path(module), *filter(Path.exists, [Path(module).with_suffix(".pxd")])]
    for path in to_read:  # grows meanwhile
        for header, dotted in NAMED.findall(path.read_text()):
            found = names.get(header) if header else DECLARATIONS.get(dotted)
            if found and found not in to_read:
                to_read.append(found)
    return [str(path) for path in to_read if path.suffix == ".h"]


def remove_if_made_otherwise(made, flags):
    """The C that Cython made for other flags, which are at its head, or before a change of this file: so both it
    and the module are made anew."""
    if made.exists():
        head = made.read_text().partition("END: Cython Metadata")[0]
        before = re.search(r'"extra_compile_args": (\[.*?\])', head, re.DOTALL)
        if before is None or json.loads(before[1]) != flags or newer(__file__, str(made)):
            made.unlink()


def remove_without_source():
    """Compiled modules whose .pyx was moved or removed: Python would still import them, and mypy read their stubs."""
    for folder in FOLDERS:
        for made in [
            file for kind in ("*.cpython-*.so", "_*.c", "_*.pyi") for file in Path(folder).rglob(kind)
        ]:
            if not made.with_name(made.name.partition(".")[0] + ".pyx").exists():
                print(f"removing {made}: its .pyx is gone")
                made.unlink()


class BuildAll(build_ext):
    """The C client, then the compiled modules on all processors."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or PROCESSORS

    def build_extension(self, ext):
        """An editable install takes the module that is there, if that is new enough: `pip install -e .` builds
        in a folder of its own, where nothing is."""
        made = Path(ext.sources[0]).with_name(Path(self.get_ext_filename(ext.name)).name)
        if self.editable_mode and not newer_group([*ext.sources, *ext.depends], str(made)):
            wanted_at = Path(self.get_ext_fullpath(ext.name))
            wanted_at.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(made, wanted_at)
        else:
            # not among the flags in the C file, which all Pythons share
            ext.extra_compile_args = [*ext.extra_compile_args, *QUICK]
            super().build_extension(ext)

    def run(self):
        if cythonize:
            if self.inplace:
                remove_without_source()
            self.make_c_files()
            write_stubs(None if self.inplace or self.editable_mode else Path(self.build_lib))
        if not LIBRARY and (not wanted or wanted & {"utracefs.c", *BINDING}):
            self.build_c_client()
        super().run()

    def make_c_files(self):
        """Here, and not for every command: to find out what is new takes a second."""
        if not SANITIZE:
            for ext in self.extensions:
                remove_if_made_otherwise(Path(ext.sources[0]).with_suffix(".c"), flags_of(ext.name))
        made = cythonize(
            self.extensions,
            include_path=FOLDERS,
            nthreads=PROCESSORS,
            quiet="-q" in sys.argv,
            emit_linenums=DEBUG,
            compiler_directives={
                "language_level": 3,
                # Without pickling and function objects of Python's kind a module is 14 KB smaller.
                "annotation_typing": False,  # annotations are for the stubs (stubs.py)
                "auto_pickle": False,
                "binding": False,
                "embedsignature": True,
                "embedsignature.format": "clinic",
            },
        )
        for ext, with_c in zip(self.extensions, made, strict=True):
            vars(ext).update(vars(with_c))  # also the macros that a module's head defines

    def build_c_client(self):
        prefix = (INSTALLED if self.inplace else self.c_client_in_the_wheel()).absolute()
        # Not the options of a make that called us. No -Werror: a compiler of tomorrow warns of more.
        environ = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "DESTDIR")}
        environ.setdefault("CFLAGS", "-O2")
        if not self.inplace:
            environ.setdefault("LDFLAGS", "-s")
        settings = [f"PREFIX={prefix}", "RPATH=yes", "WARNINGS=-Wall -Wextra"]
        settings.append(f"SANITIZE={'address,undefined' if SANITIZE else ''}")
        subprocess.run(
            ["make", "-s", f"-j{PROCESSORS}", "-C", C_CLIENT, "install", *settings], env=environ, check=True
        )
        if not self.inplace:  # a wheel has no links: for the linker, instead of a second copy
            name = prefix / "lib" / "libutracefs.so"
            name.unlink()
            name.write_text("INPUT(libutracefs.so.0)\n")
        for ext in self.extensions:
            if ext.name in BINDING:
                ext.library_dirs = [f"{prefix}/lib"]

    def c_client_in_the_wheel(self):
        return Path(self.build_lib) / "utracefs" / "c"

    def get_outputs(self):
        files = [] if self.inplace or LIBRARY else sorted(self.c_client_in_the_wheel().rglob("*"))
        return [*super().get_outputs(), *(str(path) for path in files if not path.is_dir())]


def extension(name, path):
    binds = name in BINDING
    return Extension(
        name,
        [path if cythonize else str(Path(path).with_suffix(".c"))],
        include_dirs=sorted({str(header.parent) for header in [*headers, *(C_HEADERS if binds else [])]}),
        libraries=["utracefs"] if binds else [],
        library_dirs=[LIBRARY] if binds and LIBRARY else [],
        extra_compile_args=flags_of(name),
        extra_link_args=[
            *LINK,
            *(["-Wl,--enable-new-dtags,-rpath,$ORIGIN/../c/lib"] if binds and not LIBRARY else []),
        ],
        depends=headers_of(path),
    )


extensions = [extension(name, path) for name, path in MODULES.items() if not wanted or name in wanted]
setup(cmdclass={"build_ext": BuildAll}, ext_modules=extensions)
