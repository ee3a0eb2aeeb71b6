"""The port and its sessions (postmaster.c, tcop, libpq): from a socket to answers to statements."""
