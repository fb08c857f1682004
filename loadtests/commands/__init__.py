"""What `headrace load` can be asked, one file a command."""
