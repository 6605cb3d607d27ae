"""The installed command `utracefsd`: says what to install where the daemon's packages are missing."""

import sys

from utracefs_protocol.extras import how_to_install
from utracefs_protocol.own_processes import prepare
from utracefs_protocol.terminal import drop_unwritten


def main() -> None:
    prepare()
    try:
        from utracefsd.main import main as run
    except ModuleNotFoundError as error:
        if (text := how_to_install(error, "daemon")) is None:
            raise
        sys.exit(f"utracefsd: {text}")
    try:
        run(prog_name="utracefsd")
    finally:
        drop_unwritten()
