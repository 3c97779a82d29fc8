"""`python -m geocont_tui` is `geocont-tui`."""

from geocont_tui.cli import main

if __name__ == "__main__":
    main()
