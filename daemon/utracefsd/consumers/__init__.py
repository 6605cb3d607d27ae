"""Consumers take the records of events. All of them fulfil one contract.

    ftrace/     instances: ring buffers that are read as text or as pages          status bit 0
    perf/       perf events: counting, and a ring of samples                       status bit 1
    stream/     records of many events, in a ring that a reader maps               status bit 7
    counts/     numbers of records by event and process                            status bit 7
    plugins/    consumers of other distributions                                   status bit 7

**The contract.** A consumer attaches to an event, gets its records, and detaches:

1. To attach, it makes a probe, one for each event, and calls `EventTable.attach(event, probe)`. That takes a
   reference (the event stays while it is attached, even without any program), adds the probe, and only then
   sets the probe's `status_bit` in the event's status byte, which makes the programs emit.
2. For each record that passed the checks of the write path the tracepoint calls the probe's `take`. It never
   waits and never raises; its result says how the tracepoint counts the record: `recorded`, `filtered` (the
   consumer did not want it) or `lost` (it wanted it and had no space). So at any moment, for every consumer,
   emitted = recorded + filtered + lost, counted from when it attached. For a record with an invalid dynamic
   field `take` returns -EFAULT instead of `recorded` (`Tracepoint.emit_invalid`).
3. `EventTable.detach(event, probe, now_ns)` undoes this in the reverse order. The three numbers stay readable
   in the event's `stats`.

A program writes a record once, however many consumers are attached; each of them sees the same bytes.

Plug-ins import the public names from here.
"""

from utracefsd.consumers.plugins.contract import (
    ENTRY_POINT_GROUP,
    Consumer,
    ConsumerError,
    RawBatch,
    Record,
    StatusBit,
)

__all__ = ["ENTRY_POINT_GROUP", "Consumer", "ConsumerError", "RawBatch", "Record", "StatusBit"]
