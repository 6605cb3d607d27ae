"""examples/service.py: two workers, a span for each request, its id in the log; read by several readers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.client.html.chromium import Chromium
from tests.judges import library, run_judge

library("fastapi")
library("uvicorn")
library("duckdb")
EXAMPLES = Path(__file__).parents[2] / "examples"
REQUESTS = 60

LOAD = f"""
import http.client, json, signal, socket, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("service.sock")

def get(path):
    connection = Connection("localhost")
    connection.request("GET", path, headers={{"x-request-id": f"id-{{path}}"}})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status

def is_up():
    try:
        return get("/up") == 404
    except OSError:
        return False

server = subprocess.Popen(
    [sys.executable, "-m", "uvicorn", "--workers", "2", "--uds", "service.sock", "--app-dir", sys.argv[1],
     "--log-level", "error", "service:app"]
)
try:
    deadline = time.monotonic() + 60
    while not is_up():
        assert time.monotonic() < deadline and server.poll() is None
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(get, [f"/items/{{n}}" for n in range({REQUESTS})] + ["/items/wrong"]))
    assert found == [200] * {REQUESTS} + [422], found
finally:
    server.send_signal(signal.SIGTERM)
    server.wait(60)
"""


def utracefs(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "utracefs", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_service(tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(LOAD)
    utracefs(tmp_path, "record", "-o", "trace.dat", "--", sys.executable, "load.py", str(EXAMPLES))

    def sql(query: str) -> list[str]:
        return utracefs(tmp_path, "sql", "trace.dat", "--csv", query).splitlines()

    by_route = sql(
        "select route, status, count(*), quantile_disc(duration_ns, 0.99) between 1e4 and 1e10 "
        "from http_request_end where route != '/up' group by all order by status"
    )
    assert by_route[1:] == [f"/items/{{item}},200,{REQUESTS},True", "/items/{item},422,1,True"]
    joined = sql(
        "select count(*) from http_request_end r join python_log l using (request_id) "
        "join priced p using (request_id) join shop_price_end s on s.parent_id = r.span_id "
        "where l.message = 'item ' || s.item and p.seconds = 0.001 and l.context->>'trace_id' = r.trace_id"
    )
    assert joined[1:] == [str(REQUESTS)]
    assert "http_request_end:" in run_judge("trace-cmd", "report", tmp_path / "trace.dat").decode()
    utracefs(tmp_path, "report", "--html", "trace.dat", "-o", "trace.html")
    with Chromium() as browser, browser.page(tmp_path / "trace.html") as page:
        page.until("document.body?.dataset.complete", "true")
        assert int(page.value("document.getElementById('timeline').dataset.spans")) >= 2 * REQUESTS + 1
