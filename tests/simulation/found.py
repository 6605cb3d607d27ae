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
    # Two histograms without room for a file shared one in the next daemon.
    [
        ("program", 37482, 39610, 31533, 62894),
        ("register", 24494, 30667, 50495, 24050),
        ("restart", 13390, 22943, 13874, 31563),
        ("program", 55363, 41542, 21820, 10485),
        ("program", 48449, 21888, 29611, 44606),
        ("register", 15837, 51296, 14141, 14598),
        ("hist", 5313, 52558, 57699, 12507),
        ("disk", 52335, 4958, 47576, 4966),
        ("hist", 61822, 20801, 23340, 19279),
        ("end", 45487, 43112, 51145, 62141),
        ("emit", 31983, 12337, 61688, 20275),
        ("kill", 31965, 36418, 42687, 60245),
        ("back", 62599, 34178, 57505, 42583),
        ("emit", 38346, 52111, 6678, 3154),
    ],
]
