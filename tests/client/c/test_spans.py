"""Spans of programs in C and C++."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.client.c.building import SOURCE
from tests.client.c.conftest import Run
from tests.client.c.test_emit import lines
from tests.integration.conftest import DaemonProcess
from tests.judges import needs


def fields(daemon: DaemonProcess, event: str) -> list[dict[str, str]]:
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines(daemon, event)]


@pytest.mark.usefixtures("events_on")
def test_nested_and_left_early(daemon: DaemonProcess, run: Run) -> None:
    assert run("spans") == "differ 1 differ 1 evaluated 1\n"
    orders, pays = fields(daemon, "c_order_begin"), fields(daemon, "c_pay_begin")
    assert [(one["order"], one["who"]) for one in orders] == [
        ("0x1", "outer"),
        ("0x3", "block"),
        ("0x4", "thread"),
    ]
    outer, block, thread = orders
    assert outer["parent_id"] == thread["parent_id"] == pays[2]["parent_id"] == "0x0"
    assert pays[0]["parent_id"] == pays[1]["parent_id"] == outer["span_id"]
    assert block["parent_id"] == pays[1]["span_id"]
    for name, begins in (("c_order_end", orders), ("c_pay_end", pays)):
        ends = {one["span_id"]: one for one in fields(daemon, name)}
        assert ends.keys() == {one["span_id"] for one in begins}
        assert all(ends[one["span_id"]]["parent_id"] == one["parent_id"] for one in begins)
        assert all(int(one["duration_ns"], 16) > 0 and one["error"] == "" for one in ends.values())


def test_off_no_argument_is_evaluated(daemon: DaemonProcess, run: Run) -> None:
    assert run("spans").endswith(" evaluated 0\n")


CPP = r"""
#include <utracefs.hpp>
static utracefs::spans order{"c_cpp_order", utracefs::u64{"id"}, utracefs::string{"who"}};
static utracefs::spans plain{"c_cpp_plain"};

static void fail()
{
	auto running = order(2, "fails");
	throw 1;
}

int main()
{
	auto outer = order(1, "outer");
	{
		auto inner = plain();
		inner.error("told");
	}
	try {
		fail();
	} catch (int) {
		auto within = plain();
	}
	return (order && outer.id() != 0) || (!order && outer.id() == 0) ? 0 : 1;
}
"""


@needs("g++")
@pytest.mark.usefixtures("events_on")
def test_cpp(daemon: DaemonProcess, built: Path, tmp_path: Path) -> None:
    source, program = tmp_path / "spans.cpp", tmp_path / "spans"
    source.write_text(CPP)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE / 'include'}", f"-L{built}"]
    subprocess.run(
        ["g++", *flags, source, "-o", program, "-lutracefs", f"-Wl,-rpath,{built}", "-pthread"], check=True
    )
    environ = {"UTRACEFS_DIR": str(daemon.directory)}
    subprocess.run([program], env=environ, check=True, timeout=60)
    outer, failed = fields(daemon, "c_cpp_order_begin")
    inner, within = fields(daemon, "c_cpp_plain_begin")
    assert inner["parent_id"] == failed["parent_id"] == within["parent_id"] == outer["span_id"]
    assert [one["error"] for one in fields(daemon, "c_cpp_order_end")] == ["exception", ""]
    assert [one["error"] for one in fields(daemon, "c_cpp_plain_end")] == ["told", ""]
