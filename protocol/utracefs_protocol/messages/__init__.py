"""Params and results of the methods of both sockets: maps and arrays on the wire, frozen classes in the
program.

| module | |
|---|---|
| values | single names, numbers and maps |
| rows | a row for each member, and the code that reads and writes it; base classes of params |
| data | the methods of the data socket |
| tracefs | the methods of the tracefs socket |

A class represents the params of a method. `to_params` writes them, `from_params` reads and checks them; a
result that is a map has a class with `to_wire` and `from_wire`. Descriptors are sent beside the bytes; the
class gives their number.

The maps stand for C structs, and grow in the same way: an absent member is zero, and an unknown one is
ignored if it is zero (or nil, or false) and E2BIG otherwise: the sender requests a feature that we do not
have.
"""
