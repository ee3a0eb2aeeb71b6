"""The command line: arguments in, node's public functions, text out. Nothing is decided here."""
