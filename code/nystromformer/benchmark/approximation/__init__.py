"""`run_benchmark.py approximation`: how far each attention is from softmax's, and what that costs."""
