"""The compiler core: recipe, IR, weight expressions, schemes, pass manager."""
