"""Random messages of both sockets from a seed: mostly valid, often almost valid, sometimes nonsense.

Names of events are from a small pool, so that attackers meet each other's events; an event's fields follow
from its number, so that most registrations agree and most records fit.
"""

from __future__ import annotations

import math
import os
import random
import struct
from typing import Any

import attrs
import msgpack

from tests.soak.attacks.descriptors import ORDINARY, USEFUL

EVENTS = 24
HANDLES = 8
"""`HANDLE + n` is the connection's n-th handle, of the last HANDLES."""
HANDLE = 0xFA50_AC00
_SHAPES = [
    "",
    "u32 a",
    "u64 n; u16 m",
    "__rel_loc char[] s",
    "__data_loc u8[] d; char[16] c",
    "struct foo f 20; s8 x",
    "; ".join(f"u8 f{i}" for i in range(50)),
    "__rel_loc char[] s; u32 a; __data_loc char[] t",
]
_NONSENSE: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 255, 4096, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 63, (1 << 64) - 1),
    *(-(1 << 63), 1.5, math.nan, math.inf, "", b"", "a\0b", "é" * 40, "x" * 600, b"\xff\xfe", "../..", "/"),
    *([], {}, [[[[]]]], {"a": {"b": {}}}, {1: 2}, [None] * 300, msgpack.ExtType(5, b"x")),
    *(msgpack.Timestamp(0, 1), b"\0" * 5000, "%s%n", "user_events:*", "!u:soak1", ":::", "*" * 200),
]


@attrs.frozen
class Packet:
    """The contents of one sendmsg(2)."""

    data: bytes
    """Messages, the last perhaps incomplete."""

    fds: tuple[str, ...] = ()
    """Kinds of descriptors in it."""


def near(rng: random.Random, value: Any, chance: float = 0.08) -> Any:
    """`value`, or a changed value."""
    if rng.random() >= chance:
        return value
    if isinstance(value, int) and rng.random() < 0.5:
        return value + rng.choice([-1, 1, 7, 8, 1 << 16, 1 << 31])
    if isinstance(value, str) and value and rng.random() < 0.5:
        place = rng.randrange(len(value))
        return value[:place] + rng.choice(["", " ", ";", "\0", ":", "[", "é", value]) + value[place + 1 :]
    if isinstance(value, dict) and rng.random() < 0.7:
        odd = {**value, rng.choice(["size", "flags", "unknown", "reserved"]): rng.choice(_NONSENSE)}
        if value and rng.random() < 0.5:
            odd.pop(rng.choice(sorted(value)))
        return odd
    return rng.choice(_NONSENSE)


def request(rng: random.Random, method: str, params: list[Any]) -> bytes:
    """One request, sometimes with a wrong number or shape."""
    if rng.random() < 0.04:
        params = [*params, rng.choice(_NONSENSE)] if rng.random() < 0.5 else params[:-1]
    message = [0, rng.randrange(1 << 32), near(rng, method, 0.01), params]
    if rng.random() < 0.003:  # then the connection ends here
        message[rng.randrange(3)] = rng.choice(_NONSENSE)
    data: bytes = msgpack.packb(message, unicode_errors="surrogateescape")
    return data


def event_name(rng: random.Random) -> str:
    return f"soak{rng.randrange(EVENTS)}"


def declaration(rng: random.Random, number: int | None = None) -> str:
    """The command string of an event of the pool, rarely one with a name of its own or with other fields."""
    number = rng.randrange(EVENTS) if number is None else number
    fields = _SHAPES[number % len(_SHAPES)]
    if rng.random() < 0.05:
        fields = rng.choice(_SHAPES)
    if rng.random() < 0.05:
        return f"soak_{rng.randrange(1 << 20)} {fields}".strip()
    return f"soak{number} {fields}".strip()


def payload(rng: random.Random) -> bytes:
    """Bytes that fit one of the shapes, or almost."""
    kind = rng.random()
    if kind < 0.3:
        text = b"t" * rng.randrange(200) + b"\0"
        return struct.pack("<HH", rng.choice([0, 0, 0, 1, 65535]), len(text)) + text
    if kind < 0.35:
        return rng.randbytes(rng.choice([4064, 4065, 8184, 8192, 65000, 65529]))
    return rng.randbytes(rng.randrange(90))


def record(rng: random.Random) -> bytes:
    """A bare event record."""
    index = near(rng, rng.randrange(6), 0.1)
    index = index if isinstance(index, int) and 0 <= index < 1 << 32 else 0xFFFF_FFFF
    body = struct.pack("<I", index)[: rng.choice([4] * 20 + [0, 3])] + payload(rng)
    if rng.random() < 0.3:  # with the writer's thread
        tid = rng.choice([os.getpid(), 1, 0, rng.randrange(1 << 22), rng.randrange(1 << 32)])
        body = struct.pack("<iIHH", -1, tid, rng.choice([0, 1, 65535]), rng.choice([0, 2, 2, 65535])) + body
    data: bytes = msgpack.packb(body)
    return data


