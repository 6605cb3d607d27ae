"""Declarations of events, and what follows from them: names, formats, the bytes of a record, its text.

| module | |
|---|---|
| event_names | matching events by name and glob |
| declaration | command string <-> fields |
| event_format | fields <-> `format` |
| print_fmt, _event_printer | a record -> text by the print fmt of its `format` |
| _fields, _line | locating and printing the bytes of a field, for compiled readers |
| layout | values <-> payload |
"""
