"""Clients and a server make a global model: local objectives, server updates, the algorithm table, rounds."""
