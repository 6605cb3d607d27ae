"""Answers of Linux 6.12.117 for a command string of each kind: the line in dynamic_events, and the field lines
and print fmt of `format`. tests/conformance/6.12.117/01_types.txt has more of them.

Fixed char arrays are shown with their length: that kernel prints `a[]` for all of them (see declaration.py).
"""

# command string | line in dynamic_events without "u:", if another | fields: shown, offset, size, signed | print fmt
ROWS = r"""
t00 s8 a |  | s8 a 8 1 1 | "a=%d", REC->a
t03 u16 a |  | u16 a 8 2 0 | "a=%u", REC->a
t04 s32 a |  | s32 a 8 4 1 | "a=%d", REC->a
t06 s64 a |  | s64 a 8 8 1 | "a=%lld", REC->a
t07 u64 a |  | u64 a 8 8 0 | "a=%llu", REC->a
t08 char a |  | char a 8 1 1 | "a=%d", REC->a
t09 unsigned char a |  | unsigned char a 8 1 0 | "a=%u", REC->a
t15 char[20] a |  | char a[20] 8 20 1 | "a=%s", REC->a
t17 char[0x10] a |  | char a[16] 8 16 1 | "a=%s", REC->a
t18 char[010] a |  | char a[8] 8 8 1 | "a=%s", REC->a
t19 unsigned char[20] a |  | unsigned char a[20] 8 20 0 | "a=%s", REC->a
t22 struct foo a 20 |  | struct foo a 8 20 1 | "a=%llu", REC->a
t24 struct foo[2] a 8 |  | struct foo a[] 8 8 1 | "a=%llu", REC->a
t25 __data_loc char[] a |  | __data_loc char[] a 8 4 1 | "a=%s", __get_str(a)
t26 __rel_loc char[] a |  | __rel_loc char a[] 8 4 1 | "a=%s", __get_rel_str(a)
t27 __data_loc u8[] a |  | __data_loc u8[] a 8 4 1 | "a=%llu", REC->a
t28 __rel_loc u8[] a |  | __rel_loc u8 a[] 8 4 1 | "a=%llu", REC->a
t30 __rel_loc unsigned char[] a |  | __rel_loc unsigned char a[] 8 4 1 | "a=%s", __get_rel_str(a)
t31 __data_loc char a |  | __data_loc char a 8 4 1 | "a=%llu", __get_str(a)
t32 __data_loc foo a |  | __data_loc foo a 8 4 1 | "a=%llu", REC->a
t33 __data_loc char[20] a |  | __data_loc char[20] a 8 4 1 | "a=%s", __get_str(a)
t34 __rel_loc u32[] a |  | __rel_loc u32 a[] 8 4 1 | "a=%llu", REC->a
t37 u32 a;u32 b | t37 u32 a; u32 b | u32 a 8 4 0, u32 b 12 4 0 | "a=%u b=%u", REC->a, REC->b
t40 u32 a;  | t40 u32 a | u32 a 8 4 0 | "a=%u", REC->a
t43 u32 a; u8 b; u64 c; u16 d; char[5] e; s64 f |  | u32 a 8 4 0, u8 b 12 1 0, u64 c 13 8 0, u16 d 21 2 0, char e[5] 23 5 1, s64 f 28 8 1 | "a=%u b=%u c=%llu d=%u e=%s f=%lld", REC->a, REC->b, REC->c, REC->d, REC->e, REC->f
t44 u8 a; __rel_loc char[] s; u32 c |  | u8 a 8 1 0, __rel_loc char s[] 9 4 1, u32 c 13 4 0 | "a=%u s=%s c=%u", REC->a, __get_rel_str(s), REC->c
t45 u8 a; __data_loc char[] s; u32 c |  | u8 a 8 1 0, __data_loc char[] s 9 4 1, u32 c 13 4 0 | "a=%u s=%s c=%u", REC->a, __get_str(s), REC->c
t48 u32 a-b |  | u32 a-b 8 4 0 | "a-b=%u", REC->a-b
t50 u32 a[2] |  | u32 a[2] 8 4 0 | "a[2]=%u", REC->a[2]
t53 u32 common_pid |  | u32 common_pid 8 4 0 | "common_pid=%u", REC->common_pid
t59 u32 a; u32 a |  | u32 a 8 4 0, u32 a 12 4 0 | "a=%u a=%u", REC->a, REC->a
t61 u32 a:3 |  | u32 a:3 8 4 0 | "a:3=%u", REC->a:3
t62 u32 f1; u32 f2; u32 f3; u32 f4; u32 f5; u32 f6; u32 f7; u32 f8; u32 f9; u32 f10; u32 f11; u32 f12; u32 f13; u32 f14; u32 f15; u32 f16; u32 f17; u32 f18; u32 f19; u32 f20 |  | u32 f1 8 4 0, u32 f2 12 4 0, u32 f3 16 4 0, u32 f4 20 4 0, u32 f5 24 4 0, u32 f6 28 4 0, u32 f7 32 4 0, u32 f8 36 4 0, u32 f9 40 4 0, u32 f10 44 4 0, u32 f11 48 4 0, u32 f12 52 4 0, u32 f13 56 4 0, u32 f14 60 4 0, u32 f15 64 4 0, u32 f16 68 4 0, u32 f17 72 4 0, u32 f18 76 4 0, u32 f19 80 4 0, u32 f20 84 4 0 | "f1=%u f2=%u f3=%u f4=%u f5=%u f6=%u f7=%u f8=%u f9=%u f10=%u f11=%u f12=%u f13=%u f14=%u f15=%u f16=%u f17=%u f18=%u f19=%u f20=%u", REC->f1, REC->f2, REC->f3, REC->f4, REC->f5, REC->f6, REC->f7, REC->f8, REC->f9, REC->f10, REC->f11, REC->f12, REC->f13, REC->f14, REC->f15, REC->f16, REC->f17, REC->f18, REC->f19, REC->f20
t_nofields |  |  | ""
"""


def field(text: str) -> tuple[bytes, int, int, int]:
    shown, offset, size, signed = text.rsplit(" ", 3)
    return shown.encode(), int(offset), int(size), int(signed)


KERNEL_TYPES: list[tuple[bytes, bytes, list[tuple[bytes, int, int, int]], bytes]] = [
    (
        command.encode(),
        (line or command).encode(),
        [field(text) for text in fields.split(", ") if text],
        print_fmt.encode(),
    )
    for command, line, fields, print_fmt in (row.split(" | ") for row in ROWS.strip("\n").split("\n"))
]
