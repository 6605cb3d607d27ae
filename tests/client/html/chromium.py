"""A headless Chromium, driven by the DevTools protocol over a pipe: JSON with a NUL behind each message, to
its descriptor 3, from its descriptor 4."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.judges import judge

PATIENCE_S = 60.0
FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--enable-precise-memory-info",
    "--force-color-profile=srgb",
    "--lang=en-US",
]
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


class PageError(AssertionError):
    """An error of a page or of the browser."""


class Chromium:
    """A browser with a profile of its own; a context manager that ends it and removes the profile."""

    def __init__(self) -> None:
        program = judge("chromium")
        self._profile = tempfile.mkdtemp(prefix="utracefs-chromium-")
        theirs, self._to = os.pipe()
        self._from, theirs_too = os.pipe()
        high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 20) for number in (theirs, theirs_too)]
        silent = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        environ = {**os.environ, "HOME": self._profile, "TMPDIR": self._profile}
        environ.pop("LD_PRELOAD", None)  # of `make sanitize`; chromium does not run with it
        self._pid = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
                *((os.POSIX_SPAWN_DUP2, silent, number) for number in range(3)),
            ],
            setpgroup=0,
        )
        for number in (theirs, theirs_too, silent, *high):
            os.close(number)
        self._read = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        lock = None  # a folder in /tmp, whatever TMPDIR says; stays where the browser has to be killed
        with contextlib.suppress(OSError):
            lock = os.path.dirname(os.readlink(os.path.join(self._profile, "SingletonSocket")))
        with contextlib.suppress(OSError, PageError):
            self.call("Browser.close")
        os.close(self._to)
        deadline = time.monotonic() + 10
        while not os.waitpid(self._pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.02)
        os.close(self._from)
        if lock:
            shutil.rmtree(lock, ignore_errors=True)
        deadline = time.monotonic() + 5
        while os.path.exists(self._profile):  # its last children may still write
            shutil.rmtree(self._profile, ignore_errors=True)
            assert time.monotonic() < deadline

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + PATIENCE_S
        while number not in self._answers:
            self.take(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def take(self, deadline: float) -> None:
        """The next messages."""
        if not select.select([self._from], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise PageError("chromium does not answer")
        data = os.read(self._from, 1 << 20)
        if not data:
            raise PageError("chromium has ended")
        *messages, self._read = (self._read + data).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self._pages.get(message.get("sessionId", "")):
                page.noted(message["method"], message["params"])

    @contextlib.contextmanager
    def page(
        self, path: Path, *, size: tuple[int, int] = (1440, 900), dark: bool = False, before: str = ""
    ) -> Iterator[Page]:
        """A file, shown. before: a script that runs in front of all others."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(*size)
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        if before:
            page.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        page.call("Page.navigate", url=path.absolute().as_uri())
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)
            del self._pages[session]


class Page:
    """requests: all URLs that it asked for. errors: what it logged or threw."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.errors: list[str] = []

    def noted(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", details).get("description", details)))
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(f"{params['type']}: {[a.get('value') for a in params['args']]}")
        elif method == "Log.entryAdded":
            self.errors.append(params["entry"]["text"])

    def call(self, method: str, **params: object) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise PageError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str, wanted: object = True, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while (found := self.value(expression)) != wanted:
            if time.monotonic() > deadline:
                raise PageError(f"{expression} is {found!r}, not {wanted!r}; {self.errors}")
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """textContent of all such elements."""
        found: list[str] = self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
        )
        return found

    def text(self, selector: str) -> str:
        (found,) = self.texts(selector)
        return found

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def mouse(self, kind: str, x: float, y: float, **params: object) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **params)

    def drag(self, start: tuple[float, float], end: tuple[float, float], *, modifiers: int = 0) -> None:
        held: dict[str, Any] = {"button": "left", "buttons": 1, "clickCount": 1, "modifiers": modifiers}
        self.mouse("mousePressed", *start, **held)
        for part in range(1, 6):
            x, y = (a + (b - a) * part / 5 for a, b in zip(start, end, strict=True))
            self.mouse("mouseMoved", x, y, **held)
        self.mouse("mouseReleased", *end, **held)

    def key(self, key: str, *, modifiers: int = 0) -> None:
        text = key if len(key) == 1 else ""
        code = KEYS.get(key, ord(key[0].upper()))
        params = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **params)
        self.call("Input.dispatchKeyEvent", type="keyUp", **params)

    def search(self, text: str) -> None:
        """Types it, and waits for the answer."""
        self.value("document.getElementById('search').select(); document.getElementById('search').focus()")
        self.call("Input.insertText", text=text)
        self.value("new Promise((done) => setTimeout(done, 200))")
        self.until("document.getElementById('search-result').textContent !== '…'")

    def screenshot(self) -> bytes:
        """A PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
