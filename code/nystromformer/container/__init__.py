"""The project's commands in Docker containers."""
