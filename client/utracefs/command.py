"""The installed command `utracefs`.

Ctrl-C during the imports of the command line must end it without a traceback, too. So until then the signal
has its default effect (unless the parent ignored it); utracefs.cli restores Python's handler when
KeyboardInterrupt can be caught.
"""

import sys

from utracefs_protocol.extras import how_to_install
from utracefs_protocol.own_processes import prepare


def main() -> None:
    """Run it and exit with the status of the command."""
    prepare()
    import signal  # now from nowhere but the installation

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from utracefs.cli import main as run
    except ModuleNotFoundError as error:
        if (text := how_to_install(error, "daemon")) is None:  # which `record` starts
            raise
        sys.exit(f"utracefs: {text}")
    run()
