"""`python -m polyphony`: the command, also under torchrun."""

from polyphony.cli import main

if __name__ == "__main__":
    main()
