"""The files that one recorder has written. Of more than `most` the oldest are removed: `--max-files`.

Only files of this process are removed: names of earlier ones, of other programs and of other recorders may be
similar. A file that was replaced, or moved away, since is not removed either.
"""

import contextlib
import os
import shutil
from collections import deque
from typing import Final

from utracefs.cli.common import tell


class KeptFiles:
    """The files in the order of writing. (The times in their names follow the clock, which may be set.)"""

    def __init__(self, most: int | None) -> None:
        """None: all stay."""
        self._most = most
        self._files: Final = deque[tuple[str, tuple[int, int]]]()
        self.removed = 0

    def add(self, path: str) -> None:
        """Add a written file, or the folder of a CTF."""
        self._files.append((os.path.abspath(path), _identity(path)))
        while self._most is not None and len(self._files) > self._most:
            oldest, identity = self._files.popleft()
            with contextlib.suppress(FileNotFoundError):
                if _identity(oldest) == identity:
                    self._remove(oldest)

    def _remove(self, path: str) -> None:
        try:
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        except OSError as error:
            tell(f"{path}: {error.strerror}; it is not removed")
        else:
            self.removed += 1


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
