"""A status file without a name, which no test has to remove."""

import os
import secrets

from utracefsd.events.status_file import StatusFile


def nameless_status(pages: int = 1) -> StatusFile:
    path = f"/dev/shm/utracefs-test-{secrets.token_hex(8)}"
    file = StatusFile(path, pages)
    os.unlink(path)
    return file
