"""The web UI: sessions of browsers, and the files of the pages."""
