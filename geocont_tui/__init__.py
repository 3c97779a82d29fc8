"""geocont_tui: the terminal program over `geocont`. Importing it imports neither torch nor textual."""
