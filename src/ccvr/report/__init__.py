"""Run files → tables, figures, a page. Made from plain values; never needs torch."""
