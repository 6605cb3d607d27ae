"""The name that a file has until it is complete."""

import os

__all__ = ["name_beside"]


def name_beside(path: str) -> str:
    """A new one in the folder of `path`. Who opens it does so with "x", and removes it after an error."""
    return os.path.join(os.path.dirname(path), f".utracefs-{os.urandom(8).hex()}.tmp")
