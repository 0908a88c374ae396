"""What attention is, written once."""
