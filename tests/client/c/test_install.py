"""The installed tree: building programs in C and C++ with it, in any place; and code that must not
compile."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.client.c.building import SOURCE
from tests.client.c.test_emit import lines
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess
from tests.judges import needs

EXAMPLES = SOURCE.parents[1] / "examples"


def call(command: Sequence[str | Path], **environment: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def tree(built: Path, tmp_path: Path) -> Path:
    """Installed in one place and moved to another."""
    call(["make", "-s", "-C", SOURCE, "install", "PREFIX=/usr", f"DESTDIR={tmp_path / 'first'}"])
    return (tmp_path / "first" / "usr").rename(tmp_path / "moved")


def names_of(library: Path) -> set[str]:
    text = call(["nm", "-D", "--defined-only", library])
    return {line.split()[-1] for line in text.splitlines() if " A " not in line}


def test_only_public_names_are_seen(tree: Path) -> None:
    names = names_of(tree / "lib" / "libutracefs.so.0")
    assert "utracefs_emit_iov@@UTRACEFS_0.1" in names
    for_bindings = {name for name in names if re.search(r"@@UTRACEFS_BINDING_\d+$", name)}
    assert for_bindings
    assert all(name.startswith("utb_") for name in for_bindings)
    names -= for_bindings
    assert all(name.startswith("utracefs_") and name.endswith("@@UTRACEFS_0.1") for name in names)
    static = call(["nm", "-g", "--defined-only", tree / "lib" / "libutracefs.a"]).split()[3::3]
    assert {name.partition("@")[0] for name in names} == set(call_names(static))


def call_names(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("utracefs_")]


@needs("pkg-config")
def test_pkg_config(tree: Path, daemon: DaemonProcess, events_req: None, tmp_path: Path) -> None:
    flags = call(
        ["pkg-config", "--cflags", "--libs", "utracefs"], PKG_CONFIG_PATH=f"{tree}/lib/pkgconfig"
    ).split()
    program = tmp_path / "requests"
    call(["gcc", "-Wall", "-Wextra", "-Werror", EXAMPLES / "c" / "requests.c", "-o", program, *flags])
    call([program], LD_LIBRARY_PATH=f"{tree}/lib")
    assert len(lines(daemon, "req_begin")) == len(lines(daemon, "req_end")) == 1000
    static = tmp_path / "static"
    source, library = EXAMPLES / "c" / "requests.c", tree / "lib" / "libutracefs.a"
    call(["gcc", "-pthread", f"-I{tree}/include", source, library, "-o", static])
    call([static])
    assert len(lines(daemon, "req_begin")) == 2000


@needs("pkg-config")
def test_a_reader(tree: Path, daemon: DaemonProcess, events_req: None, tmp_path: Path) -> None:
    """examples/c/watch.c, linked both ways, also as C++."""
    flags = call(
        ["pkg-config", "--cflags", "--libs", "utracefs"], PKG_CONFIG_PATH=f"{tree}/lib/pkgconfig"
    ).split()
    call(["gcc", EXAMPLES / "c" / "requests.c", "-o", tmp_path / "requests", *flags])
    watch, shown = tmp_path / "watch", tmp_path / "shown"
    call(["gcc", "-Wall", "-Wextra", "-Werror", EXAMPLES / "c" / "watch.c", "-o", watch, *flags])
    call(["gcc", "-x", "c++", "-fsyntax-only", f"-I{tree}/include", EXAMPLES / "c" / "watch.c"])
    with (
        open(shown, "w") as out,
        subprocess.Popen(
            [watch, "req_*", "request < 10"],
            stdout=out,
            env={**os.environ, "LD_LIBRARY_PATH": f"{tree}/lib"},
        ),
    ):
        wait_for(lambda: shown.read_text() == "ready\n")
        call([tmp_path / "requests"], LD_LIBRARY_PATH=f"{tree}/lib")
        wait_for(lambda: shown.read_text().count("\n") == 21)
        daemon.stop()
    begun = [line for line in shown.read_text().splitlines() if "req_begin: " in line]
    assert len(begun) == 10
    assert " requests-" in begun[3]
    assert "req_begin: 03 00 00 00" in begun[3]


@needs("g++")
@needs("cmake")
def test_cmake(tree: Path, daemon: DaemonProcess, events_req: None, tmp_path: Path) -> None:
    build = tmp_path / "build"
    call(["cmake", "-S", EXAMPLES / "cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={tree}"])
    call(["cmake", "--build", build])
    for nr, program in enumerate(("jobs", "jobs-static"), 1):
        call([build / program])
        assert len(lines(daemon, "job_end")) == nr * 1000
    assert " title=job number 999" in "".join(lines(daemon, "job_begin"))


@pytest.fixture
def events_req(daemon: DaemonProcess) -> None:
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"user_events:req_*\n")
        tree.write_file("standing_events", b"user_events:job_*\n", truncate=False)


# ---- what must not compile

C = """
#include <stdbool.h>
#include <utracefs.h>
struct pair { int a, b; };
UTRACEFS_EVENT(refused, (u32, n), (string, text), (chars, name, 8), (structure, both, pair, 8),
	       (double, real), (bool, flag));
