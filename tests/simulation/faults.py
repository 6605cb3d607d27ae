"""Faults to be found: each is one that the daemon had, or one change away from it, put in for a run.

python -m tests.simulation.faults [NAME...]      how long each takes to be found
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

import utracefsd.daemon
from tests.simulation.mixture import steps_of
from tests.simulation.rings import DataRing
from tests.simulation.simulate import STEPS, Outcome, named, play
from utracefs_protocol.errors import TraceError
from utracefsd.connections import link
from utracefsd.connections.accepted_connection import AcceptedConnection
from utracefsd.connections.acceptor import Acceptor
from utracefsd.connections.data_connection import DataConnection
from utracefsd.connections.port import Port
from utracefsd.consumers.counts.counts import EventCounts
from utracefsd.consumers.ftrace.buffer.buffer_store import BufferStore
from utracefsd.consumers.ftrace.event.event_file import EventFile, Part
from utracefsd.consumers.ftrace.hist.tables import Tables
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.settings import Settings
from utracefsd.consumers.ftrace.trigger import commands as trigger_commands
from utracefsd.consumers.ftrace.trigger import hist_kinds
from utracefsd.consumers.perf.events import PerfEvent, PerfEvents
from utracefsd.consumers.plugins.plugins import Plugin, Plugins
from utracefsd.consumers.stream.streams import OpenStream, PageStream, Stream, Streams
from utracefsd.daemon import GRACE_NS, Daemon
from utracefsd.events import dynamic_events
from utracefsd.events.enablers import EnablerTable
from utracefsd.events.event_ids import EventIds
from utracefsd.events.event_table import EventTable
from utracefsd.events.idle_events import IdleEvents
from utracefsd.events.notifier import Notifier, Notifiers
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake.rings import KnownRing, Rings, name_of
from utracefsd.machine._machine import monotonic_ns
from utracefsd.machine.comms import CommTable
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares
from utracefsd.state import log_file
from utracefsd.state.folder import BufferFolders, StateFolder
from utracefsd.state.living import State
from utracefsd.tree.nodes import OpenText

Fault = Callable[[], contextlib.AbstractContextManager[None]]

FAULTS: dict[str, Fault] = {}
FIRST_SEEDS: dict[str, int] = {}

SELDOM = {
    "a_user_takes_all_places_of_the_store",
    "an_orderly_end_counts_losses_twice",
}
"""Not found in a minute: a kill must come at the right place, or a wait."""


def fault(place: Any, name: str, seed: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function replaces place.name; its first argument is the real one. Tests search from seed on, the
    first that found it."""

    def decorate(broken: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def put_in() -> Iterator[None]:
            real = getattr(place, name)
            setattr(place, name, lambda *args, **kwargs: broken(real, *args, **kwargs))
            try:
                yield
            finally:
                setattr(place, name, real)

        FAULTS[broken.__name__] = put_in
        FIRST_SEEDS[broken.__name__] = seed
        return broken

    return decorate


def _nothing(*_: object, **__: object) -> None:
    return None


@fault(EventIds, "restore", seed=6)
def ids_of_removed_events_are_given_again_after_a_restart(
    real: Any, ids: EventIds, used: Any, recorded: Any
) -> None:
    """Records got another meaning."""
    real(ids, used, ())


@fault(Instance, "restore", seed=2)
def a_freed_snapshot_is_allocated_again_by_a_restored_trigger(
    real: Any, instance: Instance, *args: Any, **kwargs: Any
) -> None:
    remove, BufferStore.remove_spare = BufferStore.remove_spare, _nothing  # type: ignore[method-assign]
    try:
        real(instance, *args, **kwargs)
    finally:
        BufferStore.remove_spare = remove  # type: ignore[method-assign]


def _all_but(left_out: Part, real: Any, state: State, number: int, file: EventFile, part: Part) -> None:
    if part is not left_out:
        real(state, number, file, part)


@fault(State, "_file_changed")
def filters_are_not_written_down(*args: Any) -> None:
    _all_but(Part.FILTER, *args)


@fault(State, "_file_changed")
def enabled_events_are_not_written_down(*args: Any) -> None:
    _all_but(Part.ENABLED, *args)


@fault(State, "_removed", seed=2)
def removed_events_are_not_written_down(real: Any, *args: Any) -> None: ...


@fault(Port, "_send")
def an_answer_is_sent_before_it_is_written_down(real: Any, port: Port, accepted: Any) -> None:
    port._before_sending = lambda: None
    real(port, accepted)


@fault(DataConnection, "_drop_references")
def a_connection_that_ends_keeps_its_events(real: Any, connection: DataConnection, now_ns: int) -> None:
    connection.index_table = IndexTable()


@fault(EventTable, "end_hold", seed=2)
def events_wait_for_their_programs_forever(real: Any, table: EventTable) -> None: ...


@fault(EventTable, "detach")
def a_status_byte_stays_on(real: Any, table: EventTable, event: Any, probe: Any) -> None:
    event.tracepoint.detach(probe)
    table.release(event)


@fault(Rings, "drop")
def the_rest_of_a_dead_program_s_ring_is_dropped(real: Any, rings: Rings, ring: Any) -> None:
    rings._forget(rings._owned[ring])


@fault(Rings, "take_in", seed=7)
def losses_of_data_rings_are_counted_nowhere(real: Any, rings: Rings, *args: Any) -> int:
    for owned in rings._owned.values():
        os.pwrite(owned.ring.fd, bytes(8), DataRing.LOST)
    return int(real(rings, *args))


@fault(Rings, "_forget")
def an_orderly_end_counts_losses_twice(real: Any, rings: Rings, owned: Any, **kwargs: bool) -> None:
    place = owned.ring.fd, DataRing.counters_at(owned.ring.size)
    lost = os.pread(place[0], DataRing.COUNTERS, place[1])
    real(rings, owned, **kwargs)
    if rings._handing_over:
        os.pwrite(place[0], lost, place[1])
        os.pwrite(place[0], bytes(DataRing.COUNTERS), DataRing.COUNTED)


@fault(Rings, "adopt", seed=36)
def a_killed_daemon_s_counts_of_losses_are_forgotten(
    real: Any, rings: Rings, *args: Any, **kwargs: Any
) -> Any:
    os.pwrite(args[2], bytes(DataRing.COUNTERS), DataRing.COUNTED)
    return real(rings, *args, **kwargs)


@fault(Port, "take_in_last")
def an_orderly_end_leaves_what_sockets_hold(real: Any, port: Port) -> None: ...


@fault(PerfEvent, "read", seed=3)
def lost_samples_are_not_counted(real: Any, event: PerfEvent) -> Any:
    return real(event)[:8] + bytes(8)


@fault(PageStream, "_detach", seed=5)
def a_stream_of_pages_that_ends_keeps_its_instance(real: Any, stream: PageStream) -> None: ...


@fault(IdleEvents, "note", seed=4)
def events_that_wait_for_their_programs_make_no_room(real: Any, idle: IdleEvents, event: Any) -> None:
    (idle.forget if event.awaited else lambda event: real(idle, event))(event)


@fault(EventTable, "reap")
def an_event_goes_a_second_after_its_last_reference(real: Any, table: EventTable) -> None:
    waiting, now = vars(table).setdefault("waiting", {}), monotonic_ns()
    left = {event: None for event in table._to_reap if now < waiting.setdefault(event, now) + 10**9}
    for event in left:
        del table._to_reap[event]
    real(table)
    table._to_reap |= left


@fault(utracefsd.daemon, "EventTable")
def ids_collide_with_those_of_the_kernel(real: Any, *args: Any, **kwargs: Any) -> EventTable:
    return EventTable(*args, **kwargs | {"first_id": 20})


@fault(OpenText, "_close", seed=4)
def a_file_that_was_read_is_taken_for_a_written_one(real: Any, file: OpenText) -> None:
    if file._node.row.release is not None:
        file._node.row.release(file._node.context)


@fault(DataConnection, "_note_refused", seed=2)
def refusals_are_in_no_file(real: Any, *args: Any) -> None: ...


@fault(Rings, "_keep")
def a_user_takes_all_places_of_the_store(real: Any, rings: Rings, owned: Any) -> None:
    if rings._store.keep(name_of(owned.ring.key), owned.ring.fd):
        rings._note_stored(owned)


@fault(Rings, "_forget_place")
def a_place_in_the_store_stays_free(real: Any, rings: Rings, owned: Any, *, keep: bool) -> None:
    vars(rings)["_keep"] = lambda other: None
    real(rings, owned, keep=keep)
    del vars(rings)["_keep"]


@fault(Rings, "__init__")
def rings_are_read_before_all_of_them_are_back(real: Any, rings: Rings, *args: Any, **kwargs: Any) -> None:
    real(rings, *args, **kwargs)
    rings._awaited.clear()


@fault(KnownRing, "is_registered_in")
def rings_are_read_before_early_ones_have_their_events(real: Any, *args: Any) -> bool:
    return True


@fault(Rings, "adopt")
def records_do_not_wait_for_their_registrations(real: Any, *args: Any, **kwargs: Any) -> Any:
    return real(*args, **kwargs | {"early": False})


@fault(DataConnection, "_end_waits", seed=4)
def records_wait_for_a_registration_that_is_refused(real: Any, *args: Any) -> None: ...


@fault(CommTable, "restore", seed=2)
def thread_groups_are_forgotten(real: Any, comms: CommTable, tasks: Any) -> None:
    on, comms.record_tgid = comms.record_tgid, False
    real(comms, tasks)
    comms.record_tgid = on


@fault(BufferFolders, "leave")
def an_instance_gets_the_buffer_of_a_removed_one(real: Any, folders: BufferFolders, why: OSError) -> None:
    adopted = folders.adopted
    real(folders, why)
    folders.adopted = adopted


@fault(Tables, "drop", seed=9)
def a_histogram_s_file_goes_before_the_log_says_so(real: Any, tables: Tables, *args: Any) -> None:
    real(tables, *args)
    tables.recycle()


@fault(Tables, "reserve")
def two_histograms_share_a_table(real: Any, tables: Tables, named: Any) -> None:
    real(tables, [name for name in named if os.path.exists(os.path.join(tables._folder or "", name))])


@fault(BufferFolders, "switch_to", seed=18)
def a_buffer_is_removed_before_the_log_names_the_new_one(
    real: Any, folders: BufferFolders, folder: str
) -> None:
    folders.folder = os.path.basename(folder)
    folders.remove_others()
    folders._state.on_buffer_moved(folders._number)


@fault(log_file.LogFile, "replace", seed=65)
def the_log_is_rewritten_in_place(real: Any, file: log_file.LogFile, data: bytes) -> bool:
    return (
        len(data) <= file.room
        and file._put(data, file._offset)
        and file._turn(file._offset, len(data), behind=False)
    )


@fault(log_file.LogFile, "append")
def the_log_counts_lines_before_they_are_there(real: Any, file: log_file.LogFile, data: bytes) -> bool:
    at = file._offset + file.length
    return (
        len(data) <= file.left
        and file._turn(file._offset, file.length + len(data), behind=file.behind)
        and file._put(data, at)
    )


@fault(log_file.LogFile, "mark_behind")
def a_log_without_room_does_not_say_so(real: Any, file: log_file.LogFile) -> None:
    file.behind = True


@fault(link, "_close_all")
def sent_descriptors_stay_open(real: Any, fds: Any) -> None: ...


@fault(Tables, "adopt", seed=2)
def histograms_begin_again(real: Any, tables: Tables, *args: Any, **kwargs: Any) -> Any:
    found = real(tables, *args, **kwargs)
    if found is not None:
        found.clear()
    return found


@fault(State, "_instance_removed", seed=18)
def a_removed_instance_comes_back(real: Any, state: State, instance: Instance) -> None:
    save, state.save = state.save, _nothing  # type: ignore[method-assign]
    try:
        real(state, instance)
    finally:
        state.save = save  # type: ignore[method-assign]


@fault(Settings, "take_unsaved")
def standing_lines_are_not_written_down(real: Any, settings: Settings) -> Any:
    return [(name, saved) for name, saved in real(settings) if not name.startswith("standing")]


@fault(Instance, "restore")
def options_are_as_in_a_new_instance(real: Any, instance: Instance, settings: Any, files: Any) -> None:
    real(instance, {name: value for name, value in settings.items() if name != "options"}, files)


@fault(BufferStore, "restore_sizes", seed=10)
def a_spare_is_not_made_again(real: Any, store: BufferStore, *args: Any, **kwargs: Any) -> None:
    real(store, *args, **kwargs | {"snapshot": False})


@fault(BufferFolders, "switch_to", seed=3)
def a_new_buffer_s_folder_is_not_written_down(real: Any, folders: BufferFolders, folder: str) -> None:
    moved, folders._state.on_buffer_moved = folders._state.on_buffer_moved, _nothing
    try:
        real(folders, folder)
    finally:
        folders._state.on_buffer_moved = moved


@fault(Daemon, "listens")
def events_wait_half_as_long_for_their_programs(real: Any, daemon: Daemon) -> None:
    real(daemon)
    daemon._grace_ends_ns -= GRACE_NS // 2


@fault(Daemon, "take_in_all", seed=7)
def an_operation_does_not_take_in_first(real: Any, daemon: Daemon) -> None: ...


@fault(BufferFolders, "remove_others", seed=2)
def folders_of_former_buffers_stay(real: Any, folders: BufferFolders) -> None: ...


@fault(Tables, "recycle", seed=2)
def files_of_removed_histograms_stay(real: Any, tables: Tables) -> None: ...


@fault(StateFolder, "remove_everything")
def the_last_daemon_leaves_files(real: Any, folder: StateFolder) -> None: ...


@fault(Rings, "stop_waiting")
def rings_are_waited_for_forever(real: Any, *args: Any) -> None: ...


@fault(Daemon, "time_of_records")
def records_over_the_socket_wait_forever_after_a_restart(real: Any, daemon: Daemon, *args: Any) -> int | None:
    return None if daemon._took_over else int(real(daemon, *args))


@fault(Daemon, "time_of_records")
def records_over_the_socket_do_not_wait_for_rings(real: Any, daemon: Daemon, *args: Any) -> int:
    return daemon.now_ns()


@fault(Rings, "_may_be_filling", seed=18)
def unfinished_records_of_living_programs_are_given_up(real: Any, *args: Any) -> bool:
    return False


def _without_limit(of: Resource, real: Any, shares: Shares, resource: Any, *args: Any, **kwargs: Any) -> Any:
    return None if resource is of else real(shares, resource, *args, **kwargs)


@fault(Shares, "refusal")
def fields_have_no_limit(*args: Any, **kwargs: Any) -> Any:
    return _without_limit(Resource.FIELDS, *args, **kwargs)


@fault(Shares, "refusal", seed=2)
def messages_have_no_limit(*args: Any, **kwargs: Any) -> Any:
    return _without_limit(Resource.MESSAGE_BYTES, *args, **kwargs)


@fault(Port, "_count", seed=2)
def messages_are_not_counted(real: Any, *args: Any) -> None: ...


@fault(Acceptor, "on_time")
def accepting_pauses_forever(real: Any, *args: Any) -> None: ...


@fault(Acceptor, "_take_reserve", seed=5)
def a_descriptor_for_refusing_is_not_taken_again(real: Any, *args: Any) -> None: ...


@fault(Acceptor, "_keep", seed=2)
def any_number_of_connections_wait(real: Any, acceptor: Acceptor, sock: Any) -> None:
    acceptor._shares.in_all[Resource.DESCRIPTORS] *= 4
    real(acceptor, sock)
    acceptor._shares.in_all[Resource.DESCRIPTORS] //= 4


@fault(Streams, "publish", seed=3)
def a_stream_is_not_published(real: Any, *args: Any) -> None: ...


@fault(PageStream, "ready", seed=7)
def pages_that_are_not_full_stay_in_the_buffer(real: Any, stream: PageStream) -> Any:
    return OpenStream.ready(stream)


@fault(Stream, "_detach", seed=8)
def a_stream_that_ends_keeps_its_event(real: Any, *args: Any) -> None: ...


@fault(PerfEvent, "close", seed=2)
def a_perf_event_that_ends_stays_attached(real: Any, *args: Any) -> None: ...


@fault(PerfEvent, "read", seed=2)
def a_perf_event_begins_anew_when_it_is_read(real: Any, event: PerfEvent) -> Any:
    values = real(event)
    event.ioctl("RESET")
    return values


@fault(EventCounts, "close")
def a_file_of_event_counts_that_ends_stays_attached(real: Any, *args: Any) -> None: ...


@fault(EnablerTable, "write_state", seed=2)
def enable_words_are_not_set(real: Any, *args: Any) -> None: ...


@fault(EnablerTable, "drop", seed=2)
def enable_words_of_ended_programs_stay(real: Any, table: EnablerTable, peer: Any) -> None:
    table._by_process.pop(peer.process, ())
    real(table, peer)


@fault(Notifiers, "take", seed=2)
def an_operation_does_not_wait_for_enablers(real: Any, *args: Any) -> None: ...


@fault(Notifier, "is_late", seed=6)
def an_operation_waits_again_for_an_overdue_program(real: Any, notifier: Notifier) -> None:
    real(notifier)
    notifier.overdue = False


@fault(Notifier, "note", seed=6)
def a_change_is_forgotten_while_another_is_unanswered(
    real: Any, notifier: Notifier, token: int, value: bool
) -> None:
    if not notifier._unanswered:
        real(notifier, token, value)


@fault(Notifier, "forget", seed=6)
def a_program_is_notified_of_a_removed_token(real: Any, notifier: Notifier, token: int, now_ns: int) -> None:
    del notifier.enablers[token]


@fault(EnablerTable, "close_notifier", seed=2)
def tokens_of_ended_connections_keep_their_events(
    real: Any, table: EnablerTable, notifier: Notifier, now_ns: int
) -> None:
    notifier.enablers.clear()
    real(table, notifier, now_ns)


@fault(AcceptedConnection, "belongs_to", seed=2)
def a_connection_is_counted_for_its_proxy(real: Any, *args: Any) -> None: ...


@fault(AcceptedConnection, "belongs_to", seed=2)
def what_a_proxy_s_connection_holds_is_counted_for_the_proxy(
    real: Any, accepted: AcceptedConnection, peer: Peer
) -> None:
    accepted.link.peer = peer


@fault(Daemon, "open_for", seed=6)
def records_of_a_proxy_s_connection_have_the_proxy_s_pid(
    real: Any, daemon: Daemon, connection: DataConnection, process: Any
) -> Peer:
    peer: Peer = real(daemon, connection, process)
    return attrs.evolve(peer, pid=connection.peer.pid)


@fault(Port, "end_failed")
def a_corrupt_ring_is_left_alone(real: Any, port: Port) -> None: ...


@fault(Port, "end_failed")
def a_corrupt_ring_ends_every_connection(real: Any, port: Port) -> None:
    for accepted in port:
        port._close(accepted)


@fault(Shares, "refusal")
def a_user_is_refused_for_what_others_hold(
    real: Any, shares: Shares, resource: Any, uid: int, amount: int = 1, **privileged: bool
) -> Any:
    others = shares.total(resource) - shares.held(resource, uid)
    return real(shares, resource, uid, amount + others, **privileged)


@fault(Shares, "most_of", seed=70)
def half_a_limit_is_measured_by_what_others_hold(real: Any, shares: Shares, resource: Any, uid: int) -> int:
    others = shares.total(resource) - shares.held(resource, uid)
    return max(0, int(real(shares, resource, uid)) - others)


@fault(Shares, "drop", seed=3)
def what_a_user_gives_back_is_counted_on(real: Any, shares: Shares, resource: Any, *args: Any) -> None:
    if resource is not Resource.CONNECTIONS:
        real(shares, resource, *args)


@fault(Rings, "_take_over")
def living_programs_of_stored_rings_are_taken_for_dead(real: Any, rings: Rings, stored: Any) -> None:
    real(rings, stored)
    for owned in rings._orphans:
        owned.ring.dead = not owned.ring.dead


@fault(Rings, "_take_over")
def records_of_stored_rings_do_not_wait_for_their_registrations(real: Any, rings: Rings, stored: Any) -> None:
    real(rings, stored)
    for owned in rings._orphans:
        owned.ring.is_early = False


@fault(Rings, "look_again", seed=16)
def rings_of_ended_programs_are_waited_for(real: Any, rings: Rings) -> None: ...


@fault(Rings, "_forget_place")
def a_place_in_the_store_is_never_given_back(real: Any, rings: Rings, owned: Any, *, keep: bool) -> None:
    real(rings, owned, keep=True)


@fault(PerfEvents, "open", seed=6)
def a_sampling_frequency_is_ignored(real: Any, events: PerfEvents, wanted: Any, *, handle: int) -> Any:
    object.__setattr__(wanted, "sample_freq", 0)
    return real(events, wanted, handle=handle)


@fault(Plugins, "flush", seed=7)
def a_plug_in_gets_its_records_late(real: Any, *args: Any) -> None: ...


@fault(Plugin, "close")
def a_plug_in_does_not_get_the_last_records(real: Any, *args: Any) -> None: ...


@fault(Plugin, "detach", seed=82)
def a_plug_in_stays_attached(real: Any, *args: Any) -> None: ...


@fault(Instance, "_dynamic_removed", seed=2)
def buffers_keep_records_of_synthetic_events_that_are_removed(*_: object) -> None: ...


@fault(Instance, "restore", seed=6)
def buffers_with_records_of_removed_events_are_forgotten(
    real: Any, instance: Instance, settings: Any, files: Any
) -> None:
    real(instance, {**settings, "clear_pending": False}, files)


@fault(hist_kinds, "_link", seed=3)
def an_action_does_not_hold_its_synthetic_event(real: Any, place: Any, *args: Any) -> Any:
    place.table.release_all(real(place, *args))
    return []


@fault(hist_kinds, "_link", seed=2)
def the_synthetic_event_of_a_removed_action_stays_in_use(real: Any, *args: Any) -> Any:
    real(*args)
    return []


@fault(hist_kinds, "is_read")
def a_variable_that_is_read_is_removed(*_: object) -> bool:
    return False


@fault(trigger_commands, "_number")
def triggers_are_restored_in_the_order_of_their_events(*_: object) -> int:
    return 0


@fault(dynamic_events, "truncate_synthetic", seed=44)
def some_of_the_synthetic_events_are_removed_though_one_is_in_use(
    real: Any, table: EventTable, *, privileged: bool
) -> None:
    with contextlib.suppress(TraceError):
        for event in [event for event in table.events() if event.synthetic]:
            table.delete_event(event, privileged=privileged)
    real(table, privileged=privileged)


def find(name: str, seconds: float, seed: int = 1) -> tuple[Outcome | None, int]:
    """(how it failed, the seed); None: not within that time of the processor."""
    until = time.process_time() + seconds
    with FAULTS[name]():
        while time.process_time() < until:
            outcome = play(steps_of(seed, STEPS))
            if outcome.failure:
                return outcome, seed
            seed += 1
    return None, seed


if __name__ == "__main__":
    for wanted in named(FAULTS):
        began = time.process_time()
        found, at = find(wanted, 60)
        took = time.process_time() - began
        print(
            f"{took:5.1f} s, seed {at}: {wanted}: {found.failure if found else 'NOT FOUND':.150}", flush=True
        )
