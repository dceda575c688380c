"""`python -m esker` is the `esker` command."""

from esker.tools.cli import main

if __name__ == "__main__":
    main()
