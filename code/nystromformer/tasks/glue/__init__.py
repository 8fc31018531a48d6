"""The GLUE benchmark: its tasks, how their files are read, metrics, and prediction files for its server."""
