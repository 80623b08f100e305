"""How pods go and come: from one revision to another, through canaries, emptied before they go. Pure."""
