"""Faults that the simulation has found, each as the list of steps that it left: they must pass."""

from tests.simulation.world import Step

FOUND: list[list[Step]] = [
    # A kill while a histogram is removed left its trigger to the next daemon, without its counts.
    [
        ("program", 24414, 9689, 40372, 18875),
        ("register", 55195, 23819, 25965, 39995),
        ("hist", 61968, 37251, 62219, 41157),
        ("emit", 57939, 48824, 42477, 23034),
        ("mkdir", 47227, 11958, 49775, 24592),
        ("ring", 28968, 55078, 13948, 25689),
        ("restart", 8397, 12240, 55676, 19037),
        ("disk", 31764, 51586, 31538, 48200),
        ("filter", 13614, 39497, 51199, 61294),
        ("traceoff", 58330, 61862, 4262, 5514),
        ("rmdir", 11587, 4388, 57094, 3965),
        ("hist", 4722, 17051, 1083, 40087),
    ],
    # Two histograms, whose files were gone for want of memory, shared one in the next daemon.
    [
        ("program", 0, 0, 0, 0),
        ("register", 0, 0, 1, 1),
        ("register", 0, 1, 1, 1),
        ("hist", 0, 1, 1, 0),
        ("hist", 0, 0, 1, 0),
        ("disk", 3, 0, 0, 0),
        ("emit", 0, 0, 8, 0),
        ("emit", 0, 1, 9, 0),
        ("kill", 0, 0, 0, 0),
        ("disk", 4, 0, 0, 0),
        ("back", 0, 1, 0, 0),
        ("emit", 0, 0, 16, 0),
    ],
    # An instance that was made in place of a removed one had its buffer, and what was in it.
    [
        ("program", 0, 0, 0, 0),
        ("register", 0, 0, 1, 1),
        ("mkdir", 0, 0, 0, 0),
        ("enable", 1, 0, 1, 0),
        ("emit", 0, 0, 9, 0),
        ("restart", 0, 0, 0, 0),
        ("back", 0, 1, 0, 0),
        ("disk", 3, 0, 0, 0),
        ("snapshot", 1, 0, 0, 0),
        ("disk", 4, 0, 0, 0),
        ("rmdir", 0, 0, 0, 0),
        ("mkdir", 0, 0, 0, 0),
    ],
    # A kill while a buffer got another size left the new rings' files, as large as the buffer, until the next
    # change of its size.
    [
        ("snapshot", 64022, 28093, 51634, 44072),
        ("disk", 45865, 46823, 59541, 50128),
        ("size", 41790, 40837, 41648, 11743),
    ],
    # A ring that its program made, and handed to the next daemon before it registered its events, was read
    # behind the others.
    [
        ("strike", 33596, 34033, 17554, 49553),
        ("early", 63123, 45150, 57761, 59790),
        ("register", 11976, 42441, 12809, 54901),
        ("early", 42574, 57236, 57978, 52895),
        ("storm", 34893, 45478, 61592, 7218),
        ("look", 47178, 34938, 29711, 3350),
        ("snapshot", 56685, 17596, 26172, 26980),
    ],
    # An event that came back with records of before, and went again unrecorded, left its id to another event.
    [
        ("early", 2596, 54767, 33730, 14348),
        ("storm", 41338, 62345, 15095, 10585),
        ("vanish", 5789, 1922, 33512, 28907),
        ("time", 20783, 28553, 33956, 12568),
        ("early", 38069, 62758, 2749, 35123),
        ("end", 57792, 40114, 20761, 12575),
        ("early", 65344, 41448, 25039, 48368),
    ],
    # A daemon that had a ring from the store, and not yet its events, refused the ring's records.
    [
        ("program", 0, 0, 0, 0),
        ("register", 0, 0, 1, 1),
        ("enable", 0, 0, 1, 0),
        ("manager", 2, 0, 0, 0),
        ("restart", 0, 0, 0, 0),
        ("back", 0, 1, 0, 0),
        ("early", 0, 5, 8, 7),
        ("kill", 0, 0, 0, 0),
        ("write", 0, 0, 0, 0),
        ("back", 0, 1, 0, 0),
    ],
]
