"""Events: what is declared, who refers to it, what its status byte says, and where its records fire.

event_table     the life of events; the only one that changes status
enablers        words of other programs that follow the status
status_file     the page of status bytes that programs map
"""
