"""keepwell: agents may crash; conversations may not."""
