"""A campaign of damage, nonsense and kills against the project's commands: `make campaign`."""
