"""The text of a hist trigger, without the event: the daemon defines histograms by it, and a policy decides by
it which of them may leave a host.

parse      its parts: keys, values, variables, actions, and the filter behind ` if `
errors     HistError: an errno, and entries for error_log
"""
