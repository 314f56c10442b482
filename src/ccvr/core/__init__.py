"""What every stage needs and none owns: errors, name tables, random streams, the run folder. No torch."""
