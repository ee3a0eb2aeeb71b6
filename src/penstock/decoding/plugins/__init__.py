"""The bundled output plugins, a file for each. ``registry`` finds them by name."""
