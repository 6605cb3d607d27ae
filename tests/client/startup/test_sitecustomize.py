"""Requests to uvicorn and log records of a program that was not changed; other programs run as before."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import utracefs
from tests.judges import library
from utracefs import startup

library("fastapi")
library("uvicorn")
EXAMPLES = Path(__file__).parents[3] / "examples"
REQUESTS = 10
PLAIN = """
import logging, fastapi
app = fastapi.FastAPI()

@app.get("/items/{item}")
async def get_item(item: int) -> None:
    logging.warning("item %d", item)  # its handler is made here, unless the root logger has one
"""


def status_of(path: Path, target: str) -> int:
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.connect(str(path))
        connection.request("GET", target)
        return connection.getresponse().status


@pytest.mark.parametrize(
    ("app", "options"), [("plain:app", []), ("plain:app", ["--workers", "2"]), ("service:app", [])]
)
def test_each_request_has_one_span_and_its_log_records(app: str, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    record = [sys.executable, "-m", "utracefs", "record", "--embedded", "--asgi", "--"]
    server = [sys.executable, "-m", "uvicorn", "--uds", "service.sock", "--log-level", "error", *options, app]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    with subprocess.Popen(record + server, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as ran:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert status_of(tmp_path / "service.sock", "/up") == 404
                break
            except OSError:
                assert time.monotonic() < deadline and ran.poll() is None
                time.sleep(0.05)
        for n in range(REQUESTS):
            assert status_of(tmp_path / "service.sock", f"/items/{n}") == 200
        ran.send_signal(signal.SIGTERM)
        errors = ran.communicate(timeout=60)[1]
    assert "--asgi" not in errors
    assert errors.count("WARNING:root:item") == (REQUESTS if app == "plain:app" else 0), errors
    with utracefs.open(tmp_path / "trace.dat") as recording:
        records = [(one.name, one.fields) for one in recording]
    spans = {fields["request_id"]: fields for name, fields in records if name == "http_request_end"}
    routes = [fields["route"] for name, fields in records if name == "http_request_end"]
    assert routes == ["/up", *["/items/{item}"] * REQUESTS]
    logs = [fields for name, fields in records if name == "python_log" and "item " in fields["message"]]
    paths = [f"/items/{fields['message'].removeprefix('item ')}" for fields in logs]
    assert paths == [spans[fields["request_id"]]["path"] for fields in logs] and len(paths) == REQUESTS


def python(folder: Path, code: str, *paths: str | Path) -> tuple[str, str]:
    """stdout and stderr of the program in this folder; paths: PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "UTRACEFS_DIR": "/nonexistent"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stdout, ran.stderr


@pytest.mark.parametrize("own", [None, "print(__name__, __file__)", "1 / 0"])
def test_other_programs_run_as_before(own: str | None, tmp_path: Path) -> None:
    """Also with a sitecustomize of their own."""
    if own is not None:
        (tmp_path / "sitecustomize.py").write_text(own)
    code = "import sys; print(sys.path, list(sys.modules))"
    before = python(tmp_path, code, tmp_path)
    assert python(tmp_path, code, *startup.__path__, tmp_path) == before


LOAD = """
import os, uvicorn
config = uvicorn.Config(lambda scope: None)
config.load()
print(type(config.loaded_app).__module__.split(".")[0], os.environ["PYTHONPATH"])
"""


def test_the_programs_utracefs_is_used(tmp_path: Path) -> None:
    """A file of that name in the current directory is not, and one that is broken is reported."""
    (tmp_path / "utracefs.py").write_text("raise ImportError('broken')")
    folder = startup.__path__[0]
    assert python(tmp_path, LOAD, folder) == (f"utracefs {folder}\n", "")
    text = f"utracefs: --asgi: no spans and log records, since in {sys.executable}: broken\n"
    found = python(tmp_path, LOAD, folder, tmp_path)
    assert found == (f"uvicorn {tmp_path}\n", text)
