"""Word count: a tokenizer and a counter joined by an edge."""
