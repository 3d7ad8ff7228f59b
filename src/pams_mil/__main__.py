"""`python -m pams_mil` is `pams`."""

from pams_mil.cli.main import main

if __name__ == "__main__":
    main()
