"""Runs → figures; table.py has one row for each."""
