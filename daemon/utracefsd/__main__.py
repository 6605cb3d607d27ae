"""`python -m utracefsd`: the same as the installed command `utracefsd`."""

from utracefsd.main import main

if __name__ == "__main__":
    main(prog_name="utracefsd")
