"""`utracefs reg` and `utracefs emit`: events for administrators and for shell scripts."""

import errno
import re
import struct

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import HELLO_S, connect, directory_option, telling_of_wait, why_no_connection
from utracefs.cli.completion import complete_event, complete_value
from utracefs.cli.tables import counted
from utracefs.tree.event_names import did_you_mean
from utracefs.tree.rpc import Rpc, checked
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Declaration, Field, FieldKind, parse
from utracefs_protocol.limits import ENTRY_HEADER_SIZE, MAX_LOC, MAX_PAYLOAD
from utracefs_protocol.messages.data import EventRegistration, Registered, Write
from utracefs_protocol.places import DATA_SOCKET
from utracefs_protocol.text import bytes_of, text_of


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.option("--delete", is_flag=True, help="Delete the event; its fields need not be repeated.")
@click.argument("words", metavar="DECLARATION", nargs=-1, required=True, shell_complete=complete_event)
def reg(directory: str | None, delete: bool, words: tuple[str, ...]) -> None:
    """Declare a persistent event, 'NAME TYPE FIELD; TYPE FIELD ...', or delete one.

    It stays until it is deleted, whether or not a program uses it (dynamic_events).
    """
    if len(words) > 1:
        raise click.UsageError(f"a declaration is one word of the shell: utracefs reg '{' '.join(words)}'")
    declared = _parse(words[0])
    with connect(directory) as tree:
        if not delete:
            _write_dynamic(tree, b"u:" + declared.canonical(), declared.name)
            return
        lines = [b"u:" + declared.canonical()] if declared.fields else _dynamic_lines(tree, declared.name)
        for line in lines:
            _write_dynamic(tree, b"!" + line, declared.name)


@click.command(context_settings={**COMMAND_SETTINGS, "ignore_unknown_options": True})
@directory_option
@click.argument("declaration", shell_complete=complete_event)
@click.argument("values", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_value)
def emit(directory: str | None, declaration: str, values: tuple[str, ...]) -> None:
    """Emit one record: 'NAME TYPE FIELD; ...' and a value for each field, or the name of an existing event.

    Integers may be 0x hexadecimal; arrays of numbers are 1,2,3; other structs and arrays that are not text
    are hexadecimal bytes. The exit
    status says whether the record was taken: 1 when no consumer is attached to the event.

        utracefs emit 'backup_done u64 bytes; s32 status' 123456 0
    """
    declared, found = _declared(directory, declaration, has_values=bool(values))
    name = text_of(declared.name)
    payload = _payload(declared, values)
    try:
        data = Rpc(DATA_SOCKET, directory, timeout_s=HELLO_S)
    except OSError as error:
        raise Failure(str(error.filename or name), why_no_connection(error)) from None
    with data, telling_of_wait(directory):
        try:
            registration = EventRegistration(found or declared.canonical())
            registered = checked(Registered.from_wire, data.call(registration, name), name)
            data.call(Write(struct.pack("<i", registered.write_index) + payload), name)
        except OSError as error:
            if error.errno == errno.EBADF:
                # An event declared only by this command is removed before a user can enable it.
                enable = "enable" if found else "enable --standing"
                raise Failure(
                    name, f"no consumer is attached to it; `utracefs {enable} {name}` records it"
                ) from None
            if isinstance(error, TimeoutError):
                raise Failure(data.address, why_no_connection(error)) from None
            raise


_SYSTEMS = re.compile(r"user_events(_multi)?:")


def _parse(declaration: str) -> Declaration:
    """With or without the system in front of the name, as in other commands."""
    declaration = _SYSTEMS.sub("", declaration, count=1) if _SYSTEMS.match(declaration) else declaration
    try:
        return parse(bytes_of(declaration))
    except TraceError as error:
        raise Failure(declaration.partition(" ")[0], error.text) from None


def _declared(directory: str | None, declaration: str, *, has_values: bool) -> tuple[Declaration, bytes]:
    """The declaration, and its text if it was found in the daemon. An unknown bare name is an event without
    fields, if there are no values."""
    if " " in declaration.strip():
        return _parse(declaration), b""
    declared = _parse(declaration.strip())
    try:
        with telling_of_wait(directory), Tracefs(directory, timeout_s=HELLO_S) as tree:
            for line in _dynamic_lines(tree, declared.name):
                return parse(line[2:]), line[2:]
    except OSError as error:
        # Only administrators may read the fields.
        if has_values and not isinstance(error, FileNotFoundError):
            reason = f"its fields could not be looked up ({error.strerror}); give the whole declaration"
            raise Failure(declaration, reason) from None
        reason = (error.strerror or "").partition("; `")[0]
    if has_values:
        raise Failure(declaration, f"{reason}; give the whole declaration: 'NAME TYPE FIELD; ...'")
    return declared, b""


