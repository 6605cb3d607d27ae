"""Many hosts: what each of them records and forwards, controlled by a bucket of NATS.

    operator ─▶ utracefs_wishes ─▶ host: Agent ─▶ Plan ─▶ an instance of the daemon ─▶ stream ─▶ forwarder
                utracefs_hosts  ◀─ its report

wish      an operator's request: events, filters, triggers, hosts, time
plan      turns the wishes for a host into lines, filters and triggers of its instance, without I/O
trigger   triggers in wishes: their kinds, and conflicts between them
buckets   both buckets, for operators, hosts and readers
report    a host's report about itself
instance  carries out the plan in the daemon
agent     the loop of a host
"""