static struct pair pair;
"""
CPP = """
#include <utracefs.hpp>
#include <array>
#include <string>
#include <vector>
struct pair { int a, b; };
enum class colour { red };
static_assert(std::string_view(utracefs::command("refused", utracefs::u32{"n"},
						 utracefs::chars<8>{"name"}).data) ==
	      "refused u32 n; char[8] name");
static utracefs::event refused{"refused", utracefs::u32{"n"}, utracefs::string{"text"},
			       utracefs::chars<8>{"name"},
			       utracefs::structure<pair>{"both", "pair"}, utracefs::bytes{"raw"}};
static utracefs::event rows{"rows", utracefs::array<utracefs::s16, 3>{"a"},
			    utracefs::array<utracefs::boolean, 2>{"b"},
			    utracefs::array<utracefs::f64, 1>{"c"}};
static_assert(std::string_view(utracefs::command("rows", utracefs::array<utracefs::s16, 3>{"a"},
						 utracefs::array<utracefs::f32, 2>{"b"}).data) ==
	      "rows struct s16_3 a 6; struct float_2 b 8");
static utracefs::event real{"real", utracefs::f64{"x"}, utracefs::f32{"y"}, utracefs::boolean{"flag"}};
static_assert(std::string_view(utracefs::command("real", utracefs::f64{"x"}, utracefs::f32{"y"},
						 utracefs::boolean{"flag"}).data) ==
	      "real struct double x 8; struct float y 4; struct bool flag 1");
static pair both{1, 2};
static std::vector<unsigned char> raw;
"""


def wrong_lines(compiler: str, head: str, lines: list[str], tmp_path: Path) -> list[str]:
    """The lines that cannot be the body of a function behind `head`."""
    source = tmp_path / ("refused.cpp" if compiler == "g++" else "refused.c")
    bodies = [
        f"void f{n}({'' if compiler == 'g++' else 'void'}) {{ {line} }}" for n, line in enumerate(lines)
    ]
    source.write_text("\n".join([head, *bodies, ""]))
    options = ["-std=c++17"] if compiler == "g++" else []
    command = [compiler, *options, "-Wall", "-Wextra", "-Wno-unused", "-Werror", "-fsyntax-only"]
    command += [f"-I{SOURCE / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    first = head.count("\n") + 2
    numbers = {int(n) for n in re.findall(rf"^{source}:(\d+):", done.stderr, re.MULTILINE)}
    return [line for n, line in enumerate(lines, first) if n in numbers]


def test_wrong_arguments_in_c(tmp_path: Path) -> None:
    right = [
        'UTRACEFS_EMIT(refused, 1, "text", "name", &pair, 1.5, 1);',
        "UTRACEFS_EMIT(refused, 1, NULL, NULL, &pair, 1.5, 1);",
    ]
    wrong = [
        'UTRACEFS_EMIT(refused, 1, "text", "name", 1.5, 1);',
        'UTRACEFS_EMIT(refused, 1, "text", "name", &pair, 1.5, 1, 5);',
        'UTRACEFS_EMIT(refused, "1", "text", "name", &pair, 1.5, 1);',
        'UTRACEFS_EMIT(refused, 1, 2, "name", &pair, 1.5, 1);',
        'UTRACEFS_EMIT(refused, 1, "text", "name", "pair", 1.5, 1);',
        'UTRACEFS_EMIT(refused, 1, "text", "name", &pair, "1.5", 1);',
        'UTRACEFS_EMIT(refused, 1, "text", "name", &pair, 1.5, pair);',
        "UTRACEFS_EMIT(other, 1);",
    ]
    assert wrong_lines("gcc", C, right + wrong, tmp_path) == wrong


def test_numbers_of_arrays_in_c(tmp_path: Path) -> None:
    right = ["4, 16", "N, 16", "1024, 4096"]
    # (0x4 would be `struct u32_0x4`, which is no array.)
    wrong = ["4, 12", "0x4, 16", "4u, 16", "(4), 16", "04, 16", "4, 2*8"]
    source = tmp_path / "rows.c"
    rows = [f"UTRACEFS_EVENT(rows{n}, (array, a, u32, {text}));" for n, text in enumerate(right + wrong)]
    source.write_text("\n".join(["#include <utracefs.h>", "#define N 4", *rows]))
    command = ["gcc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {int(n) - 3 for n in re.findall(rf"^{source}:(\d+):", done.stderr, re.MULTILINE)}
    assert [(right + wrong)[n] for n in sorted(found)] == wrong


ALL_KINDS = """
#include <utracefs.h>
struct pair { int a, b; };
UTRACEFS_EVENT(all, (u8, a), (u16, b), (u32, c), (u64, d), (s8, e), (s16, f), (s32, g), (s64, h), (string, i),
	       (bytes, j), (chars, k, 16), (structure, l, pair, 8), (double, m), (float, n), (bool, o),
	       (array, p, u32, 2, 8), (array, q, bool, 1, 1), (array, r, double, 1, 8));
