"""What params and results of the two sockets mean: maps and arrays on the wire, frozen classes within.

| module | |
|---|---|
| values | one name, number or map at a time |
| rows | a row for each member, and what reads and writes them |
| params | what the classes for params have in common |
| data | the methods of the data socket |
| tracefs | the methods of the tracefs socket |

One class stands for the params of one method. `to_params` writes them, `from_params` reads and checks them; a
result that is a map has a class with `to_wire` and `from_wire`. Descriptors travel beside the bytes; a class
says how many.

The maps stand for C structs, and grow as those do: an absent member is zero, and an unknown one is ignored
while it is zero (or nil, or false) and E2BIG otherwise: the sender wants something that we do not have.

Both sockets have a method `write`, and applications need the data socket only, so the classes of the tracefs
socket are not repeated here.
"""

from utracefs_protocol.messages.data import (
    RING_VERSION,
    AdoptRing,
    Enabler,
    EventDeletion,
    EventRegistration,
    EventUnregistration,
    LocOffsetQuery,
    MmapRing,
    MmapStatus,
    Registered,
    RingMapped,
    StatusMapped,
    Sync,
)
from utracefs_protocol.messages.values import (
    params_of,
    text_bytes,
    wire_bool,
    wire_bytes,
    wire_int,
    wire_map,
    wire_text,
)

__all__ = [
    "RING_VERSION",
    "AdoptRing",
    "Enabler",
    "EventDeletion",
    "EventRegistration",
    "EventUnregistration",
    "LocOffsetQuery",
    "MmapRing",
    "MmapStatus",
    "Registered",
    "RingMapped",
    "StatusMapped",
    "Sync",
    "params_of",
    "text_bytes",
    "wire_bool",
    "wire_bytes",
    "wire_int",
    "wire_map",
    "wire_text",
]
