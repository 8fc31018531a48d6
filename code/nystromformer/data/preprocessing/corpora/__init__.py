"""From the files in which people have the pretraining corpora to one format of documents and sentences."""
