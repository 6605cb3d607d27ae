"""Many hosts: `utracefs fleet`."""
