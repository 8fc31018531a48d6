"""What all tasks share: the experiment folder, its run, its tokenizer, its start weights."""
