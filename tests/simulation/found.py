"""Faults that the simulation has found, each as the list of steps that it left.

They must pass, and fail with the fault of faults.py in front of them, where there is one.
"""

from tests.simulation.mixture import Step

FOUND: list[tuple[str, list[Step]]] = [
    # A kill while a histogram is removed left its trigger to the next daemon, without its counts.
    (
        "",
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
    ),
    # Two histograms, whose files were gone for want of memory, shared one in the next daemon.
    (
        "two_histograms_share_a_table",
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
    ),
    # An instance that was made in place of a removed one had its buffer, and what was in it.
    (
        "an_instance_gets_the_buffer_of_a_removed_one",
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
    ),
    # A kill while a buffer got another size left the new rings' files, as large as the buffer, until the next
    # change of its size.
    (
        "",
        [
            ("snapshot", 64022, 28093, 51634, 44072),
            ("disk", 45865, 46823, 59541, 50128),
            ("size", 41790, 40837, 41648, 11743),
        ],
    ),
    # A ring that its program made, and handed to the next daemon before it registered its events, was read
    # behind the others.
    (
        "rings_are_read_before_early_ones_have_their_events",
        [
            ("strike", 33596, 34033, 17554, 49553),
            ("early", 63123, 45150, 57761, 59790),
            ("register", 11976, 42441, 12809, 54901),
            ("early", 42574, 57236, 57978, 52895),
            ("storm", 34893, 45478, 61592, 7218),
            ("look", 47178, 34938, 29711, 3350),
            ("snapshot", 56685, 17596, 26172, 26980),
        ],
    ),
    # An event that came back with records of before, and went again unrecorded, left its id to another event.
    (
        "",
        [
            ("early", 2596, 54767, 33730, 14348),
            ("storm", 41338, 62345, 15095, 10585),
            ("vanish", 5789, 1922, 33512, 28907),
            ("time", 20783, 28553, 33956, 12568),
            ("early", 38069, 62758, 2749, 35123),
            ("end", 57792, 40114, 20761, 12575),
            ("early", 65344, 41448, 25039, 48368),
        ],
    ),
    # A daemon that had a ring from the store, and not yet its events, refused the ring's records.
    (
        "records_of_stored_rings_do_not_wait_for_their_registrations",
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
    ),
    # A histogram that was removed while the log had no room came back with its counts: the model had none.
    (
        "a_log_without_room_does_not_say_so",
        [
            ("mkdir", 5, 0, 0, 0),
            ("program", 5, 0, 0, 0),
            ("register", 0, 323, 0, 0),
            ("enable", 0, 0, 5, 0),
            ("set", 0, 9502, 40, 0),
            ("set", 0, 35048, 1, 0),
            ("torn", 0, 3, 0, 0),
            ("early", 0, 493, 0, 12),
            ("traceoff", 0, 0, 0, 0),
            ("hist", 1, 0, 0, 0),
            ("program", 0, 0, 0, 0),
            ("manager", 2, 0, 0, 0),
            ("early", 0, 56768, 19, 35600),
            ("traceoff", 3, 0, 0, 0),
            ("snapshot", 3, 0, 0, 0),
            ("program", 2, 0, 0, 0),
            ("starve", 0, 0, 0, 0),
            ("starve", 7, 2, 0, 0),
            ("kill", 0, 0, 0, 0),
            ("program", 2, 0, 0, 0),
            ("end", 0, 0, 0, 0),
            ("fall", 42, 0, 0, 0),
            ("program", 0, 0, 0, 0),
            ("ring", 0, 0, 0, 0),
            ("set", 0, 2563, 5, 0),
            ("strike", 50, 412, 13077, 63692),
            ("early", 1, 15131, 2, 0),
            ("program", 0, 0, 0, 0),
            ("set", 0, 59770, 4, 0),
            ("disk", 9, 0, 0, 0),
            ("snapper", 7, 0, 0, 0),
            ("hist", 5, 5, 0, 0),
            ("kill", 0, 0, 0, 0),
        ],
    ),
    # The ring of a program that was killed behind its place in the store: the world did not count it.
    (
        "",
        [
            ("early", 139, 13445, 46985, 52996),
            ("pipe", 24286, 43004, 37838, 1491),
            ("program", 28093, 26793, 34923, 43613),
            ("manager", 19110, 2137, 25738, 5331),
            ("register", 51783, 262, 5122, 31527),
            ("strike", 56091, 47391, 38606, 48534),
            ("program", 40232, 47712, 24858, 46761),
            ("disk", 27445, 16695, 31189, 49770),
            ("ring", 672, 1996, 55246, 32469),
            ("attach", 20483, 37270, 11785, 1961),
            ("early", 49967, 19246, 50925, 43932),
            ("kill", 9101, 4597, 26879, 5303),
        ],
    ),
    # A trace that fills the socket twice: half of an answer is no rest.
    (
        "",
        [
            ("program", 10016, 28038, 35279, 17555),
            ("pipe", 30225, 54117, 22475, 647),
            ("register", 47145, 4679, 39190, 32402),
            ("strike", 64072, 34296, 8830, 17914),
            ("storm", 63747, 14247, 31035, 57146),
            ("enable", 56041, 52755, 11227, 58980),
            ("flood", 23647, 39493, 25970, 38687),
            ("flood", 44644, 33150, 31230, 18927),
        ],
    ),
    # Events of a connection that a damaged ring has ended go after it: a kill between them.
    (
        "",
        [
            ("early", 18220, 57936, 25165, 48857),
            ("strike", 14845, 31542, 25391, 45526),
            ("filter", 29853, 1488, 21739, 55153),
            ("corrupt", 59234, 37854, 12597, 27490),
        ],
    ),
    # A ring was waited for whose last registration its user's share refuses, and its records waited in it.
    (
        "records_wait_for_a_registration_that_is_refused",
        [
            ("early", 19774, 64873, 57874, 3080),
            ("strike", 7168, 21761, 46040, 6757),
            ("early", 15211, 50656, 55046, 11456),
            ("starve", 14370, 7324, 60481, 12696),
        ],
    ),
    # An event that was removed while the log had no room is awaited again: the model let it go.
    (
        "",
        [
            ("renew", 22029, 65011, 4289, 220),
            ("mkdir", 9758, 54598, 25578, 27537),
            ("program", 18099, 43599, 6177, 7809),
            ("register", 15522, 13322, 53334, 54304),
            ("register", 51010, 51468, 30810, 50545),
            ("register", 31113, 45409, 9693, 8058),
            ("kill", 54068, 9138, 19453, 42578),
            ("traceoff", 18412, 46754, 3512, 49739),
            ("set", 35789, 60355, 17523, 38170),
            ("program", 33766, 11429, 44530, 16547),
            ("disk", 41259, 50828, 24171, 57775),
            ("traceoff", 48668, 19982, 55396, 20729),
            ("traceoff", 62302, 25009, 27600, 19302),
            ("time", 65351, 36204, 31920, 56064),
            ("restart", 47008, 45649, 11935, 745),
        ],
    ),
    # After a restart, events that an instance had enabled made room before older ones.
    (
        "",
        [
            ("crowd", 53330, 51882, 61593, 52420),
            ("program", 46709, 54331, 21035, 44242),
            ("renew", 587, 64299, 45702, 29214),
            ("disk", 12493, 8870, 45830, 60156),
            ("register", 25425, 13616, 15536, 42091),
            ("ring", 19003, 52264, 36892, 42403),
            ("back", 36506, 50685, 8001, 44099),
            ("crowd", 5897, 21334, 13499, 34835),
            ("torn", 11207, 48760, 19670, 57603),
            ("early", 4519, 27336, 43738, 40637),
            ("early", 38059, 24286, 13405, 57814),
            ("early", 38093, 10170, 29970, 48348),
            ("renew", 5616, 22885, 14711, 63191),
            ("early", 36391, 19352, 25054, 53150),
        ],
    ),
    # A restart lost the counts of a histogram, and not the number of dropped records: the model had none.
    (
        "",
        [
            ("program", 6811, 10587, 63755, 35442),
            ("storm", 64815, 4151, 14674, 38724),
            ("early", 52448, 10367, 64316, 53911),
            ("early", 37026, 54462, 30866, 16731),
            ("grep", 20610, 7253, 41537, 36006),
            ("disk", 36806, 36239, 59049, 2028),
            ("program", 56671, 64840, 56889, 27490),
            ("traceoff", 26537, 3942, 65252, 58294),
            ("ring", 13985, 881, 56002, 6445),
            ("hist", 42178, 8002, 33820, 61927),
            ("restart", 29848, 25065, 54886, 47945),
            ("time", 41267, 62120, 19004, 27142),
            ("disk", 3218, 14116, 37573, 10022),
            ("flood", 46044, 25374, 2806, 4659),
            ("early", 31921, 23883, 33259, 20412),
        ],
    ),
    # An event whose program ended with the daemon, and had a ring in the store, is idle later than others.
    (
        "",
        [
            ("manager", 16279, 49492, 40025, 1553),
            ("mkdir", 42237, 24471, 42169, 65458),
            ("mkdir", 13170, 41370, 14414, 10965),
            ("storm", 2470, 52998, 25944, 42735),
            ("restart", 24443, 24122, 58765, 7167),
            ("program", 59125, 61795, 41053, 3044),
            ("register", 19813, 51062, 15386, 54386),
            ("off", 28128, 29760, 10796, 12335),
            ("fall", 34790, 43098, 28001, 18221),
            ("storm", 2381, 2092, 34024, 53309),
            ("fall", 51566, 14647, 34278, 53656),
            ("scarce", 1190, 46141, 26649, 14123),
            ("off", 28767, 49500, 48098, 26392),
            ("early", 45319, 37511, 46970, 57665),
        ],
    ),
    # A buffer went from a full disk into memory, and its folder before the log could say so: the next daemon
    # complains of the folder, as was announced.
    (
        "",
        [
            ("cascade", 30351, 11617, 1835, 27104),
            ("disk", 21747, 9086, 61094, 27699),
            ("cascade", 55501, 35166, 33838, 5286),
            ("sever", 11023, 8468, 23758, 1597),
        ],
    ),
    # A daemon that ends takes in what sockets hold, beyond the time that it has for a request.
    (
        "an_orderly_end_leaves_what_sockets_hold",
        [
            ("program", 0, 0, 0, 0),
            ("register", 0, 1, 1, 1),
            ("enable", 0, 0, 1, 0),
            ("restart", 0, 1, 0, 0),
        ],
    ),
]
