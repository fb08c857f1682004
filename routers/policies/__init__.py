"""Who may wait, who goes first, what is copied and who is left out."""
