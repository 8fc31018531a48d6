"""The project's commands in Docker containers: starting them, following them, and judging whether they are well."""
