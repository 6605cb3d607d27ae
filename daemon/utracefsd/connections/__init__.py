"""Connections: bytes, descriptors and time in; what to send out. Sockets here never wait.

link                 one socket: receives without waiting, sends what fits, keeps the rest
port                 all connections to one socket: accepting, turns, slow readers, ends
data_connection      one open file of `user_events_data`: requests, records, one write_index table
tracefs_connection   one client of the tree: file operations, perf events
"""
