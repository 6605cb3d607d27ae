"""Opens perf events for player.c: `python -m tests.abi.perf_events DIRECTORY`.

Takes `perf ...` lines of a script from stdin and answers each with its lines of the transcript and a ".".
perf_event_open is a system call, which a mount cannot answer; the daemon has it on its socket.
"""

from __future__ import annotations

import sys

from tests.conformance.player import Player


def main() -> None:
    player = Player(sys.argv[1])
    for line in sys.stdin:
        for answer in player.op_perf(line.rstrip("\n").removeprefix("perf ")):
            print(answer)
        print(".", flush=True)


if __name__ == "__main__":
    main()
