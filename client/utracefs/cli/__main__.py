"""`python -m utracefs.cli`: the same as the installed command `utracefs`."""

from utracefs.command import main

if __name__ == "__main__":
    main()
