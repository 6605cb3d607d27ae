"""`python -m tests.screenshots FOLDER`, or `make screenshots`: the pictures of the documentation, made from
the recording of examples/shop.py."""
