"""What a module means, in numpy: its values over a text, their gradients, the text that it would write."""
