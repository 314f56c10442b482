"""Global model and one client's images → class moments."""
