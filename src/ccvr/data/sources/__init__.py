"""Data sets in the layouts in which their authors publish them; `ccvr.data.catalogue` is their table."""
