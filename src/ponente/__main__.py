"""`python -m ponente` is the command `ponente`."""

from ponente.cli import main

if __name__ == "__main__":
    main()
