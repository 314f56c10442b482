"""Statistics of single clients stay hidden: secure aggregation."""
