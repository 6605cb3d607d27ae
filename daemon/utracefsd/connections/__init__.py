"""Connections: bytes, descriptors and time in; messages out. Sockets here never wait.

link                 one socket: receives without waiting, sends what fits, queues the rest
port                 all connections to one socket, with
  acceptor             takes new connections off the listening socket
  accepted_connection  one accepted socket, the connection behind it, and the rules of its port
  fair_scheduler       the order in which they are served
data_connection      one open file of `user_events_data`: requests, records, one write_index table
tracefs_connection   one client of the tree: file operations, perf events
"""
