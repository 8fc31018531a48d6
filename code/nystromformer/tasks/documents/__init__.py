"""Tables of documents and labels that people bring."""
