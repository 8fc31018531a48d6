"""The kernels on a GPU: right, fast, and beside what they compete with; one command, within a time limit."""
