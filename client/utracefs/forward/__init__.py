"""`utracefs forward`: records leave the host.

losses     records that do not arrive, by event and cause
batch      records with everything to decode them; `_body` (compiled): their raw records
spool      batches on disk
target     the contract of targets, and finding one
otlp       the target `otlp`; `_otlp` (compiled): its log records and spans
parquet    the target `parquet`
nats       the target `nats`; `nats_messages`: its messages, and their reader
policy     the events that may leave the host
forwarder  the two threads
"""
