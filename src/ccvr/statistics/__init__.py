"""Global model and one client's samples → class moments."""
