"""A closer look at finished runs: the table of analyses, and their files in the run folder."""
