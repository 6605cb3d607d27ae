"""Tables: CSV, Parquet, and SQL over them."""
