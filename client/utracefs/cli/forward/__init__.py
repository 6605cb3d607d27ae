"""Records to other hosts: `utracefs forward`."""
