"""The packages of the extras. Without any, utracefs declares and emits events, and no more."""

TYPE_CHECKING = False  # nothing to import for a program that emits
if TYPE_CHECKING:
    from typing import Final


_EXTRAS: "Final" = {
    **dict.fromkeys(("attr", "attrs", "click", "msgpack", "prometheus_client", "rich"), "tools"),
    "trio": "daemon",
}


def how_to_install(error: ImportError, extra: str = "") -> str | None:
    """One line for a missing package, with the extra that has it unless another is named. None: no extra has
    it."""
    package = (error.name or "").partition(".")[0]
    if package in ("sqlite3", "_sqlite3"):
        return "this Python has no sqlite3: install libsqlite3-dev and build Python again"
    if package not in _EXTRAS:
        return None
    return f"{package} is not installed: pip install 'utracefs[{extra or _EXTRAS[package]}]'"
