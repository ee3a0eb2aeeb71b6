"""The port and its sessions: accept clients and answer statements (postmaster.c, tcop, libpq)."""
