"""trace.dat: the file that trace-cmd and KernelShark read.

| module | holds |
|---|---|
| format | the layout: sections, options, and what they consist of |
| writer | TraceDatWriter: pages and texts become a file, version 7 |
| part | Part: NAME.part, which has what a recorder wrote until it ends |
| texts | TraceTexts: what describes the records, which perf.data has, too |
| reader | TraceDatReader: a file, version 6 or 7, becomes records in the order of time |

Nothing is imported here: who reads needs no writer.
"""
