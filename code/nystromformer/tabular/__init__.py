"""The one reader of tables that people bring: of documents to learn from or to predict, of GLUE, and of clients."""
