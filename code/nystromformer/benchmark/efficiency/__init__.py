"""`run_benchmark.py efficiency`: what every attention costs over the length, alone and in a small encoder."""
