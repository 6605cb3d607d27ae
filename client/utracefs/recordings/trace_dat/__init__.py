"""trace.dat: the file that trace-cmd and KernelShark read.

| module | holds |
|---|---|
| format | the layout: sections, options, and their members |
| writer | TraceDatWriter: writes pages and texts to a file, version 7 |
| part | Part: NAME.part, the file while a recorder runs |
| texts | TraceTexts: descriptions of records, also in perf.data |
| reader | TraceDatReader: reads records of a file, version 6 or 7, in the order of time |

Nothing is imported here: who reads needs no writer.
"""
