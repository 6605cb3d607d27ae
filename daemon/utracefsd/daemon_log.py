"""The daemon's log: the table of its messages, and the function that writes one.

    daemon_log("ring-lost", pid=known.pid)

An id stays when its text changes. The values have names, so that `--log-format json` writes them as members.
docs/operations.md says what each message means.
"""

import logging
import re

LOG = logging.getLogger("utracefsd")
"""For handlers and levels."""

_TABLE = """\
accepting-pauses error %(socket)s: accepting pauses: %(reason)s
bad-peer debug pid %(pid)d: its connection ends: %(reason)s
buffer-in-memory warning ring buffers will not survive a restart of the daemon: %(folder)s has too little
    room for them (%(reason)s). Mount a larger %(mount)s (docker run --shm-size) or choose a smaller
    buffer_size_kb, KiB per cpu; then restart
buffer-lost warning all records of %(instance)s are lost, what was found is in %(aside)s: the ring buffer
    cannot be taken over: %(reason)s
buffer-not-resized warning the ring buffer stays at its smallest size, write to buffer_size_kb: %(reason)s
connection-turned-away error %(socket)s: a connection was turned away: %(reason)s (raise LimitNOFILE=)
enable-bits-overdue warning enable bits were not acknowledged within %(after_ms)d ms by pid
    %(pids)s%(more)s: stopped, or too busy
enable-bits-slow warning enable bits of user %(uid)d took %(took_ms)d ms of what operations have to wait;
    for a while none waits for that user's programs
ending info ending: %(signal)s
events-taken-over info took over %(events)d events of the previous daemon
failed error %(reason)s
fault error %(what)s: a bug of the daemon
fault-again debug %(what)s: %(error)r again
fd-store-failed warning the service manager keeps no data rings: %(reason)s
folder-removed info removing %(folder)s: its daemon was killed, and ended with its parent
group-not-usable info %(path)s: only for this user, who is not in the group %(gid)d
handle-close-failed debug closing handle %(handle)d: %(reason)s
hist-file-left warning the file of a histogram cannot be removed: %(reason)s
hist-in-memory warning a histogram will not survive a restart of the daemon: %(folder)s has too little room
    (%(reason)s)
hist-lost warning the counts of a histogram are lost: %(reason)s
hist-without-memory warning a histogram drops its records: there is no memory for it: %(reason)s
listening info sockets in %(directory)s, status file %(status_file)s
notify-failed warning telling the service manager %(state)r failed: %(reason)s
notify-socket-invalid warning NOTIFY_SOCKET=%(name)s is neither a path nor an abstract name; ignored
parent-gone info ending: the parent process is gone
plugin-failed warning plug-in %(plugin)s: %(method)s raised %(error)r; its further failures are only counted
plugin-left warning plug-in %(plugin)s does not end; it is left behind
plugin-slow warning plug-in %(plugin)s: a batch takes %(took_ms).0f ms; what finds no room meanwhile is lost
    for it, and counted
ready-fd-failed warning --ready-fd %(fd)d: %(reason)s
request-refused debug pid %(pid)d: %(method)s is refused: %(reason)s
ring-corrupt warning a data ring of pid %(pid)d that has no connection ends: %(reason)s
ring-lost warning a data ring of the daemon before this one did not come back (pid %(pid)d); what it held is
    lost, and how many records that was is unknown; daemon_stats counts such rings
ring-not-taken-over warning a data ring of pid %(pid)d cannot be taken over: %(reason)s
snapshot-guessed warning which records are a snapshot is not known, the earlier ones are taken for it:
    %(reason)s
socket-unexpected warning unexpected socket %(name)r from systemd; closed
standing-not-set warning %(file)s: %(line)s is not set for %(event)s, nor for what else is refused for want
    of room: %(reason)s
state-file-foreign warning %(path)s is not a file of this daemon; moved to %(aside)s
state-file-in-the-way warning %(path)s is in the way: %(reason)s
state-file-replaced warning %(path)s is replaced: %(reason)s
state-full error the state cannot be written, %(folder)s is full: new events and instances are refused, and
    what is set, enabled or removed from now on is as before if this daemon is killed. Free some
state-set-aside warning starting afresh, what was found is in %(aside)s: %(reason)s
state-was-full warning the daemon before this one had no room to write down what was set, enabled or removed
    last; that is as it was before
state-written-again info the state is written again
status-folder-taken warning %(folder)s is taken by uid %(uid)d; another name is used
synthetic-records-unsure warning the daemon before this one was killed while %(records)d synthetic events
    waited to be recorded, which may be lost
trigger-lost warning the trigger %(trigger)s of %(event)s is lost: %(reason)s
trigger-stacktrace info trigger stacktrace: it counts, and records nothing; there is no stack of the kernel
user-refused warning user %(uid)d is refused, number %(count)d: %(reason)s
"""
"""Id, level, and text with `%(name)s` for each of the values."""

_ROWS = (row.split(" ", 2) for row in re.sub(r"\n +", " ", _TABLE).splitlines())
MESSAGES = {id_: (logging.getLevelNamesMapping()[level.upper()], text) for id_, level, text in _ROWS}


def daemon_log(id_: str, /, exc_info: BaseException | None = None, **values: object) -> None:
    """Write the message of this id. exc_info: write its traceback, too."""
    level, text = MESSAGES[id_]
    # logging takes one mapping for the named values, but no empty one.
    LOG.log(level, text, *([values] if values else []), exc_info=exc_info, extra={"id": id_})