UTRACEFS_EVENT_FLAGS(one, UTRACEFS_MULTI_FORMAT, (u8, a));
UTRACEFS_EVENT_PLAIN(plain);
int main(void)
{
	struct pair p = {1, 2};
	double real = 1.5;
	if (p.a)
		UTRACEFS_EMIT(all, 1, 2, 3, 4, 5, 6, 7, 8, "a, b", utracefs_bytes("x", 1), "k", &p, 1.5, 2, 1,
			      (uint32_t[2]){1, 2}, (_Bool[1]){1}, &real);
	else
		UTRACEFS_EMIT(plain);
	UTRACEFS_EMIT(one, 1);
	return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=needs("clang"))])
def test_every_standard_of_c_to_the_letter(tmp_path: Path, compiler: str) -> None:
    source = tmp_path / "all.c"
    source.write_text(ALL_KINDS)
    for standard in ("c99", "c11", "c17", "c2x", "gnu99", "gnu2x"):
        strict = [f"-std={standard}", "-Wpedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
        call([compiler, *strict, f"-I{SOURCE / 'include'}", source])


@needs("g++")
@pytest.mark.parametrize("statement", ["UTRACEFS_EVENT(e, (u8, a));", "void f() { UTRACEFS_EMIT(e, 1); }"])
def test_the_macros_of_c_say_what_to_include_in_cpp(tmp_path: Path, statement: str) -> None:
    source = tmp_path / "macros.cpp"
    source.write_text(f"#include <utracefs.h>\n{statement}\n")
    command = ["g++", "-fsyntax-only", f"-I{SOURCE / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "in C++ include utracefs.hpp" in done.stderr


@needs("g++")
def test_wrong_arguments_in_cpp(tmp_path: Path) -> None:
    right = [
        'refused.emit(1, "text", "name", both, raw);',
        'refused.emit(colour::red, std::string("text"), nullptr, both, std::string_view("x"));',
        'refused.emit(true, nullptr, std::string_view(), both, utracefs_bytes("x", 1)); if (refused) {}',
        "real.emit(1.5, 2.5f, true);",
        "std::int16_t a[3] = {}; bool b[2] = {}; rows.emit(a, b, std::array<double, 1>{1.5});",
        "real.emit(1, 2u, false);",
    ]
    wrong = [
        'refused.emit(1, "text", "name", both);',
        'refused.emit(1, "text", "name", both, raw, 1);',
        'refused.emit(1.5, "text", "name", both, raw);',
        'refused.emit("1", "text", "name", both, raw);',
        'refused.emit(1, 2, "name", both, raw);',
        'refused.emit(1, "text", "name", 5, raw);',
        'refused.emit(1, "text", "name", both, 7);',
        'refused.emit(1, "text", "name", both, std::vector<int>());',
        "std::int16_t a[2] = {}; bool b[2] = {}; rows.emit(a, b, std::array<double, 1>{1.5});",
        "std::int16_t *a = nullptr; bool b[2] = {}; rows.emit(a, b, std::array<double, 1>{1.5});",
        "std::uint16_t a[3] = {}; bool b[2] = {}; rows.emit(a, b, std::array<double, 1>{1.5});",
        "std::int16_t a[3] = {}; bool b[2] = {}; rows.emit(a, b, std::array<double, 2>{1.5});",
        "std::int16_t a[3] = {}; bool b[2] = {}; rows.emit(a, b, std::vector<double>{1.5});",
        "real.emit(1.5, 2.5, 1);",
        'real.emit("1.5", 2.5, true);',
        "real.emit(1.5, nullptr, true);",
        "auto copy = refused;",
    ]
    assert wrong_lines("g++", CPP, right + wrong, tmp_path) == wrong


CPP_KINDS = """
#include <utracefs.hpp>
#include <array>
#include <string>
struct pair { int a, b; };
static utracefs::event kinds{"c_cpp", utracefs::u8{"a"}, utracefs::s64{"b"}, utracefs::string{"text"},
			     utracefs::chars<4>{"name"}, utracefs::structure<pair>{"both", "pair"},
			     utracefs::bytes{"raw"}};
static utracefs::event floats{"c_floats_cpp", utracefs::f64{"x"}, utracefs::f32{"y"},
			      utracefs::boolean{"flag"}};
static utracefs::event arrays{"c_arrays_cpp", utracefs::array<utracefs::u64, 2>{"a"},
			      utracefs::array<utracefs::f32, 2>{"b"}, utracefs::array<utracefs::boolean, 1>{"c"}};
static utracefs::event plain{"c_plain_cpp"};
int main()
{
	kinds.emit(255, -5, std::string("text"), "much too long", pair{1, 2}, std::string("\\1\\2"));
	kinds.emit(0, 0, nullptr, nullptr, pair{}, utracefs_bytes(nullptr, 0));
	kinds.emit(256, 0, nullptr, nullptr, pair{}, utracefs_bytes(nullptr, 0));
	kinds.emit(0, ~0ull, nullptr, nullptr, pair{}, utracefs_bytes(nullptr, 0));
	floats.emit(-0.0, 1.5, true);
	floats.emit(std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity(), false);
	floats.emit(3, 1e39, true);
	const std::uint64_t numbers[2] = {1, ~0ull};
	arrays.emit(numbers, std::array<float, 2>{0.1f, -1.0f}, std::array<bool, 1>{true});
	plain.emit();
	utracefs_flush(20000);
	return kinds ? utracefs_event_error(kinds.get(), nullptr, 0) : 1;
}
"""


@needs("g++")
def test_every_kind_of_field_in_cpp(
    daemon: DaemonProcess, events_on: None, built: Path, tmp_path: Path
) -> None:
    source, program = tmp_path / "kinds.cpp", tmp_path / "kinds"
    source.write_text(CPP_KINDS)
    strict = ["-pedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Wold-style-cast"]
    compiler = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *strict, f"-I{SOURCE / 'include'}"]
    call([*compiler, source, "-o", program, f"-L{built}", "-lutracefs", f"-Wl,-rpath,{built}"])
    call([program])
    first, second = lines(daemon, "c_cpp")
    assert "b=0xfffffffffffffffb (-5) text=text name=muc both=" in first and first.endswith(" raw=01,02")
    assert " b=0x0 (0) text= name= both=" in second
    assert lines(daemon, "c_floats_cpp") == [" x=-0.0 y=1.5 flag=(1)", " x=nan y=-inf flag=(0)"]
    assert lines(daemon, "c_arrays_cpp") == [" a=[1,18446744073709551615] b=[0.1,-1.0] c=[true]"]
    assert len(lines(daemon, "c_plain_cpp")) == 1
    with daemon.tree() as tree:
        told = tree.read_file("events/user_events/c_cpp/stats")
        floats = tree.read_file("events/user_events/c_floats_cpp/stats")
    assert floats.startswith(b"emitted: 2\nbytes: 26\nrefused: 1 y was out of range\n")
    assert (
        told.partition(b"bytes: ")[2]
        .partition(b"\n")[2]
        .startswith(b"refused: 1 a was out of range\nrefused: 1 b was out of range\n")
    )
