"""Consumers take the records of events. All of them fulfil one contract.

    ftrace/     instances: ring buffers that are read as text or as pages          status bit 0
    perf/       perf events: counting, and a ring of samples                       status bit 1
    stream/     records of many events, in a ring that a reader maps               status bit 7
    counts/     numbers of records by event and process                            status bit 7
    plugins/    consumers of other distributions                                   status bit 7

**The contract, step by step.** `counts/` is the smallest example.

1. *Probe*: write a compiled subclass of `Probe` (events/_tracepoint.pxd) with a `status_bit` and the method
   `take`. A consumer makes one probe for each event.
2. *Attach*: call `EventTable.attach(event, probe)`. That takes a reference (the event stays while it is
   attached, even without any program), adds the probe, and only then sets the status bit in the event's
   status byte, which makes the programs emit.
3. *Choose events*: `EventTable.on_created` announces each new event, so a consumer of globs attaches then.
   A consumer without names to match reads `EventTable.events()` once.
4. *Take*: the tracepoint calls `take` for each record that passed the checks of the write path. `take` never
   waits and never raises; its result says how the tracepoint counts the record: `recorded`, `filtered` (the
   consumer did not want it) or `lost` (it wanted it and had no space). So at any moment, for every consumer,
   emitted = recorded + filtered + lost, counted from when it attached. For a record with an invalid dynamic
   field `take` returns -EFAULT instead of `recorded` (`Tracepoint.emit_invalid`).
5. *Losses*: `lose(n)` reports n records that were emitted and never came (a full data ring).
6. *Hand over*: a consumer that collects batches gives them to its reader when the daemon calls it after each
   step (`Daemon.hand_over`), not from `take`.
7. *Give way*: a consumer that attached by a glob subscribes to `EventTable.idle`, so an idle event can be
   removed where there is no space for another one (events/idle_events.py).
8. *Detach*: call `EventTable.detach(event, probe)`, which undoes step 2 in the reverse order. The three
   numbers stay readable in the event's `stats`.
9. *End*: `Daemon.close` closes the connections, and with them the consumers that they own, then the
   plug-ins.

A user reaches a consumer through a file of the tree (`counts`, `plugins`) or a method of the tracefs socket
(`perf`, `stream`): docs/developing.md has a recipe for each. Only `ftrace` outlives the daemon: its settings
are written to the state (state/living.py), its ring buffers are files.

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
