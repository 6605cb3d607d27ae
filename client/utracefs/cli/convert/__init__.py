"""Commands that read recordings: `utracefs report`, `export`, `sql`."""
