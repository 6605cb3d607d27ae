"""The virtual tracefs, as plain objects: a path leads to a node, a node opens to a file, a file reads and
writes.

tree             Tree: walking paths, and the calls of the tracefs socket
nodes            Row, Directory, OpenFile: the base classes of the tree
values           parsers of writes to control files, with their errno
top              files of the top directory only, instances/ and consumers/
instance_files   files of every instance
events_files     events/
trace_files      trace, trace_pipe, trace_pipe_raw
"""

from utracefsd.tree.nodes import OpenFile
from utracefsd.tree.top import Parts
from utracefsd.tree.tree import Tree

__all__ = ["OpenFile", "Parts", "Tree"]
