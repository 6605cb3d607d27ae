"""`utracefs c-client`: paths of the C client, for compilers and for LD_PRELOAD.

    utracefs/c/include/utracefs.h, utracefs.hpp
    utracefs/c/lib/libutracefs.so, libutracefs.a, libutracefs-preload.so, libutracefs-bpf.so
    utracefs/c/lib/pkgconfig/, utracefs/c/lib/cmake/

setup.py makes this tree inside the package if make exists. It may be moved as a whole.
"""

import os

import click

import utracefs
from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import echo

PREFIX = os.path.join(os.path.dirname(os.path.abspath(utracefs.__file__)), "c")


def root() -> str | None:
    """Root of the tree; None: it was not built."""
    return PREFIX if os.path.exists(os.path.join(PREFIX, "include", "utracefs.h")) else None


def _library(name: str) -> str | None:
    path = os.path.join(PREFIX, "lib", name)
    return path if os.path.exists(path) else None


def preload_library() -> str | None:
    """The library that connects programs for the kernel's user_events; None: it was not built."""
    return _library("libutracefs-preload.so")


def bpf_library() -> str | None:
    """The library that runs programs of eBPF on user_events; None: it was not built."""
    return _library("libutracefs-bpf.so")


@click.command("c-client", context_settings=COMMAND_SETTINGS)
@click.option("--prefix", is_flag=True, help="The directory with include/ and lib/.")
@click.option("--cflags", is_flag=True, help="Options for the compiler.")
@click.option("--libs", is_flag=True, help="Options for the linker; the library is found where it is now.")
@click.option("--static", is_flag=True, help="With --libs: the static library.")
@click.option("--pkg-config-path", is_flag=True, help="The directory for PKG_CONFIG_PATH.")
@click.option(
    "--preload",
    is_flag=True,
    help="The library for LD_PRELOAD of programs that use the kernel's user_events.",
)
def c_client(
    prefix: bool, cflags: bool, libs: bool, static: bool, pkg_config_path: bool, preload: bool
) -> None:
    """Print paths and flags of the C client: the selected ones in one line; without options all.

    \b
    cc program.c $(utracefs c-client --cflags --libs)
    PKG_CONFIG_PATH=$(utracefs c-client --pkg-config-path) pkg-config --libs utracefs
    cmake -DCMAKE_PREFIX_PATH=$(utracefs c-client --prefix) .
    UTRACEFS_DIR=DIR LD_PRELOAD=$(utracefs c-client --preload) ./provider
    """
    if static and not libs:
        raise click.UsageError("--static goes with --libs")
    where = root()
    library = preload_library()
    if where is None or library is None:
        raise Failure(PREFIX, "the C client was not built; install utracefs where make and gcc are")
    lib = os.path.join(where, "lib")
    texts = {
        "prefix": where,
        "cflags": f"-I{os.path.join(where, 'include')}",
        "libs": (
            f"{os.path.join(lib, 'libutracefs.a')} -pthread"
            if static
            else f"-L{lib} -Wl,-rpath,{lib} -lutracefs"
        ),
        "pkg-config-path": os.path.join(lib, "pkgconfig"),
        "preload": library,
    }
    asked = [prefix, cflags, libs, pkg_config_path, preload]
    if any(asked):
        echo(" ".join(text for text, wanted in zip(texts.values(), asked, strict=True) if wanted))
    else:
        for name, text in texts.items():
            echo(f"{name:<16} {text}")
