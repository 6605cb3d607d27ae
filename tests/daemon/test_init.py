"""The names of `import utracefsd`: `serve`, as in the README, and no loop until it is used."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import utracefsd
from utracefs.tree.tracefs import Tracefs

README = Path(__file__).parents[2] / "README.md"


async def test_the_daemon_inside_a_trio_program_as_readme_shows_it(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    shown = re.findall(
        r"`serving = (await nursery\.start\(utracefsd\.serve, directory\))`", README.read_text()
    )
    assert len(shown) == 1
    serving = await nursery.start(utracefsd.serve, tmp_path / "d")

    def ask() -> bytes:
        with Tracefs(serving.runtime.directory) as tree:
            return tree.read_file("tracing_on")

    assert await trio.to_thread.run_sync(ask) == b"1\n"
    nursery.cancel_scope.cancel()


def test_no_loop_is_imported_before_serve_is_used() -> None:
    program = (
        "import sys, utracefsd, utracefsd.daemon, utracefsd.consumers\n"
        "assert 'trio' not in sys.modules\n"
        "assert 'serve' in dir(utracefsd)\n"
        "from utracefsd import serve\n"
        "assert 'trio' in sys.modules and serve is utracefsd.serve\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'server_'"):
        utracefsd.server_  # noqa: B018
