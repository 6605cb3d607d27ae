"""The edge of the daemon. Only this package and `main`, the command, know trio and clocks.

serve       the tasks: listen, accept, wait, and call the daemon
listeners   the two sockets, made here or handed over by systemd
runtime     the directories
sd_notify   systemd's protocol with a service
fd_store    systemd's descriptor store, which keeps data rings
background  `utracefsd --background` and `--stop`
"""
