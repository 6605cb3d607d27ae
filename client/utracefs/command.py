"""The installed command `utracefs`.

Ctrl-C while the modules of the command line are imported must end it as quietly as it does later on. So until
then the signal has its default effect (a parent that had it ignored is obeyed); utracefs.cli puts Python's
handler back once there is somebody to catch KeyboardInterrupt.
"""

import signal
import sys

from utracefs_protocol.extras import how_to_install

__all__ = ["main"]


def main() -> None:
    """Never returns: exits with the status of the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from utracefs.cli import main as run
    except ModuleNotFoundError as error:
        if (text := how_to_install(error)) is None:
            raise
        sys.exit(f"utracefs: {text}")
    run()
