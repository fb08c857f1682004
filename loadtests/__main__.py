"""`python -m loadtests` is `headrace load`."""

from loadtests.command import main

if __name__ == "__main__":
    main(prog_name="python -m loadtests")
