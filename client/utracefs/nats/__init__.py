"""A small client of NATS: blocking, over one socket, for one thread.

errors      what fails
wire        bytes to messages and back, without I/O
login       passwords, tokens, nkeys
connection  one of several servers: publish, subscribe, request
jetstream   streams, acknowledged messages, consumers
bucket      keys and values
"""
