"""Events of the kernel's scheduler and allocator as user events, for tests that were written for those:
`kernel_events.py FOLDER`.

FOLDER has two fifos, `request` and `answer`. A request is a line `PID COMM PRIO COUNT`: so many times a
process COMM of that priority is forked by PID, wakes up, runs and ends. The response is a line, when the
records have been taken in.
"""

import sys
from pathlib import Path
from typing import Any

import utracefs

NAME = "ftracetest"
"""The scripts' name, which this process takes."""

FORKED = 4000
"""Number of the first forked process."""


def _task(prefix: str) -> str:
    return f"char[16] {prefix}_comm; s32 {prefix}_pid; s32 {prefix}_prio"


_COMM = "char[16] comm; s32 pid; s32 prio"
_DECLARED = (
    "sched_process_fork char[16] parent_comm; s32 parent_pid; char[16] child_comm; s32 child_pid",
    "sched_process_exec __rel_loc char[] filename; s32 pid; s32 old_pid",
    f"sched_waking {_COMM}; s32 target_cpu",
    f"sched_wakeup {_COMM}; s32 target_cpu",
    f"sched_switch {_task('prev')}; s64 prev_state; {_task('next')}",
    "kmalloc u64 call_site; u64 ptr; u64 bytes_req; u64 bytes_alloc; u64 gfp_flags; s32 node",
    "sys_exit s64 id; s64 ret",
    f"sched_process_exit {_COMM}",
    "signal_generate s32 sig; s32 errno; s32 code; char[16] comm; s32 pid; s32 group; s32 result",
)


def main(folder: str) -> None:
    Path("/proc/self/comm").write_text(NAME)
    events = [utracefs.event(declaration) for declaration in _DECLARED]
    request, answer = Path(folder, "request"), Path(folder, "answer")
    forked = FORKED
    while True:
        with request.open() as requests:
            words = requests.read().split()
        parent, comm, prio, count = int(words[0]), words[1], int(words[2]), int(words[3])
        for _ in range(count):
            forked += 1
            task = comm, forked, prio
            records: list[tuple[Any, ...]] = [
                (NAME, parent, NAME, forked),
                (f"/bin/{comm}", forked, forked),
                (*task, 0),
                (*task, 0),
                ("swapper/0", 0, 120, 0, *task),
                (0xFFFFFFFF81000000, 1, 200, 256, 0, 0),
                (3, 0),
                task,
                (17, 0, 1, comm, forked, 1, 0),
            ]
            for event, values in zip(events, records, strict=True):
                event.emit(*values)
        assert utracefs.flush(60)
        answer.write_text("done\n")


if __name__ == "__main__":
    main(sys.argv[1])
