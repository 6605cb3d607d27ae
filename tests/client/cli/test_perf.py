"""`utracefs perf stat` and `perf record`."""

import json
import re
import sys

import pytest
from click.testing import CliRunner

from tests.client.cli.kit import Cli
from utracefs.cli import cli as cli_group

REQUEST = "http_request u16 status; s32 usec; __rel_loc char[] path"


@pytest.mark.parametrize("name", ["stat", "record"])
def test_help_of_perf(name: str) -> None:
    result = CliRunner().invoke(cli_group, ["perf", name, "-h"])
    assert result.exit_code == 0
    assert f" perf {name} [OPTIONS]" in result.output


def test_help_lists_both_commands() -> None:
    for words in (["perf", "--help"], ["perf"]):
        lines = [line.split(maxsplit=1) for line in CliRunner().invoke(cli_group, words).output.splitlines()]
        assert ["stat", "Count events of a command, or until Ctrl-C."] in lines
        assert ["record", "Sample events, and print the samples."] in lines


def test_perf_stat(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    emit = traced.command("emit", "ev", "5")
    done = traced.run("perf", "stat", "-e", "ev", "-e", "nosuch", "--", *emit, status=1)
    out = done.stdout.decode()
    assert re.search(r"^ +1  user_events:ev$", out, re.MULTILINE)
    assert re.search(r"<no such event>  nosuch$", out, re.MULTILINE)
    counted = json.loads(traced.out("perf", "stat", "--json", "--", *emit))
    assert counted["events"] == {"user_events:ev": 1}
    assert counted["seconds"] > 0
    assert json.loads(traced.out("perf", "stat", "--json", "--duration", "0.05"))["events"] == {
        "user_events:ev": 0
    }
    traced.run("perf", "stat", "--", "sh", "-c", "exit 3", status=3)
    assert traced.out("cat", "user_events_status") == "ev\n\nActive: 1\nBusy: 0\n"


def test_perf_record(traced: Cli) -> None:
    traced.run("reg", REQUEST)
    emit = traced.command("emit", "http_request", "200", "-5", "/a b")
    out = traced.out("perf", "record", "-e", "http*", "--", *emit)
    assert re.fullmatch(
        r" +python\S* +(\d+)/\1 +\[\d{3}\] +\d+\.\d{6}: "
        r"user_events:http_request: status=200 usec=-5 path=/a b\n",
        out,
    )
    done = traced.run("perf", "record", "-F", "100", "--duration", "0.05")
    assert (done.stdout, done.stderr) == (b"", b"utracefs: 0 samples, nothing lost\n")


EMITTER = """
import sys, utracefs
e = utracefs.event("many u32 n")
bool(e)
for n in range(int(sys.argv[1])):
    e.emit(n)
utracefs.flush(20)
"""


def test_perf_record_shows_what_was_lost(traced: Cli) -> None:
    traced.run("reg", "many u32 n")
    words = ["perf", "record", "-e", "many", "-m", "1", "--", sys.executable, "-c", EMITTER, "20000"]
    lines = traced.out(*words).splitlines()
    samples = sum(": user_events:many: n=" in line for line in lines)
    lost = sum(
        int(m[1]) for line in lines if (m := re.fullmatch(r"user_events:many: LOST (\d+) SAMPLES", line))
    )
    stats = traced.out("cat", "events/user_events/many/stats")
    emitted = int(re.findall(r"emitted: (\d+)", stats)[0])
    assert samples
    assert samples + lost <= emitted <= 20000
