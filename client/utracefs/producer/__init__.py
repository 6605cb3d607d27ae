"""Sessions, events and spans: the half of the package that runs inside applications.

It imports no other room of the client; the package `utracefs` offers its names.
"""
