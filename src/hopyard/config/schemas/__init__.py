"""What a run, a study and a reservation may be: the one definition for files, Python and the API."""
