"""Commands that show records while they are emitted: `utracefs top`, `hist`, `attach`."""
