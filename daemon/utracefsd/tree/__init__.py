"""The virtual tracefs, as plain objects: a path leads to a node, a node opens to a file, a file reads and
writes.

tree             Tree: walking paths, and the calls of the tracefs socket
nodes            Row, Directory, OpenFile: what everything below is made of
values           what a write to a control file means, with its errno
top              files of the top directory alone, and instances/
instance_files   files of every instance
events_files     events/
trace_files      trace, trace_pipe, trace_pipe_raw
consumer_files   consumers/
"""

from utracefsd.tree.nodes import OpenFile
from utracefsd.tree.tree import Tree

__all__ = ["OpenFile", "Tree"]
