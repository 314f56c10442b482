"""The command `ccvr`: one module per thing a person wants, imported when it is asked for."""
