"""DataFrame -> DataFrame: failure text, masking, selectors. Columns only; nothing here runs Python per message."""
