"""Models as others store them: transformers' folders and the authors' checkpoints, in this project's words."""
