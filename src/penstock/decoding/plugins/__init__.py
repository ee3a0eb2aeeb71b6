"""The bundled output plugins, one file each. ``registry`` finds them by name."""
