"""The rows of the table of algorithms, in files by what they change."""
