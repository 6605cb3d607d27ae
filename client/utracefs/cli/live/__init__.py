"""Commands that show records as they come: `utracefs top`, `hist`, `attach`."""