def _dynamic_lines(tree: Tracefs, name: bytes) -> list[bytes]:
    """The lines `u:NAME ...` of dynamic_events; FileNotFoundError if there are none."""
    there = [line for line in tree.read_file("dynamic_events").split(b"\n") if line.startswith(b"u:")]
    lines = [line for line in there if line[2:].partition(b" ")[0] == name]
    if not lines:
        hint = did_you_mean(text_of(name), (text_of(line[2:].partition(b" ")[0]) for line in there))
        text = f"no such event{hint or '; `utracefs list` shows all'}"
        raise FileNotFoundError(errno.ENOENT, text, text_of(name))
    return lines


def _write_dynamic(tree: Tracefs, line: bytes, name: bytes) -> None:
    try:
        tree.write_all("dynamic_events", line + b"\n", truncate=False)
    except OSError as error:
        raise OSError(error.errno, error.strerror, text_of(name)) from None


def _payload(declared: Declaration, values: tuple[str, ...]) -> bytes:
    if len(values) != len(declared.fields):
        names = " ".join(text_of(field.name) for field in declared.fields) or "none"
        raise click.UsageError(
            f"{text_of(declared.name)} has {counted(len(declared.fields), 'field')} ({names}), "
            f"but {counted(len(values), 'value')} came"
        )
    fixed, dynamic = b"", b""
    try:
        for field, value in zip(declared.fields, values, strict=True):
            data = _packed(field, value)
            if field.is_loc:
                # Its place has the size and the offset, from behind this word or from the entry's beginning.
                offset = declared.min_size + len(dynamic)
                offset += ENTRY_HEADER_SIZE if field.kind is FieldKind.DATA_LOC else -len(fixed) - 4
                if max(offset, len(data)) > MAX_LOC:
                    raise ValueError(
                        f"field {text_of(field.name)!r}: it would need more than {MAX_LOC} bytes"
                    )
                dynamic += data
                data = struct.pack("<HH", offset, len(data))
            fixed += data
        if (size := len(fixed) + len(dynamic)) > MAX_PAYLOAD:
            raise ValueError(f"payload of {size} bytes; a record holds at most {MAX_PAYLOAD}")
    except (ValueError, OverflowError) as error:
        raise Failure(text_of(declared.name), str(error)) from None
    return fixed + dynamic


def _packed(field: Field, text: str) -> bytes:
    """Bytes of the value. ValueError, OverflowError: the field has no space for it."""
    name, size, element = text_of(field.name), field.size, field.element
    if element is not None:
        parts = text.strip(" []").split(",")
        if len(parts) * element.size != size:
            raise ValueError(f"field {name!r} takes exactly {size // element.size} numbers, not {len(parts)}")
        return b"".join([_packed(element, part.strip()) for part in parts])
    value = _value(field, text)
    if isinstance(value, float):
        return struct.pack("<f" if size == 4 else "<d", value)
    if isinstance(value, int):
        bits = 1 if field.is_bool else 8 * size
        least = -(1 << bits - 1) if field.signed and not field.is_bool else 0
        if not least <= value < least + (1 << bits):
            type_ = text_of(field.type).removeprefix("struct ")
            raise OverflowError(f"field {name!r}: {value} does not fit {type_}")
        return value.to_bytes(size, "little", signed=field.signed)
    if field.is_loc:
        return value + b"\0" if field.is_string else value
    if field.kind is FieldKind.CHAR_ARRAY:
        value = value.ljust(size, b"\0")
    if len(value) != size:
        raise ValueError(f"field {name!r}: {len(value)} bytes, there is room for {size}")
    return value


def _value(field: Field, text: str) -> int | float | bytes:
    try:
        if field.is_float:
            return float(text)
        if field.is_bool:
            return {"false": 0, "true": 1}[text] if text in ("false", "true") else int(text, 0)
        if field.kind is FieldKind.INTEGER:
            return int(text, 0)
        if field.kind is FieldKind.STRUCT or (field.is_loc and not field.is_string):
            return bytes.fromhex(text)
    except ValueError:
        wanted = "an integer" if field.kind is FieldKind.INTEGER else "hexadecimal bytes"
        wanted = "a number" if field.is_float else "true or false" if field.is_bool else wanted
        raise click.UsageError(f"{text_of(field.name)} takes {wanted}, not {text!r}") from None
    return bytes_of(text)
