"""`pams` as a script, which Fabric can start a second time for a second process."""

from pams_mil.cli.main import main

if __name__ == "__main__":
    main()
