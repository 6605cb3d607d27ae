"""Spans of requests, and log records, of an ASGI application that was not changed (`--asgi`).

`--asgi` puts this folder in front of PYTHONPATH, so Python runs this file at its start, also in spawned
workers and in other programs. It takes the folder off sys.path, and runs the sitecustomize that Python finds
without it; if there is none, it fails with the error of that search, which Python ignores.

It imports nothing until the program imports uvicorn. Then it wraps Config.load, which each worker calls once:
its result is the whole application. It uses the utracefs of the program's Python, of any version.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(__file__)


class Finder:
    """Sees on sys.meta_path that the program imports uvicorn; finds no module. path: sys.path at the start,
    without the folder of the program and the current directory."""

    def __init__(self, path: "list[str]") -> None:
        self._path = path
        self._done = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "uvicorn.server" and not self._done:  # it imports uvicorn.config
            self._done = True
            attempt(self._wrap_load)

    def _wrap_load(self) -> None:
        import functools
        import importlib

        config = importlib.import_module("uvicorn.config").Config
        of_program, sys.path[:] = sys.path[:], self._path
        try:
            importlib.import_module("utracefs")
        finally:
            sys.path[:] = of_program
        load, wrapped = config.load, Wrapped()

        @functools.wraps(load)
        def load_and_wrap(self: "Any", *args: "Any", **options: "Any") -> "Any":
            result = load(self, *args, **options)
            attempt(wrapped.wrap, self)
            return result

        config.load = load_and_wrap


class Wrapped:
    """Wraps the applications of this process; a program that uses `utracefs.asgi` or LoggingHandler by itself
    has it its own way."""

    def __init__(self) -> None:
        self._middleware: Any = None
        self._handler: Any = None

    def wrap(self, config: "Any") -> None:
        if self._handler is None and "utracefs.logging_handler" not in sys.modules:
            self._see_log_records()
        if self._middleware is None and "utracefs.asgi" not in sys.modules:
            from utracefs.asgi import Middleware

            self._middleware = Middleware
        if self._middleware is not None:
            config.loaded_app = self._middleware(config.loaded_app)

    def _see_log_records(self) -> None:
        """Not as a handler of a logger: basicConfig and lastResort do nothing if there is one."""
        import logging

        from utracefs.logging_handler import LoggingHandler

        handler = self._handler = LoggingHandler(fields=["request_id"])
        call_handlers = logging.Logger.callHandlers

        def call(self: logging.Logger, record: logging.LogRecord) -> None:
            call_handlers(self, record)
            if record.levelno >= handler.level:
                handler.handle(record)

        logging.Logger.callHandlers = call  # type: ignore[method-assign]


def attempt(step: "Any", *values: object) -> None:
    """An error is reported once; the program and its workers continue without us."""
    try:
        step(*values)
    except Exception as error:  # noqa: BLE001  # of any version of uvicorn and utracefs
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(one for one in paths if one != FOLDER)
        text = f"utracefs: --asgi: no spans and log records, since in {sys.executable}: {error}\n"
        try:
            sys.stderr.write(text)
        except Exception:  # noqa: BLE001  # it is closed, or None
            return


if __name__ == "sitecustomize":
    sys.path[:] = [one for one in sys.path if one != FOLDER]
    sys.meta_path.insert(0, Finder(sys.path[:]))
    del sys.modules[__name__]
    __import__(__name__)