def framing(rng: random.Random) -> bytes:
    """Bytes that are no message."""
    return rng.choice(
        [
            rng.randbytes(rng.randrange(1, 60)),
            b"\xc1",
            b"\x91" * rng.randrange(1, 40),
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\x7f\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff" + rng.randbytes(100),
            b"\xc6\x00\x01\x00\x00" + bytes(65536),
            b"\x94\x00\x01\xdb\xff\xff\xff\xff",
            b"\x93\x02\xa5error\x90",
            b"\x94\x01\x01\xc0\xc0",
            b"\xd7\xff" + bytes(8),
            b"\x94\x00\x01\xa4sync\xde\xff\xff",
        ]
    )


def data_message(rng: random.Random) -> tuple[bytes, list[str]]:
    """A message to the data socket, and its descriptors."""
    kind = rng.random()
    if kind < 0.30:
        return record(rng), []
    if kind < 0.60:
        return _registration(rng)
    if kind < 0.66:
        return request(rng, "DIAG_IOCSDEL", [near(rng, event_name(rng), 0.2)]), []
    if kind < 0.72:
        unreg = {"disable_fd": near(rng, 0), "disable_addr": near(rng, 4 * rng.randrange(1024))}
        unreg["disable_bit"] = near(rng, rng.randrange(32))
        return request(rng, "DIAG_IOCSUNREG", [near(rng, unreg)]), ["memfd sealed"]
    if kind < 0.76:
        return request(rng, "write", [near(rng, struct.pack("<I", rng.randrange(6)) + payload(rng))]), []
    if kind < 0.82:
        return request(rng, "sync", []), []
    if kind < 0.86:
        return request(rng, "mmap_status", []), []
    if kind < 0.97:
        fds = [rng.choice(USEFUL), rng.choice(["own1", "eventfd", "eventfd full", "eventfd semaphore"])]
        return request(rng, "adopt_ring", [near(rng, {})]), fds
    if kind < 0.985:
        return _told(rng), []
    method = rng.choice(["DIAG_IOCQLOCOFFSET", "read_file", "open", "nonsense", "", "x" * 300])
    return request(rng, method, [rng.choice(_NONSENSE)]), []


def _told(rng: random.Random) -> bytes:
    """About enablers with tokens, and on behalf of others."""
    kind = rng.random()
    if kind < 0.3:
        return request(rng, "notify_enablers", [near(rng, {})])
    if kind < 0.6:
        return request(rng, "DIAG_IOCSUNREG", [near(rng, {"disable_token": near(rng, rng.randrange(40))})])
    if kind < 0.85:
        seq = near(rng, 1 + int(rng.expovariate(0.7)), 0.05)
        data: bytes = msgpack.packb(
            [2, near(rng, "enablers_written", 0.02), [seq]], unicode_errors="surrogateescape"
        )
        return data
    process = {
        "pid": near(rng, 1 + rng.randrange(4000), 0.2),
        "start_time": near(rng, rng.randrange(1 << 20)),
    }
    process |= {"uid": near(rng, rng.randrange(3) * 1000), "gid": near(rng, 0)}
    return request(rng, "open_for", [near(rng, process)])


def _registration(rng: random.Random) -> tuple[bytes, list[str]]:
    reg: dict[str, Any] = {"name_args": near(rng, declaration(rng), 0.12)}
    fds: list[str] = []
    if rng.random() < 0.2:
        reg["flags"] = near(rng, rng.choice([1, 2, 2, 3]), 0.2)
    if rng.random() < 0.15:
        reg["enable_token"] = near(rng, rng.randrange(40), 0.05)
    elif rng.random() < 0.3:
        reg |= {"enable_fd": near(rng, 0), "enable_size": near(rng, rng.choice([4, 8]))}
        reg |= {"enable_addr": near(rng, 8 * rng.randrange(512)), "enable_bit": near(rng, rng.randrange(32))}
        fds = ["memfd sealed" if rng.random() < 0.7 else rng.choice(ORDINARY)]
    if rng.random() < 0.1:
        reg["event_id"] = near(rng, rng.randrange(20, 60), 0.05)
    return request(rng, "DIAG_IOCSREG", [near(rng, reg)]), fds


