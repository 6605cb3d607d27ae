"""`python -m utracefsd`: the same as the installed command `utracefsd`."""

from utracefsd.command import main

if __name__ == "__main__":
    main()
