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
"""
