"""Opens perf events for player.c: `python -m tests.abi.perf_events DIRECTORY`.

Takes `perf ...` lines of a script from stdin and answers each with its lines of the transcript and a ".".
perf_event_open is a system call, which a mount cannot answer; the daemon has it on its socket.
"""

import os
import sys

from utracefs.tree.tracefs import PerfAttr, Tracefs


def main() -> None:
    handles: dict[str, int] = {}
    with Tracefs(sys.argv[1]) as tree:
        for line in sys.stdin:
            _, name, operation, *event = line.split()
            if operation == "open":
                number = int(tree.read_file(f"events/user_events/{event[0]}/id"))
                handles[name], ring = tree.perf_event_open(
                    PerfAttr(config=number, sample_period=1, data_pages=8)
                )
                assert ring is not None
                os.close(ring)
                print("= perf_event_open: ok mmap ok")
            else:
                tree.close_handle(handles.pop(name))
                print("= ok")
            print(".", flush=True)


if __name__ == "__main__":
    main()
