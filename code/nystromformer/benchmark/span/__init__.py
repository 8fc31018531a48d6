"""`run_benchmark.py span`: how far the attention of trained models reaches."""
