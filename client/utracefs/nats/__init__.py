"""A small NATS client: blocking, over one socket, for one thread.

errors      exceptions
wire        bytes to messages and back, without I/O
login       passwords, tokens, nkeys
connection  one of several servers: publish, subscribe, request
jetstream   streams, acknowledged messages, consumers
bucket      keys and values
"""
