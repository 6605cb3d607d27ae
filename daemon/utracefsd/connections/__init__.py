"""Connections: bytes, descriptors and time in; messages out. Sockets here never wait.

link                 one socket: receives without waiting, sends what fits, queues the rest
port                 all connections to one socket, with
  acceptor             takes new connections off the listening socket
  accepted_connection  one accepted socket, the connection behind it, and the rules of its port
  connection_shares    charges them to their users
  fair_scheduler       the order in which they are served
  stalled              connections whose peer does not read its responses
data_connection      one open file of `user_events_data`: requests, records, one write_index table
write_errors         the `write_error` notifications of a data connection
tracefs_connection   one client of the tree: file operations, perf events
"""