_TOP = (
    *("README", "available_events", "dynamic_events", "printk_formats", "saved_cmdlines"),
    *("saved_cmdlines_size", "saved_tgids", "user_events_data", "user_events_status", "available_tracers"),
    *("buffer_percent", "buffer_size_kb", "buffer_subbuf_size_kb", "buffer_total_size_kb", "current_tracer"),
    *("error_log", "free_buffer", "set_event", "set_event_notrace_pid", "set_event_pid", "standing_events"),
    *("timestamp_mode", "trace", "trace_clock", "trace_marker", "trace_marker_raw", "trace_options"),
    *("trace_pipe", "tracing_cpumask", "tracing_on", "events/enable", "events/user_events/enable"),
    "events/user_events/filter",
    *("per_cpu/cpu0/trace", "per_cpu/cpu0/trace_pipe", "per_cpu/cpu0/trace_pipe_raw", "per_cpu/cpu0/stats"),
    *("per_cpu/cpu1/trace_pipe_raw", "per_cpu/cpu0/buffer_size_kb", "per_cpu/cpu9999/stats", ""),
    *("options/overwrite", "options/block", "options/record-cmd", "events/header_page", "instances"),
    *("events", "events/user_events", "options", "per_cpu", "consumers", "consumers/count/set_event"),
    *("consumers/count/report", "events/user_events/soak1", "..", "events/../trace", "trace/", "/trace"),
)
_CONTENTS = (
    *(
        "0",
        "1",
        "2",
        "-1",
        "",
        " ",
        "\n",
        "nop",
        "mono",
        "local",
        "counter",
        "x86-tsc",
        "overwrite",
        "noblock",
    ),
    *(
        "user_events:*",
        "!user_events:*",
        "soak*",
        "!soak1",
        "*:*",
        "user_events:soak1 user_events:soak2",
        "3",
    ),
    *("50", "100", "101", "64", "1408", "4096", "8192", "18446744073709551615", "0x10", "1 2 3", "ffffffff"),
    *("a == 1", "a & 3 || !(common_pid < 0)", "comm ~ '*[a-m]*' && CPU & CPUS{0,1}", 's ~ "?*"', "((a == 1)"),
    *("a marker", "\0\0\0\0raw", "u:made u32 a", "!u:made u32 a", "u:made_2 __rel_loc char[] s", "u:"),
)


def path(rng: random.Random) -> str:
    """A file of the tree, or an almost valid name."""
    if rng.random() < 0.35:
        file = rng.choice(["enable", "format", "id", "stats", "filter", "nothing"])
        return f"events/user_events/{event_name(rng)}/{file}"
    return rng.choice(_TOP)


def tracefs_message(rng: random.Random) -> tuple[bytes, list[str]]:
    """A message to the tracefs socket."""
    kind = rng.random()
    handle = near(rng, HANDLE + rng.randrange(HANDLES), 0.05)
    if kind < 0.2:
        return request(rng, "read_file", [near(rng, path(rng))]), []
    if kind < 0.45:
        contents = near(rng, rng.choice(_CONTENTS), 0.1)
        contents = contents.encode("utf-8", "replace") if isinstance(contents, str) else contents
        return request(rng, "write_file", [near(rng, path(rng)), contents, near(rng, rng.random() < 0.5)]), []
    if kind < 0.52:
        method = rng.choice(["list_dir", "stat", "mkdir", "rmdir"])
        modes = [near(rng, True)] if method == "list_dir" and rng.random() < 0.5 else []
        return request(rng, method, [near(rng, path(rng)), *modes]), []
    if kind < 0.66:
        flags = near(rng, rng.choice([0, 1, 2, 0x800, 0x801, 0x802, 0x201, 0x401]), 0.05)
        return request(rng, "open", [near(rng, path(rng)), flags]), []
    if kind < 0.78:
        flags = [near(rng, rng.choice([0, 0x800]))] if rng.random() < 0.3 else []
        return request(rng, "read", [handle, near(rng, rng.choice([0, 1, 4096, 65536, 1 << 20])), *flags]), []
    if kind < 0.83:
        writer = {"pid": near(rng, 1 + rng.randrange(4_000)), "start_time": near(rng, rng.randrange(1 << 20))}
        written = [handle, near(rng, rng.choice(_CONTENTS).encode())]
        return request(rng, "write", [*written, near(rng, writer)] if rng.random() < 0.3 else written), []
    if kind < 0.87:
        method = rng.choice(["close", "poll", "ready", "seek", "cancel"])
        if method == "cancel":
            return request(rng, method, [near(rng, rng.randrange(1000))]), []
        return request(
            rng, method, [handle, near(rng, rng.randrange(9))] if method == "seek" else [handle]
        ), []
    if kind < 0.93:
        return request(rng, "perf_event_open", [near(rng, _perf_attr(rng))]), []
    if kind < 0.97:
        name = near(rng, rng.choice(["ENABLE", "DISABLE", "RESET", "PERIOD", "ID", "SET_FILTER"]))
        return request(rng, "perf_ioctl", [handle, name, near(rng, rng.randrange(5), 0.3)]), []
    return request(rng, rng.choice(["sync", "DIAG_IOCSREG", "nonsense"]), [rng.choice(_NONSENSE)]), []


def _perf_attr(rng: random.Random) -> dict[str, Any]:
    attr: dict[str, Any] = {"name": f"user_events:{event_name(rng)}"}
    if rng.random() < 0.1:
        attr = {"config": near(rng, rng.randrange(60), 0.1)}
    attr |= {"sample_period": rng.choice([0, 1, 1, 100]), "data_pages": rng.choice([0, 1, 1, 2, 8, 64])}
    more: dict[str, list[Any]] = {
        "wakeup_watermark": [0, 1, 4096, 1 << 40],
        "pid": [-1, 1, 4_000_000],
        "cpu": [-1, 0, 99],
        "sample_freq": [1, 1000, 100_001],
        "disabled": [True, False],
        "sample_type": [0x10587, 1, 0xFFFF_FFFF],
        "filter": ["a == 1"],
    }
    for member, values in more.items():
        if rng.random() < 0.06:
            attr[member] = rng.choice(values)
    return attr
