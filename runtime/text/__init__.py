"""Text to tokens and back: the tokenizer, contained; text as it arrives; text that somebody else wrote."""
