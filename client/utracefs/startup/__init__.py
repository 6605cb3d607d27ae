"""A folder for PYTHONPATH (`--asgi`): Python runs its sitecustomize.py at the start of the program."""
