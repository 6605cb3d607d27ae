"""`utracefs metrics`: the daemon's numbers for Prometheus and others.

daemon_stats, stats of events, per_cpu/cpuN/stats ─▶ Collector ─▶ Metrics ─▶ text, on stdout
status.json of forwarders ──────────────────────────▶   (collector.py)  (families.py)  or HTTP (listener.py)
"""
