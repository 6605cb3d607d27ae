"""Many hosts: what each of them records and forwards, controlled by a bucket of NATS.

    operator ─▶ utracefs_wishes ─▶ host: Agent ─▶ Plan ─▶ an instance of the daemon ─▶ stream ─▶ forwarder
                utracefs_hosts  ◀─ its report

wish      what an operator asks for
plan      wishes, policy and labels to standing lines and filters, without I/O
buckets   both buckets, as operators, hosts and readers use them
report    what a host says about itself
instance  the plan in the daemon
agent     the loop of a host
"""
