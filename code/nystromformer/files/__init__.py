"""Files of users and of runs: read with clear errors, written whole or not at all."""
