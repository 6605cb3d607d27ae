"""The edge of the daemon: with `main`, the command above it, the only place that knows trio and clocks.

serve       listens, accepts, waits, and carries out what the parts below return
listeners   the two sockets, made here or handed over by systemd
runtime     which directories are used
sd_notify   what systemd is told
"""
