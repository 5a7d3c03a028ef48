"""The thin runtime: verify, map, execute."""
